"""The rank that the others wait for, from made-up seconds."""

from __future__ import annotations

from typing import Any

from zerokit.report.stragglers import find_straggler


def tick(steps: int = 11, **work: tuple[float, float]) -> dict[str, Any]:
    return {"steps": steps, "work": {name: list(pair) for name, pair in work.items()}}


FAST = {"other": (0.1, 0.0), "forward": (1.0, 0.0), "backward": (4.0, 3.0)}
SLOW = {"other": (3.1, 0.0), "forward": (1.0, 0.0), "backward": (1.0, 0.0)}


def test_its_own_phase_and_what_the_others_wait() -> None:
    found = find_straggler({0: tick(**FAST), 1: tick(**SLOW), 2: tick(**FAST)})
    assert found is not None and (found.rank, found.phase) == (1, "other")
    assert abs(found.seconds - 0.3) < 1e-9 and str(found).startswith(
        "the others wait for rank 1: 300 ms a step"
    )


def test_nobody_waits_or_nobody_tells() -> None:
    assert find_straggler({0: tick(**FAST), 1: tick(**FAST)}) is None
    assert find_straggler({0: tick(steps=3, **FAST), 1: tick(steps=3, **SLOW)}) is None
    assert find_straggler({0: {"steps": 9}, 1: {"steps": 9}}) is None
    assert find_straggler({0: tick(**FAST), 1: {"steps": 9, "work": {"other": ["x", 1]}}}) is None
    assert find_straggler({0: tick(**SLOW)}) is None
