"""What the ranks are asked once a run counts as hung, and why it hangs by their answers."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from zerokit.launcher.busy import slowdown
from zerokit.launcher.supervisor.native_stacks import NativeStacks
from zerokit.launcher.supervisor.progress import Progress
from zerokit.launcher.verdict import why_hung
from zerokit.launcher.verdict.cause import Cause

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
        """Note what is known before the ranks are asked.

        The request wakes ranks that are stopped or in an interruptible call, and all go on.
        """
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
            if waited < STACKS_SECONDS or (not self._answered(ranks) and waited < patience):
                return False
            pids = {rank: self._progress.ranks[rank].pid for rank in ranks}
            self._native_stacks.start(
                self._run_dir, {rank: pid for rank, pid in pids.items() if pid is not None}
            )
        if not self._native_stacks.done(self._run_dir):
            return False
        self._asked_at = None
        return True

    def _answered(self, living: Iterable[int]) -> bool:
        """Whether each rank that can has written down what it does, since it was asked."""
        now, before = self._progress.records("calls"), self._records_before
        inquired = (self._progress.reporting() & frozenset(living)) - self._stopped
        return all(now.get(rank) is not before.get(rank) for rank in inquired)

    def explain(self) -> Cause | None:
        """Why it hangs; None where no rank has a record."""
        woken = self._stopped or self._progress.counts() != self._counts_before
        newest = self._progress.views(self._run_dir, self._stopped, None)
        before = self._progress.views(self._run_dir, self._stopped, self._records_before) if woken else newest
        return why_hung.explain(before) or why_hung.explain(newest) or why_hung.unexplained(newest)

    def end(self) -> None:
        """End what still runs, where the run is over before the answers are there."""
        self._native_stacks.end()
