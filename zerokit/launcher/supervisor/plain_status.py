"""When a line about the run's progress is due in a log, where no status line can be redrawn."""

from __future__ import annotations

import time

_SECONDS = 30.0
_SAME_ACTIVITY_SECONDS = 300.0  # a build or a download that goes on is no news


class PlainStatus:
    """Every half minute; while ranks are busy with what was said already, every five."""

    def __init__(self) -> None:
        self._next = time.monotonic() + _SECONDS
        self._said: frozenset[str] = frozenset()
        self._said_until = 0.0

    def is_due(self, now: float, activities: frozenset[str]) -> bool:
        """Whether to write a line now, which then counts as written.

        Args:
            activities: what ranks are busy with outside of steps.
        """
        if now < self._next:
            return False
        self._next = now + _SECONDS
        if activities and activities <= self._said and now < self._said_until:
            return False
        self._said, self._said_until = activities, now + _SAME_ACTIVITY_SECONDS
        return True
