"""Events out of a rank's ticks: short ones are seen, neighbours joined, and the number of them bounded."""

from __future__ import annotations

from typing import Any

from zerokit.launcher.rank.ticker import MemoryTimeline
from zerokit.launcher.rank_file import Event, RankEvents


def tick(at: float, steps: int, **more: Any) -> dict[str, Any]:
    counts = {phase: {"count": more.pop(phase)} for phase in ("eval", "save", "generate") if phase in more}
    return {"type": "tick", "uptime_seconds": at, "steps": steps, "phases": counts, **more}


def told(*ticks: dict[str, Any]) -> list[Event]:
    events = RankEvents()
    for record in ticks:
        events.add(record)
    return events.events


def test_what_lasted_less_than_a_tick_is_seen() -> None:
    assert told(tick(1, 5), tick(1.4, 6, save=1), tick(1.8, 7, save=1)) == [(1.4, "save", 1)]


def test_forwards_of_one_evaluation_are_one_event_and_the_next_evaluation_another() -> None:
    found = told(tick(1, 10, eval=3), tick(2, 10, eval=9), tick(3, 15, eval=9), tick(4, 20, eval=12))
    assert found == [(1.0, "evaluation", 1), (4.0, "evaluation", 1)]


def test_retries_and_failed_allocations_are_counted() -> None:
    found = told(tick(1, 1, alloc_retries=0, ooms=0), tick(2, 1, alloc_retries=4, ooms=0),
                 tick(3, 2, alloc_retries=4, ooms=1, skipped_steps=2))  # fmt: skip
    assert found == [(2.0, "retry", 4), (3.0, "oom", 1), (3.0, "skipped step", 2)]


def test_many_events_are_joined_and_the_rare_ones_stay() -> None:
    ticks = [tick(float(at), at, save=at // 100, alloc_retries=at) for at in range(1, 3000)]
    found = told(*ticks)
    assert len(found) <= 256
    assert sum(event.times for event in found if event.kind == "retry") == 2999
    assert sum(event.times for event in found if event.kind == "save") == 29
    assert [event.at for event in found] == sorted(event.at for event in found)


def test_a_compacted_file_keeps_its_events_and_counts_none_twice() -> None:
    timeline, whole = MemoryTimeline(), RankEvents()
    ticks = [tick(float(at), at, save=at // 5, alloc_retries=at // 3) for at in range(20)]
    for record in ticks:
        whole.add(record)
    for record in ticks[:11]:
        timeline.add(record)
    read = RankEvents()
    read.resume(timeline.record(0, 1)["events"])
    for record in ticks[10:]:
        read.add(record)
    assert read.events == whole.events and len(whole.events) == 9


def test_damaged_records_add_nothing() -> None:
    events = RankEvents()
    events.resume([["x", "save", 1], [1.0, "save", -1], [2.0, "save", 1], None])
    assert events.events == [(2.0, "save", 1)]
    events.resume({"not": "a list"})
    for bad in ({}, {"uptime_seconds": float("nan"), "steps": 1}, {**tick(1, 1), "phases": [1]},
                {**tick(1, 1), "phases": {"save": 3}}, {**tick(1, 1), "alloc_retries": "many"}):  # fmt: skip
        events.add(bad)
    assert events.events == [(2.0, "save", 1)]
