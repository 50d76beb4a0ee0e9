"""Which steps are split into their phases: reading the allocator's peaks at a boundary costs some tens of
microseconds, which a step of a few milliseconds would feel.

So the first steps are split one and all, and later ones as often as :data:`SPLIT_SHARE` of the time allows.
"""

from __future__ import annotations

import time

SPLIT_SHARE = 0.0005
"""Of the training thread's time, at most so much goes into reading memory at phase boundaries."""
_MOST_SPARE_SECONDS = 0.02  # what a long wait may save up
_ALWAYS_READ = 128  # boundaries: some thirty steps, so that a short run is split throughout


class SplitBudget:
    """The time that may go into reading memory at phase boundaries.

    Attributes:
        splitting: whether memory is read at the engine's phase boundaries now.
    """

    def __init__(self) -> None:
        self.splitting = True
        self._step = 0  # the steps done when that was decided
        self._decided = time.monotonic()
        self._spare_seconds = 0.0
        self._reads = 0

    def decide(self, phase: str, steps: int) -> None:
        """At the first forward of a step, and at each without gradients: is there time to split it?"""
        if phase == "forward" and steps == self._step and steps:
            return  # a further micro-batch of the same step
        now = time.monotonic()
        earned_seconds = SPLIT_SHARE * (now - self._decided)
        self._step, self._decided = steps, now
        self._spare_seconds = min(_MOST_SPARE_SECONDS, self._spare_seconds + earned_seconds)
        self.splitting = self._spare_seconds > 0 or self._reads < _ALWAYS_READ

    def spend(self, seconds: float) -> None:
        """Memory was read at a boundary, which took so long."""
        self._reads += 1
        if self._reads > _ALWAYS_READ:
            self._spare_seconds -= seconds
