"""Runs side by side on this host's GPUs, as many at once as memory allows; a row as each ends.

A case is placed by the limit on its allocator, or by its predicted peak (``expected``); one with neither
has its GPUs to itself. How a case is started, and what its row holds, is the route's: ``launch``.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from benchmarks.common import options_of
from benchmarks.measure.rows import GIB, measured_ids, say

ROOT = Path(__file__).resolve().parents[2]
OUTSIDE_BYTES = 3 * GIB // 2
"""Kept for the context, libraries and NCCL of each rank, outside its allocator."""
CPU_SLOTS = 64
Case = dict[str, Any]


def gpu_memory_bytes() -> list[int]:
    """Free memory of each GPU that may be used, from nvidia-smi. Raises OSError: no nvidia-smi.
    subprocess.CalledProcessError: it failed."""
    query = ["nvidia-smi", "--query-gpu=memory.free", "--format=csv,noheader,nounits"]
    text = subprocess.run(query, check=True, capture_output=True, text=True).stdout
    return [int(line) * 2**20 for line in text.split()]


def reserve_bytes(case: Mapping[str, Any]) -> int | None:
    """What a rank may take of its GPU; ``None``: all of it. Gated runs take turns: nothing is set aside."""
    if case["gate"]:
        return 0
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


def limit_bytes(case: Mapping[str, Any]) -> int | None:
    """What each rank's allocator is held to: the case's cap, or its share, so that no run starves another."""
    if case["cap_bytes"]:
        return int(case["cap_bytes"])
    reserved = reserve_bytes(case)
    return reserved - OUTSIDE_BYTES if reserved else None


@dataclass(slots=True)
class Running:
    """A case under way."""

    case: Case
    gpus: tuple[int, ...]
    reserved: int
    folder: Path
    processes: list[subprocess.Popen[bytes]]
    started: float = field(default_factory=time.monotonic)
    waiting: bool = False

    def go(self) -> None:
        """Its turn has come: from here its time counts."""
        (self.folder / "go").touch()
        self.started, self.waiting = time.monotonic(), False

    def stop(self, grace_seconds: float) -> None:
        """End every process, each by its own group: asked first, where there is time for it."""
        left = [process for process in self.processes if process.poll() is None]
        for process in left if grace_seconds else ():
            process.terminate()
        deadline = time.monotonic() + grace_seconds
        for process in left:
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


class Route(Protocol):
    """How cases are run."""

    grace_seconds: float

    def start(self, case: Case, gpus: Sequence[int], folder: Path) -> list[subprocess.Popen[bytes]]:
        """Start a case on these GPUs; its files go into ``folder``."""
        ...

    def row(self, run: Running) -> dict[str, Any]:
        """What is written of a run that ended."""
        ...


class Host:
    """The GPUs (or slots for CPU ranks) and host memory, and the runs on them."""

    def __init__(self, route: Route, options: argparse.Namespace) -> None:
        self.route = route
        self.options = options
        self.free = [2**62] * CPU_SLOTS if options.device == "cpu" else gpu_memory_bytes()
        self.whole = list(self.free)
        self.host_free = int(options.host_gib * GIB)
        self.running: list[Running] = []
        self.work = Path(tempfile.mkdtemp(prefix="measure-"))
        self.count = 0

    def place(self, case: Mapping[str, Any]) -> tuple[tuple[int, ...], int] | None:
        """GPUs with room for the case, the emptiest first, and bytes to set aside on each."""
        wanted = reserve_bytes(case)
        ranks = case["world_size"] + sum(run.case["world_size"] for run in self.running)
        if self.running and (ranks > self.options.at_once or host_bytes(case) > self.host_free):
            return None
        ranked = sorted(range(len(self.free)), key=lambda gpu: -self.free[gpu])[: case["world_size"]]
        if len(ranked) < case["world_size"]:
            return None
        if wanted is None:
            alone = all(self.free[gpu] == self.whole[gpu] for gpu in ranked)
            return (tuple(sorted(ranked)), min(self.free[gpu] for gpu in ranked)) if alone else None
        wanted = min(
            wanted, *(self.whole[gpu] for gpu in ranked)
        )  # a case for a whole card fits an empty one
        return (tuple(sorted(ranked)), wanted) if all(self.free[gpu] >= wanted for gpu in ranked) else None

    def start(self, case: Case, gpus: Sequence[int], reserved: int) -> None:
        """Start a case where it was placed."""
        self.count += 1
        folder = self.work / f"{self.count:03d}"
        folder.mkdir()
        shared = bool(reserve_bytes(case)) or bool(case["gate"] and case["cap_bytes"])
        told = case | {"shared": shared, "limit_bytes": limit_bytes(case)}
        (folder / "case.json").write_text(json.dumps(told), encoding="utf-8")
        processes = self.route.start(told, gpus, folder)
        for gpu in gpus:
            self.free[gpu] -= reserved
        self.host_free -= host_bytes(case)
        run = Running(case, tuple(gpus), reserved, folder, processes, waiting=case["gate"])
        self.running.append(run)

    def finished(self) -> list[Running]:
        """Take out the runs that have ended, failed or outlasted their time."""
        done = []
        for run in self.running:
            codes = [process.poll() for process in run.processes]
            late = not run.waiting and time.monotonic() - run.started > self.options.run_seconds
            if all(code is not None for code in codes) or any(codes) or late:
                run.stop(self.route.grace_seconds)
                done.append(run)
        for run in done:
            self.running.remove(run)
            for gpu in run.gpus:
                self.free[gpu] += run.reserved
            self.host_free += host_bytes(run.case)
        return done


def measure_all(
    todo: list[Case],
    host: Host,
    options: argparse.Namespace,
    tick: Callable[[list[Running]], None] = lambda running: None,
) -> int:
    """Run all that have no row yet, in their order where there is room; the number left without one.

    Args:
        todo: the cases.
        host: where.
        options: those of ``arguments``.
        tick: called again and again with what is under way.
    """
    known, start = measured_ids(options.output), time.monotonic()
    todo = [case for case in todo if case["id"] not in known]
    with options.output.open("a", encoding="utf-8") as out:
        while todo or host.running:
            spent = time.monotonic() - start
            over = spent > options.seconds
            if over:
                for run in host.running:
                    run.stop(host.route.grace_seconds)
                    print(f"{run.case['id']}: stopped: out of time", file=sys.stderr, flush=True)
                return len(todo) + len(host.running)
            for case in list(todo) if spent < options.start_seconds else []:
                placement = host.place(case)
                if placement is not None:
                    todo.remove(case)
                    host.start(case, *placement)
            tick(host.running)
            for run in host.finished():
                found = host.route.row(run)
                out.write(json.dumps(found) + "\n")
                out.flush()
                say(found, run.case, time.monotonic() - run.started)
                _show_log(run, found, options.logs)
            if not host.running and todo:
                if spent >= options.start_seconds:
                    break
                if all(host.place(case) is None for case in todo):
                    for case in todo:
                        print(f"{case['id']}: does not fit on this host", file=sys.stderr)
                    break
            time.sleep(0.2)
    return len(todo)


def _show_log(run: Running, found: Mapping[str, Any], lines: int) -> None:
    log = run.folder / "log-0.txt"
    if lines and not found["ok"] and not found["oom"] and log.exists():
        print("\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:]), flush=True)


def arguments(description: str | None) -> argparse.ArgumentParser:
    """The options that every route has."""
    parser = options_of(description)
    parser.add_argument("cases", type=Path)
    parser.add_argument("-o", "--output", type=Path, required=True, help="JSONL file, appended to; what it "
                        "holds is not run again")  # fmt: skip
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--at-once", type=int, default=8, help="ranks at the same time (default 8)")
    parser.add_argument("--host-gib", type=float, default=64.0, help="host memory to plan with (default 64)")
    parser.add_argument("--run-seconds", type=float, default=600.0, help="longest time of one run")
    parser.add_argument("--seconds", type=float, default=1e9, help="longest time of all; what runs then is "
                        "stopped, and has no row")  # fmt: skip
    parser.add_argument("--start-seconds", type=float, default=1e9, help="nothing is started after that")
    parser.add_argument("--logs", type=int, default=0, help="print so many last lines of failed runs")
    parser.add_argument("--list", action="store_true", help="show what would be run, and run nothing")
    return parser


def show_list(todo: Sequence[Case], options: argparse.Namespace) -> None:
    """A line a case that has no row yet."""
    known = measured_ids(options.output)
    for case in todo:
        done = "done" if case["id"] in known else ""
        room = reserve_bytes(case)
        words = "alone" if room is None else f"{room / GIB:.1f} GiB"
        peak = max(case["expected"]["peak_allocated_bytes"]) / GIB if case["expected"] else float("nan")
        print(f"{case['id']:<60} {case['world_size']:>2} ranks {words:>10}  predicted {peak:6.2f} GiB {done}")
