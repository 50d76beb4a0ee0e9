"""Progress in a log: every half minute, and no line again for a build that goes on."""

from __future__ import annotations

import time

from zerokit.launcher.supervisor.supervisor import PlainStatus

BUILD, WAIT = "building operator fused_adam", "waiting for another build to release its lock"


def lines(seconds: int, activities: dict[int, frozenset[str]]) -> list[int]:
    """When a line is written, of looks every second; ``activities`` from these seconds on."""
    status, start, written = PlainStatus(), time.monotonic(), []
    now = frozenset[str]()
    for second in range(seconds):
        now = activities.get(second, now)
        if status.is_due(start + second + 0.5, now):
            written.append(second)
    return written


def test_a_run_in_its_steps_is_told_of_every_half_minute() -> None:
    assert lines(100, {}) == [30, 60, 90]


def test_a_build_is_told_of_once_whichever_ranks_are_in_it() -> None:
    both = frozenset({BUILD, WAIT})
    assert lines(200, {10: both, 70: frozenset({BUILD}), 100: both, 150: frozenset()}) == [30, 150, 180]


def test_the_next_build_is_told_of_and_a_long_download_now_and_then() -> None:
    assert lines(100, {10: frozenset({BUILD}), 50: frozenset({"building operator cpu_adam"})}) == [30, 60]
    assert lines(700, {0: frozenset({"downloading"})}) == [30, 330, 630]
