"""How long without progress counts as a hang: what the user gave, or what this run has shown.

A quiet stretch that ended well is no hang, and ten of its length are not either. What a run does for the
first time (loading, the first step, a first evaluation or checkpoint) has shown nothing yet and gets five
minutes; ten has what a rank may wait for and still get (data, a download, storage, a process of its own):
only ranks that are at odds with each other are not waited for. Nothing is waited for longer than ten minutes.
"""

from __future__ import annotations

from collections.abc import Iterable

LEAST_SECONDS = 60.0
FIRST_TIME_SECONDS = 300.0
MOST_SECONDS = 600.0
_TIMES_THE_LONGEST = 10.0
TUNE_SECONDS = 60.0
"""Of a trial of ``zerokit tune``, which lives for minutes: fixed, whatever the trial has shown."""


class Heartbeat:
    """The seconds in force; ``given`` by the user, who is obeyed, or None."""

    def __init__(self, seconds: float | None) -> None:
        self._given = seconds
        self._longest_quiet = 0.0
        self._seen: set[str] = set()
        self._now_in: dict[int, str] = {}
        self._told_at: float | None = None

    @property
    def off(self) -> bool:
        """Whether nothing counts as a hang."""
        return self._given is not None and self._given <= 0

    @property
    def adapts(self) -> bool:
        """Whether the user left it to us."""
        return self._given is None

    def note_progress(self, rank: int, phase: str | None, quiet_seconds: float, *, trained: bool) -> None:
        """A rank did something new after ``quiet_seconds``; ``phase`` is where it is now."""
        self._longest_quiet = max(self._longest_quiet, quiet_seconds)
        before = self._now_in.get(rank)
        if before is not None and before != phase:
            self._seen.add(before)
        if phase is not None:
            self._now_in[rank] = phase
        if trained:
            self._seen.update(("forward", "backward", "step", "other"))

    def seconds(self, ranks: Iterable[int]) -> float:
        """What is in force for these ranks now."""
        if self._given is not None:
            return self._given
        first = any(self._now_in.get(rank, "load") not in self._seen for rank in ranks)
        least = FIRST_TIME_SECONDS if first else LEAST_SECONDS
        return min(MOST_SECONDS, max(least, _TIMES_THE_LONGEST * self._longest_quiet))

    def word(self, now: float, quiet_seconds: float, limit_seconds: float) -> bool:
        """Whether it is time to tell of the quiet: once, after a minute, where more is allowed."""
        if quiet_seconds < LEAST_SECONDS:
            self._told_at = None
            return False
        if self._told_at is not None or limit_seconds <= LEAST_SECONDS:
            return False
        self._told_at = now
        return True
