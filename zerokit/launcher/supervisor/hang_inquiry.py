"""What the ranks are asked once a run counts as hung, and why it hangs by their answers and, where
py-spy is installed, their native stacks.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from zerokit.launcher.rank_file import native_stacks_file
from zerokit.launcher.supervisor.progress import Progress
from zerokit.launcher.verdict import why_hung
from zerokit.report.schema import Hang

MOST = 10.0


def slowdown() -> float:
    """How many times longer a process takes that shares the processors, by the load average of the last
    minute: 1 to :data:`MOST`."""
    return min(MOST, max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1)))


LIMIT_SECONDS = 3.0
_MOST_RANKS = 16


def find_py_spy() -> str | None:
    """The program's path: beside this Python, or on the ``PATH``."""
    sibling = Path(sys.executable).with_name("py-spy")
    return str(sibling) if sibling.is_file() else shutil.which("py-spy")


class NativeStacks:
    """``py-spy dump --native`` of some ranks of this machine, side by side."""

    def __init__(self) -> None:
        self._running: dict[int, subprocess.Popen[bytes]] = {}
        self._until = 0.0
        self.begun = False

    def start(self, run_dir: Path, pids: Mapping[int, int]) -> None:
        """Begin; does nothing without py-spy. ``pids``: by rank."""
        self.begun = True
        program = find_py_spy()
        if program is None:
            return
        self._until = time.monotonic() + LIMIT_SECONDS
        for rank, pid in sorted(pids.items())[:_MOST_RANKS]:
            with suppress(OSError), native_stacks_file(run_dir, rank).open("wb") as file:
                command = [program, "dump", "--native", "--pid", str(pid)]
                self._running[rank] = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.DEVNULL
                )

    def done(self, run_dir: Path) -> bool:
        """Whether all have ended; those that take too long are ended, and files without a stack removed."""
        late = time.monotonic() >= self._until
        for rank, process in list(self._running.items()):
            if late:
                process.kill()
                process.wait()
            if process.poll() is None:
                continue
            del self._running[rank]
            with suppress(OSError):
                path = native_stacks_file(run_dir, rank)
                if path.stat().st_size == 0:
                    path.unlink()
        return not self._running

    def end(self) -> None:
        """End those that still run, where the run is over before they are."""
        for process in self._running.values():
            process.kill()
            process.wait()
        self._running.clear()


STACKS_SECONDS = 1.0
ANSWER_SECONDS = 3.0
"""How long a rank on an idle machine may take to write what it does; a busy machine gets longer."""


class HangInquiry:
    """From the moment a run counts as hung until its ranks have answered, or had their time to."""

    def __init__(self, run_dir: Path, progress: Progress) -> None:
        self._run_dir, self._progress = run_dir, progress
        self._asked_at: float | None = None
        self._native_stacks = NativeStacks()
        self._stopped: frozenset[int] = frozenset()
        self._records_before: Mapping[int, Mapping[str, Any]] = {}
        self._counts_before: Mapping[int, tuple[int, int]] = {}

    @property
    def open(self) -> bool:
        """Whether the ranks were asked and have not all answered."""
        return self._asked_at is not None

    def begin(self, living: Iterable[int]) -> None:
        """Note what is known before the ranks are asked. The request wakes ranks that are stopped or in an
        interruptible call, and all go on."""
        self._asked_at = time.monotonic()
        self._stopped = self._progress.stopped(living)
        self._records_before = self._progress.records("calls")
        self._counts_before = self._progress.counts()

    def done(self, living: Iterable[int]) -> bool:
        """Whether the Python stacks are there, and after them the native ones, which hold the ranks up."""
        assert self._asked_at is not None
        if not self._native_stacks.begun:
            waited, ranks = time.monotonic() - self._asked_at, list(living)
            patience = ANSWER_SECONDS * slowdown()
            now, before = self._progress.records("calls"), self._records_before
            inquired = (self._progress.reporting() & frozenset(ranks)) - self._stopped
            answered = all(now.get(rank) is not before.get(rank) for rank in inquired)
            if waited < STACKS_SECONDS or (not answered and waited < patience):
                return False
            pids = {rank: self._progress.ranks[rank].pid for rank in ranks}
            self._native_stacks.start(
                self._run_dir, {rank: pid for rank, pid in pids.items() if pid is not None}
            )
        if not self._native_stacks.done(self._run_dir):
            return False
        self._asked_at = None
        return True

    def explain(self) -> Hang | None:
        """Why it hangs; None where no rank has a record."""
        woken = self._stopped or self._progress.counts() != self._counts_before
        newest = self._progress.views(self._run_dir, self._stopped, None)
        before = self._progress.views(self._run_dir, self._stopped, self._records_before) if woken else newest
        return why_hung.explain(before) or why_hung.explain(newest) or why_hung.unexplained(newest)

    def end(self) -> None:
        """End what still runs, where the run is over before the answers are there."""
        self._native_stacks.end()
