"""Run cases side by side on this host's GPUs, as many at once as memory allows; one row each.

A case is placed by its predicted peak (``expected``, written by ``predict``); one without has its GPUs
to itself. Rows are written as runs end, so an interrupted measurement keeps what it has.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.measure import case as cases

GIB = 2**30
ROOT = Path(__file__).resolve().parents[2]
OUTSIDE_BYTES = 3 * GIB // 2
"""Kept for the context, libraries and NCCL of each rank, outside its allocator."""


def gpu_memory_bytes() -> list[int]:
    """Free memory of each GPU that may be used, from nvidia-smi.

    Raises:
        OSError: no nvidia-smi. subprocess.CalledProcessError: it failed.
    """
    query = ["nvidia-smi", "--query-gpu=memory.free", "--format=csv,noheader,nounits"]
    text = subprocess.run(query, check=True, capture_output=True, text=True).stdout
    return [int(line) * 2**20 for line in text.split()]


def reserve_bytes(case: Mapping[str, Any]) -> int | None:
    """What a rank may take of its GPU; ``None``: all of it."""
    if case["alone"]:
        return None
    if case["cap_bytes"]:
        return int(case["cap_bytes"]) + OUTSIDE_BYTES
    if not case["expected"]:
        return None
    peak = max(case["expected"]["peak_allocated_bytes"])
    expandable = "expandable_segments:True" in (case["alloc_conf"] or "")
    return int(peak * (1.12 if expandable else 1.3)) + OUTSIDE_BYTES + GIB


def host_bytes(case: Mapping[str, Any]) -> int:
    """Host memory that a run is expected to take."""
    return int(case["expected"]["host_bytes_per_node"]) if case["expected"] else 0


@dataclass(slots=True)
class Running:
    """A case under way."""

    case: dict[str, Any]
    gpus: tuple[int, ...]
    reserved: int
    folder: Path
    processes: list[subprocess.Popen[bytes]]
    started: float = field(default_factory=time.monotonic)

    def stop(self) -> None:
        """End every rank, each by its own process group."""
        for process in self.processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
        for process in self.processes:
            process.wait()


def free_port() -> int:
    """A TCP port free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Host:
    """The GPUs and host memory, and the runs on them."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.free = gpu_memory_bytes()
        self.whole = list(self.free)
        self.host_free = int(options.host_gib * GIB)
        self.running: list[Running] = []
        self.work = Path(tempfile.mkdtemp(prefix="measure-"))
        self.count = 0

    def place(self, case: Mapping[str, Any]) -> tuple[tuple[int, ...], int] | None:
        """GPUs with room for the case, the emptiest first, and bytes to set aside on each."""
        wanted = reserve_bytes(case)
        if len(self.running) >= self.options.at_once or (self.running and host_bytes(case) > self.host_free):
            return None
        ranked = sorted(range(len(self.free)), key=lambda gpu: -self.free[gpu])[: case["world_size"]]
        if len(ranked) < case["world_size"]:
            return None
        if wanted is None:
            alone = all(self.free[gpu] == self.whole[gpu] for gpu in ranked)
            return (tuple(sorted(ranked)), min(self.free[gpu] for gpu in ranked)) if alone else None
        return (tuple(sorted(ranked)), wanted) if all(self.free[gpu] >= wanted for gpu in ranked) else None

    def start(self, case: dict[str, Any], gpus: Sequence[int], reserved: int) -> None:
        """Start every rank of a case."""
        self.count += 1
        folder = self.work / f"{self.count:03d}"
        folder.mkdir()
        shared = reserve_bytes(case) is not None
        guard = None if case["cap_bytes"] or not shared else reserved - OUTSIDE_BYTES
        told = case | {"shared": shared, "guard_bytes": guard}
        place = folder / "case.json"
        place.write_text(json.dumps(told), encoding="utf-8")
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
                "OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // self.options.at_once)),
            }
            env.pop("PYTORCH_CUDA_ALLOC_CONF", None)
            if case["alloc_conf"]:
                env["PYTORCH_CUDA_ALLOC_CONF"] = case["alloc_conf"]
            command = [sys.executable, "-m", "benchmarks.measure.worker", str(place), str(folder)]
            with (folder / f"log-{rank}.txt").open("wb") as log:
                processes.append(
                    subprocess.Popen(
                        command,
                        cwd=ROOT,
                        env=env,
                        stdout=log,
                        stderr=subprocess.STDOUT,
                        start_new_session=True,
                    )
                )
        for gpu in gpus:
            self.free[gpu] -= reserved
        self.host_free -= host_bytes(case)
        self.running.append(Running(case, tuple(gpus), reserved, folder, processes))

    def finished(self) -> list[Running]:
        """Take out the runs that have ended, failed or outlasted their time."""
        done = []
        for run in self.running:
            codes = [process.poll() for process in run.processes]
            late = time.monotonic() - run.started > self.options.run_seconds
            if all(code is not None for code in codes) or any(codes) or late:
                run.stop()
                done.append(run)
        for run in done:
            self.running.remove(run)
            for gpu in run.gpus:
                self.free[gpu] += run.reserved
            self.host_free += host_bytes(run.case)
        return done


_MACHINE = re.compile(r"/[\w./-]*/(?=[\w-]+\.py)")


def row(run: Running) -> dict[str, Any]:
    """A case and what its ranks noted, in the columns of ``data/README.md``."""
    case = run.case
    notes: list[dict[str, Any]] = []
    for rank in range(case["world_size"]):
        place = run.folder / f"rank-{rank}.json"
        notes.append(json.loads(place.read_text(encoding="utf-8")) if place.exists() else {})
    first = notes[0]
    found = {key: value for key, value in case.items() if key not in ("expected", "cap_ladder_mib", "alone")}
    found |= {
        "timed_alone": False,
        "versions": first.get("versions"),
        "ok": all(note.get("ok", False) for note in notes),
        "oom": any(note.get("oom", False) for note in notes),
    }
    error = next((note["error"] for note in notes if note.get("error")), None)
    if error or not found["ok"]:
        log = run.folder / "log-0.txt"
        tail = log.read_text(encoding="utf-8", errors="replace").splitlines()[-1:] if log.exists() else []
        found["error"] = error or "".join(tail) or "no result"
        found["error"] = _MACHINE.sub("", str(found["error"]))
    for key in ("params", "trainable_params"):
        found[key] = first.get(key)
    for key in (
        "peak_allocated_bytes", "peak_reserved_bytes", "device_used_bytes", "device_used_before_model_bytes",
        "reserved_at_end_bytes", "alloc_retries", "host_max_rss_bytes",
    ):  # fmt: skip
        found[key] = [note.get(key) for note in notes]
    for name in ("after_init", "first_step", "last_step", "step_seconds"):
        found[f"{name}_rank0"] = first.get(name)
    if first.get("cap_ladder"):
        found["cap_ladder"] = first["cap_ladder"]
    return found


def _say(found: Mapping[str, Any], case: Mapping[str, Any], seconds: float) -> None:
    peaks = [p for p in found["peak_allocated_bytes"] if p]
    words = "ok" if found["ok"] else "out of memory" if found["oom"] else f"failed: {found.get('error')}"
    line = f"{found['id']}: {words}, {seconds:.0f} s"
    if peaks:
        line += f", peak {max(peaks) / GIB:.2f} GiB"
        if case["expected"]:
            wanted = max(case["expected"]["peak_allocated_bytes"])
            line += f" ({wanted / max(peaks) - 1:+.2%} predicted)"
    print(line, flush=True)


def measure_all(todo: list[dict[str, Any]], options: argparse.Namespace) -> int:
    """Run all; the number that gave no row."""
    host, deadline = Host(options), time.monotonic() + options.seconds
    with options.output.open("a", encoding="utf-8") as out:
        while todo or host.running:
            over = time.monotonic() > deadline
            if over:
                for run in host.running:
                    run.stop()
            for case in [] if over else list(todo):
                spot = host.place(case)
                if spot is not None:
                    todo.remove(case)
                    host.start(case, *spot)
            for run in host.finished():
                found = row(run)
                out.write(json.dumps(found) + "\n")
                out.flush()
                _say(found, run.case, time.monotonic() - run.started)
                if options.logs and not found["ok"]:
                    log = (run.folder / "log-0.txt").read_text(encoding="utf-8", errors="replace")
                    print("\n".join(log.splitlines()[-options.logs :]), flush=True)
            if over:
                break
            if not host.running and todo and all(host.place(case) is None for case in todo):
                for case in todo:
                    print(f"{case['id']}: does not fit on this host", file=sys.stderr)
                break
            time.sleep(0.2)
    return len(todo)


def main() -> int:
    """Measure the cases of a file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", type=Path)
    parser.add_argument("-o", "--output", type=Path, required=True, help="JSONL file, appended to")
    parser.add_argument("--at-once", type=int, default=8, help="runs at the same time (default 8)")
    parser.add_argument("--host-gib", type=float, default=64.0, help="host memory to plan with (default 64)")
    parser.add_argument("--run-seconds", type=float, default=600.0, help="longest time of one run")
    parser.add_argument("--seconds", type=float, default=1e9, help="longest time of all")
    parser.add_argument("--logs", type=int, default=0, help="print so many last lines of failed runs")
    options = parser.parse_args()
    given = cases.read(options.cases)
    left = measure_all([cases.complete(item) for item in given], options)
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main())
