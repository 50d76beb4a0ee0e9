"""Linux processes: who descends from whom, who is alive, and making sure that nobody is left.

Standard library only, and quick to import: the guard is made of this.
A process is known by its id *and* start time, because ids are used again.
"""

from __future__ import annotations

import ctypes
import os
import signal
import time
from collections.abc import Collection, Iterable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

PR_SET_CHILD_SUBREAPER = 36
_SWEEP_SECONDS = 5.0
_CLEANERS = (b"multiprocessing.resource_tracker", b"torch_shm_manager")
_CLEANERS_SECONDS = 4.0


class Process(NamedTuple):
    """One line of the process table, from ``/proc/<pid>/stat`` (proc(5))."""

    pid: int
    parent: int
    state: str
    start_ticks: int
    cpu_ticks: int
    exit_status: int | None
    threads: int

    @property
    def alive(self) -> bool:
        """Not gone, and not a zombie; a zombie whose other threads still run holds all that it held (a
        GPU's memory, say, while its driver tears down)."""
        return self.state not in "ZX" or (self.state == "Z" and self.threads > 1)


def become_subreaper() -> bool:
    """Let orphaned descendants become our children instead of init's; False where the kernel refuses."""
    with suppress(OSError, AttributeError):
        libc = ctypes.CDLL(None, use_errno=True)
        return int(libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)) == 0
    return False


def read_process(pid: int) -> Process | None:
    """The process as the kernel sees it now; None when there is none (or no procfs)."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123 - the hot path: no Path objects
            text = file.read()
    except OSError:
        return None
    # The name in parentheses may hold anything, blanks and parentheses too.
    fields = text[text.rfind(b")") + 2 :].split()
    exit_status = int(fields[49]) if len(fields) > 49 else None
    return Process(
        pid,
        int(fields[1]),
        fields[0].decode(),
        int(fields[19]),
        int(fields[11]) + int(fields[12]),
        exit_status,
        int(fields[17]),
    )


def read_table() -> dict[int, Process]:
    """Every process of this machine (or container)."""
    table = {}
    for name in os.listdir("/proc"):  # noqa: PTH208
        if name.isdigit():
            process = read_process(int(name))
            if process is not None:
                table[process.pid] = process
    return table


def descendants(root: int, table: dict[int, Process] | None = None) -> list[Process]:
    """All living and dead-but-unreaped descendants of ``root``, parents before children."""
    table = read_table() if table is None else table
    children: dict[int, list[Process]] = {}
    for process in table.values():
        children.setdefault(process.parent, []).append(process)
    result: list[Process] = []
    queue = [root]
    while queue:
        for child in children.get(queue.pop(), ()):
            result.append(child)
            queue.append(child.pid)
    return result


def read_environment(pid: int) -> dict[bytes, bytes]:
    """The environment the process was started with; empty when it cannot be read."""
    try:
        data = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return {}
    return dict(part.split(b"=", 1) for part in data.split(b"\0") if b"=" in part)


def send(processes: Iterable[Process], number: int) -> None:
    """Send a signal to each that is still the process it was."""
    for process in processes:
        now = read_process(process.pid)
        if now is not None and now.start_ticks == process.start_ticks and now.alive:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(process.pid, number)


def kill(processes: Collection[Process], since: float) -> None:
    """SIGKILL, ``since`` so many monotonic seconds; what removes the shared memory of the others gets a
    moment to see them gone. A rank that is killed cannot remove its own: Python's resource tracker and
    PyTorch's manager do it, when the last process that used them has ended."""
    patient = time.monotonic() - since < _CLEANERS_SECONDS
    send([p for p in processes if not (patient and _is_cleaner(p.pid))], signal.SIGKILL)


def _is_cleaner(pid: int) -> bool:
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
    return any(name in command for name in _CLEANERS)


def reap() -> list[tuple[int, int]]:
    """Collect every dead child: ``(pid, exit code)``, the code negative for a signal."""
    dead: list[tuple[int, int]] = []
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return dead
        if pid == 0:
            return dead
        dead.append((pid, os.waitstatus_to_exitcode(status)))


def kill_descendants(root: int) -> list[int]:
    """SIGKILL everything below ``root`` until nothing is left, for the caller's own descendants: a process
    may fork while it is being killed. Returns the ids that would not die within five seconds (stuck in the
    kernel)."""
    began = time.monotonic()
    while True:
        reap()
        alive = [p for p in descendants(root) if p.alive]
        if not alive or time.monotonic() > began + _SWEEP_SECONDS:
            return [process.pid for process in alive]
        kill(alive, began)
        time.sleep(0.02)
