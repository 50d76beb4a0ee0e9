"""Run cases side by side on this host's GPUs, their ranks started here; one row each.

``launch`` runs the same cases through ``zerokit launch``.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.measure import case as cases
from benchmarks.measure import host as hosts
from benchmarks.measure import rows


def free_port() -> int:
    """A TCP port free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Direct:
    """The ranks are started here."""

    grace_seconds = 0.0

    def __init__(self, at_once: int) -> None:
        self.threads = max(1, (os.cpu_count() or 1) // at_once)

    def start(self, case: hosts.Case, gpus: Sequence[int], folder: Path) -> list[subprocess.Popen[bytes]]:
        """Every rank of a case."""
        port, processes = free_port(), []
        for rank in range(case["world_size"]):
            env = os.environ | {
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": str(case["world_size"]),
                "LOCAL_WORLD_SIZE": str(case["world_size"]),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
                "CUDA_VISIBLE_DEVICES": ",".join(map(str, gpus)),
                "OMP_NUM_THREADS": str(self.threads),
            }
            env.pop("PYTORCH_CUDA_ALLOC_CONF", None)
            if case["alloc_conf"]:
                env["PYTORCH_CUDA_ALLOC_CONF"] = case["alloc_conf"]
            command = [
                sys.executable,
                "-m",
                "benchmarks.measure.worker",
                str(folder / "case.json"),
                str(folder),
            ]
            with (folder / f"log-{rank}.txt").open("wb") as log:
                processes.append(
                    subprocess.Popen(
                        command,
                        cwd=hosts.ROOT,
                        env=env,
                        stdout=log,
                        stderr=subprocess.STDOUT,
                        start_new_session=True,
                    )
                )
        return processes

    def row(self, run: hosts.Running) -> dict[str, Any]:
        """The case and its ranks' notes."""
        notes = rows.notes_of(run.folder, run.case["world_size"])
        return rows.row_of(run.case, notes, run.folder / "log-0.txt")


def main() -> int:
    """Measure the cases of a file."""
    options = hosts.arguments(__doc__).parse_args()
    todo = [cases.complete(item) for item in cases.read(options.cases)]
    if options.list:
        hosts.show_list(todo, options)
        return 0
    left = hosts.measure_all(todo, hosts.Host(Direct(options.at_once), options), options)
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main())
