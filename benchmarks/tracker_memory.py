"""GPU memory by phase in trackers' own files, beside the losses of TRL's own SFT script.

    python -m benchmarks.tracker_memory OUT.jsonl                             # one GPU, TensorBoard
    python -m benchmarks.tracker_memory OUT.jsonl --trackers tensorboard,wandb,mlflow,trackio
    python -m benchmarks.tracker_memory OUT.jsonl --device cpu                # one CPU rank: host memory

``trl.scripts.sft`` runs under ``zerokit launch`` twice, with its own ``--report_to``, on a small Llama and
texts made here. The first run is the unmodified module. The second logs without zerokit's figures
(``--no-trackers``), and a line at its end prints PyTorch's own peak. Needs the libraries of the trackers
named; none of them needs a network.

One row: for each tracker, which metrics stand at the steps of the loss, their highest values in bytes beside
the report's peaks by phase, and whether the losses are those of the second run; and PyTorch's own peak.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.common import options_of
from benchmarks.tracker_curves import TRACKERS, Curves, curves, variables
from tests.support.tinyjob import make_model, make_rows, texts

ROOT = Path(__file__).parents[1]
PHASES = ("forward", "backward", "step")
GIB = 1 << 30
STEPS = 5
ROUNDING = {"tensorboard": 1e-6}  # an event file keeps its numbers in 32 bits
LOSS = {"mlflow": "loss"}  # the Trainer's callbacks call it train/loss elsewhere
LIMIT_SECONDS = 240.0
OWN_PEAK = """
if __name__ == "__main__":
    import torch
    print("own peak", torch.cuda.max_memory_allocated() if torch.cuda.is_available() else 0, flush=True)
"""
SCRIPT_ARGUMENTS = ["--model_name_or_path", "model", "--dataset_name", "data", "--max_steps", str(STEPS),
                    "--logging_steps", "1", "--max_length", "128", "--save_strategy", "no"]  # fmt: skip


def zerokit(folder: Path, *arguments: str, kept: str = "kept") -> tuple[int, str]:
    """Run a command, its trackers writing into ``kept``; its exit code and everything that it printed."""
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1",
                   "HF_HUB_OFFLINE": "1", "PYTHONUNBUFFERED": "1",
                   **variables(folder / kept)}  # fmt: skip
    (folder / kept).mkdir(exist_ok=True)
    done = subprocess.run([sys.executable, "-m", "zerokit", *arguments], cwd=folder, env=environment,
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          text=True, timeout=LIMIT_SECONDS, check=False)  # fmt: skip
    return done.returncode, done.stdout


def make_job(folder: Path, device: str) -> None:
    """Model, data and plan. Raises SystemExit: ``zerokit plan`` refused."""
    make_model(folder / "model", layers=4, width=512)
    make_rows(folder / "data", texts(words=120))
    code, said = zerokit(
        folder, "plan", "--model", "model", "--device", device, "--gpus", "1", "--seq-len", "128", "--zero",
        "2", "--micro-batch", "2", "--gradient-accumulation", "1", "--checkpointing", "none", "--out", "plan",
    )  # fmt: skip
    if code:
        raise SystemExit(said)


def rank_of(run: Path) -> dict[str, Any]:
    """The report of the one rank."""
    rank: dict[str, Any] = json.loads((run / "report.json").read_text())["ranks"][0]
    return rank


def compared(tracker: str, kept: Curves, plain: Curves, rank: dict[str, Any], device: str) -> dict[str, Any]:
    """What a tracker kept, beside the rank's report and beside a run without zerokit's figures."""
    metric = "zerokit/peak_allocated_gib/" if device == "cuda" else "zerokit/peak_host_rss_gib/"
    loss = LOSS.get(tracker, "train/loss")
    steps = sorted(kept.get(loss, {}))
    highest = {
        phase: round(max(kept[metric + phase].values()) * GIB)
        for phase in PHASES if metric + phase in kept
    }  # fmt: skip
    reported = {phase: rank["phases"].get(phase) for phase in PHASES}
    row = {
        "loss_steps": steps, "metrics": sorted(name for name in kept if name.startswith("zerokit/")),
        "at_every_loss": all(sorted(kept.get(metric + phase, {})) == steps for phase in PHASES),
        "highest_bytes": highest, "report_bytes": reported,
        "equal": all(
            phase in highest and reported[phase]
            and abs(highest[phase] / reported[phase] - 1) <= ROUNDING.get(tracker, 0.0)
            for phase in PHASES
        ),
        "losses_equal": plain.get(loss) == kept.get(loss),
        "second_metrics": sorted(name for name in plain if name.startswith("zerokit/")),
    }  # fmt: skip
    right = (
        steps == list(range(1, STEPS + 1)) and row["at_every_loss"] and row["equal"] and loss in plain
        and not row["second_metrics"]
    )  # fmt: skip
    return {**row, "right": bool(right)}


def measured(folder: Path, device: str, trackers: list[str]) -> dict[str, Any]:
    """The row of both runs."""
    make_job(folder, device)
    import trl.scripts

    text = (Path(trl.scripts.__path__[0]) / "sft.py").read_text()
    (folder / "sft.py").write_text(text + OWN_PEAK)
    common = ["launch", "--plan", "plan", "--device", device]
    script = [*SCRIPT_ARGUMENTS, "--report_to", trackers[0] if len(trackers) == 1 else "all"]
    row: dict[str, Any] = {"device": device}
    begun = time.monotonic()
    code, said = zerokit(folder, *common, "--run-dir", "run", "-m", "trl.scripts.sft", *script,
                         "--output_dir", "out")  # fmt: skip
    row |= {"exit_code": code, "seconds": round(time.monotonic() - begun, 1)}
    if code:
        return {**row, "right": False, "output": said.splitlines()[-60:]}
    code, said = zerokit(folder, *common, "--run-dir", "run-2", "--no-trackers", "sft.py", *script,
                         "--output_dir", "out-2", kept="kept-2")  # fmt: skip
    own = re.search(r"own peak (\d+)", said)
    row |= {"second_exit_code": code, "own_peak_bytes": int(own[1]) if own else None}
    if code:
        return {**row, "right": False, "output": said.splitlines()[-60:]}
    rank, second = rank_of(folder / "run"), rank_of(folder / "run-2")
    row["report_peaks_bytes"] = [rank["peak_allocated_bytes"], second["peak_allocated_bytes"]]
    row["trackers"] = {
        name: compared(name, curves(name, folder / "kept"), curves(name, folder / "kept-2"), rank, device)
        for name in trackers
    }
    same_peak = device == "cpu" or row["own_peak_bytes"] == second["peak_allocated_bytes"]
    row["right"] = same_peak and all(tracker["right"] for tracker in row["trackers"].values())
    return row if row["right"] else {**row, "output": said.splitlines()[-40:]}


def main() -> None:
    parser = options_of(__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--trackers", default="tensorboard", help=",".join(TRACKERS))
    args = parser.parse_args()
    trackers = args.trackers.split(",")
    if unknown := set(trackers) - set(TRACKERS):
        parser.error(f"--trackers {','.join(unknown)}: use {', '.join(TRACKERS)}")
    with tempfile.TemporaryDirectory(prefix="zk-trackers-") as name:
        row = measured(Path(name), args.device, trackers)
    args.out.write_text(json.dumps(row) + "\n")
    print(json.dumps(row))
    raise SystemExit(0 if row["right"] else 1)


if __name__ == "__main__":
    main()
