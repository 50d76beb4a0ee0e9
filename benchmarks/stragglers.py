"""Stragglers, injected: is the rank named, by how much, and what does sampling cost?

    python -m benchmarks.stragglers OUT.jsonl                                              # CPU ranks, gloo
    python -m benchmarks.stragglers OUT.jsonl --device cuda --hidden 2048 --layers 16 --seq-len 1024

Each is a launch of tests/scripts/straggling.py, real ZeRO steps of a Llama in which the last rank sleeps
80 ms between steps or in its forward, has four times the tokens, or in which no rank is slow. What is told
stands beside the script's own clock: the slow run's median step less that of the run in which no rank is
slow, stage by stage. They differ where a host queues ahead while its GPU waits. ``--at-once`` of them start
together; they train one after another. For ``tokens`` the GPU must be what is slow, not the host:
``--hidden 4096 --layers 6 --batch 4`` on H200s.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.common import options_of

SCRIPT = Path(__file__).parents[1] / "tests" / "scripts" / "straggling.py"
CASES = ("none:2", "loader:2", "tokens:2", "none:3", "loader:3", "tokens:3", "none:1", "host:1")
PHASES = {"loader": {"other"}, "host": {"forward"}, "tokens": {"forward", "backward"}}
_WARM = 6
_TOLD = re.compile(
    r"the others wait for rank (\d+): (.*?) a step \((\d+)% of their time\), which it spends ([^;]*)"
)
_UNITS = {"ms": 0.001, "s": 1.0}


def start(case: str, number: int, args: argparse.Namespace, folder: Path) -> subprocess.Popen[str]:
    """One launch; it trains when it is its turn."""
    kind, _, stage = case.partition(":")
    folder.mkdir()
    paths = [str(SCRIPT.parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1",
                   "PYTHONUNBUFFERED": "1", "HF_HUB_OFFLINE": "1",
                   "TURN": str(folder.parent / "turn"), "NUMBER": str(number)}  # fmt: skip
    sizes = [part for name in ("hidden", "layers", "batch", "seq_len", "steps", "slow", "factor")
             for part in (f"--{name.replace('_', '-')}", str(getattr(args, name)))]  # fmt: skip
    return subprocess.Popen(
        [sys.executable, "-m", "zerokit", "launch", "--device", args.device, "--num-ranks", str(args.ranks),
         "--style", "none", "--heartbeat", "300", "--run-dir", "run", str(SCRIPT), kind, stage, *sizes],
        cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip


def wait_until_ready(running: dict[int, subprocess.Popen[str]], base: Path, ranks: int) -> None:
    """Those that live have come to where they wait for their turn."""
    while any(
        process.poll() is None
        and not all((base / f"ready-{number}-{rank}").exists() for rank in range(ranks))
        for number, process in running.items()
    ):
        time.sleep(0.2)


def until_trained(process: subprocess.Popen[str]) -> str:
    """What it prints up to its steps; it may end while the next one trains."""
    assert process.stdout is not None
    output = ""
    for line in process.stdout:
        output += line
        if line.startswith('{"steps"'):
            break
    return output


def row(case: str, code: int, output: str, folder: Path) -> dict[str, Any]:
    """What the run told, and its steps."""
    report = json.loads((folder / "run" / "report.json").read_text())
    told = next((found for text in report["problems"] if (found := _TOLD.match(text))), None)
    steps: list[float] = next(
        (json.loads(line)["steps"] for line in output.splitlines() if line.startswith('{"steps"')), []
    )
    result: dict[str, Any] = {
        "case": case, "exit_code": code, "steps": steps, "problems": report["problems"],
        "median_step_seconds": round(statistics.median(steps[_WARM:]), 5) if steps else None,
        "rank": int(told[1]) if told else None, "phase": told[4] if told else None,
    }  # fmt: skip
    if told:
        value, unit = told[2].split()
        result["told_seconds"] = float(value) * _UNITS[unit]
    ranks = [last_tick(path) for path in sorted((folder / "run").glob("rank-*.jsonl"))]
    result["sampling"] = [tick.get("sampling") for tick in ranks]
    result["raw"] = [tick.get("sampled_work") or tick.get("work") for tick in ranks]
    return result if steps else {**result, "output": output[-3000:]}


def last_tick(path: Path) -> dict[str, Any]:
    """A rank's last account."""
    records = [json.loads(line) for line in path.read_text().splitlines() if line.startswith("{")]
    return next((record for record in reversed(records) if record["type"] in ("tick", "end")), {})


def judge(rows: dict[str, dict[str, Any]], ranks: int) -> None:
    """Right where the slow rank is named with its phase; the seconds stand beside the script's clock."""
    for case, result in rows.items():
        kind, _, stage = case.partition(":")
        usual = rows.get(f"none:{stage}", {}).get("median_step_seconds")
        if kind == "none":
            result["right"] = result["rank"] is None and result["exit_code"] == 0
            continue
        result["right"] = result["rank"] == ranks - 1 and any(
            words in str(result["phase"])
            for words in ({"between steps"} if kind == "loader" else PHASES[kind])
        )
        if usual and result["median_step_seconds"]:
            result["clock_seconds"] = round(result["median_step_seconds"] - usual, 5)


def main() -> int:
    """All cases, a line of JSON each."""
    parser = options_of(__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--cases", default=",".join(CASES), help="KIND:STAGE, …")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    defaults = {"ranks": 2, "hidden": 64, "layers": 2, "batch": 2, "seq-len": 64, "steps": 24, "factor": 4}
    for name, default in defaults.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--slow", type=float, default=0.08)
    parser.add_argument("--at-once", type=int, default=8)
    args = parser.parse_args()
    cases: list[str] = args.cases.split(",")
    rows: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory(prefix="stragglers-") as name:
        base = Path(name)
        (base / "turn").write_text("-1")
        running: dict[int, subprocess.Popen[str]] = {}
        for number, case in enumerate(cases):
            for later in range(number, min(number + args.at_once, len(cases))):
                if later not in running:
                    running[later] = start(cases[later], later, args, base / str(later))
            if len(running) == number + args.at_once or number == 0:
                wait_until_ready(running, base, args.ranks)
            (base / "turn").write_text(str(number))
            output = until_trained(running[number])
            rows[case] = {"output": output}
        for number, case in enumerate(cases):
            output = rows[case]["output"] + running[number].communicate()[0]
            rows[case] = row(case, running[number].returncode, output, base / str(number))
            print(case, rows[case]["median_step_seconds"], rows[case]["problems"], flush=True)
    judge(rows, args.ranks)
    with args.out.open("a") as file:
        file.writelines(json.dumps({"device": args.device, **result}) + "\n" for result in rows.values())
    print(f"{sum(result['right'] for result in rows.values())} of {len(rows)} right")
    return 0


if __name__ == "__main__":
    sys.exit(main())
