"""Run cases side by side on this host's GPUs through ``zerokit launch``; one row each.

    python -m benchmarks.measure.launch CASES.json -o ROWS.jsonl --at-once 24

A case with a ``plan`` runs with it; any other gets its ``deepspeed_config`` as the file of
``--deepspeed_config``. The row holds what the ranks noted themselves and, under
``launched``, what zerokit's report says of the same run. Cases that have a row already are left out, so
the command may be given again after it was interrupted.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.measure import case as cases
from benchmarks.measure import host as hosts
from benchmarks.measure import rows

_ALLOCATOR = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")


class Launched:
    """Every case is a ``zerokit launch`` of ``benchmarks.measure.train``, in a process of its own. They run
    side by side, and each has its GPUs and its limit from the environment."""

    grace_seconds = 20.0

    def __init__(self, options: Any) -> None:
        self.device = options.device
        self.launcher = options.launcher
        self.threads = max(1, (os.cpu_count() or 1) // options.at_once)

    def command(self, case: Mapping[str, Any], folder: Path) -> list[str]:
        """``zerokit launch`` for a case; its run folder is ``FOLDER/run``."""
        argv = [sys.executable, "-m", "zerokit", "launch"]
        argv += ["--plan", case["plan"]] if case["plan"] else ["--num-ranks", str(case["world_size"])]
        argv += ["--device", self.device, "--launcher", self.launcher, "--style", "raw", "--show", "all"]
        argv += ["--run-dir", str(folder / "run"), "--heartbeat", "0", "--grace", "5"]
        argv += [
            "-m",
            "benchmarks.measure.train",
            "--case",
            str(folder / "case.json"),
            "--notes",
            str(folder),
        ]
        if not case["plan"]:
            argv += ["--deepspeed", "--deepspeed_config", str(folder / "ds_config.json")]
        return argv

    def environment(self, case: Mapping[str, Any], gpus: Sequence[int], folder: Path) -> dict[str, str]:
        """This process's, with the GPUs, the limit and the gate of the case."""
        env = dict(os.environ)
        for name in (*_ALLOCATOR, "MEASURE_LIMIT_BYTES", "MEASURE_GATE"):
            env.pop(name, None)
        env["PYTHONPATH"] = os.pathsep.join([str(hosts.ROOT), *filter(None, [env.get("PYTHONPATH")])])
        env["OMP_NUM_THREADS"] = str(self.threads)
        if self.device == "cuda":
            env["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, gpus))
        if case["alloc_conf"]:
            env["PYTORCH_CUDA_ALLOC_CONF"] = case["alloc_conf"]
        if case["limit_bytes"]:
            env["MEASURE_LIMIT_BYTES"] = str(case["limit_bytes"])
        if case["gate"]:
            env["MEASURE_GATE"] = str(folder)
        return env

    def start(self, case: hosts.Case, gpus: Sequence[int], folder: Path) -> list[subprocess.Popen[bytes]]:
        """The launcher of a case."""
        (folder / "ds_config.json").write_text(json.dumps(case["deepspeed_config"]), encoding="utf-8")
        with (folder / "log-0.txt").open("wb") as log:
            return [
                subprocess.Popen(
                    self.command(case, folder),
                    cwd=hosts.ROOT,
                    env=self.environment(case, gpus, folder),
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            ]

    def row(self, run: hosts.Running) -> dict[str, Any]:
        """The case, its ranks' notes, its prediction and zerokit's report."""
        case = run.case
        notes = rows.notes_of(run.folder, case["world_size"])
        found = rows.row_of(case, notes, run.folder / "log-0.txt")
        path = run.folder / "run" / "report.json"
        report = json.loads(path.read_text(encoding="utf-8")) if path.exists() else None
        found["launched"] = None if report is None else reported(report)
        found["oom"] = found["oom"] or (report is not None and report["outcome"] == "oom")
        found["ok"] = found["ok"] and report is not None and report["outcome"] == "ok"
        return found


def reported(report: Mapping[str, Any]) -> dict[str, Any]:
    """What of a run's report is kept in its row; per rank where it is a list."""
    ranks = report["ranks"]
    kept = ("peak_allocated_bytes", "peak_reserved_bytes", "peak_host_rss_bytes", "peak_phase", "phases",
            "median_step_seconds", "steps", "state", "predicted_peak_allocated_bytes")  # fmt: skip
    return {
        "zerokit": report["zerokit"],
        "outcome": report["outcome"],
        "exit_code": report["exit_code"],
        "predicted_vs_measured": report["predicted_vs_measured"],
        **{name: [rank.get(name) for rank in ranks] for name in kept},
    }


class Gates:
    """Lets the gated runs onto the GPUs one at a time, each once all its ranks are ready. A run whose ranks
    have trained their last step and only end does not keep the next out, where both fit."""

    def __init__(self, room_bytes: int) -> None:
        """``room_bytes``: of the GPU with the least."""
        self.room_bytes = room_bytes

    def __call__(self, running: list[hosts.Running]) -> None:
        """Open the next gate when no run is past its own."""
        gated = [run for run in running if run.case["gate"]]
        inside = [run for run in gated if not run.waiting]
        if not all(_all_left(run, "done") for run in inside):
            return
        for run in gated:
            if run.waiting and _all_left(run, "ready"):
                if not inside or sum(map(self._holds, [*inside, run])) <= self.room_bytes:
                    run.go()
                return

    def _holds(self, run: hosts.Running) -> int:
        cap = run.case["cap_bytes"]
        return int(cap) + hosts.OUTSIDE_BYTES if cap else self.room_bytes


def _all_left(run: hosts.Running, sign: str) -> bool:
    """Whether every rank has left this sign."""
    return all((run.folder / f"{sign}-{rank}").exists() for rank in range(run.case["world_size"]))


def main() -> int:
    """Measure the cases of a file."""
    parser = hosts.arguments(__doc__)
    parser.add_argument("--launcher", default="deepspeed", help="of zerokit launch (default deepspeed)")
    options = parser.parse_args()
    todo = [cases.complete(item) for item in cases.read(options.cases)]
    if options.list:
        hosts.show_list(todo, options)
        return 0
    host = hosts.Host(Launched(options), options)
    left = hosts.measure_all(todo, host, options, Gates(min(host.whole)))
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main())
