"""What happened to a rank and when, out of its ticks: evaluations, saves, retries, out of memory.

A tick counts all that happened since the rank began, so what lasts less than the time between two ticks is
seen as well.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple, TypeGuard

from zerokit.domain import phases

_PARTS = {phase.name: phase.event for phase in phases.ALL if phase.event}
_COUNTERS = {"alloc_retries": "retry", "ooms": "oom", "skipped_steps": "skipped step"}
_MOST_EVENTS = 256


class Event(NamedTuple):
    """In a rank's file it is a list of the three.

    Attributes:
        at: seconds since the rank began.
        kind: ``evaluation``, ``generation``, ``save``; ``retry`` (the allocator gave its cache back and tried
            again), ``oom`` (an allocation that failed) or ``skipped step``.
        times: how often it happened.
    """

    at: float
    kind: str
    times: int


class RankEvents:
    """Events of one rank in bounded space.

    Calls of one kind with no optimizer step between them are one event, as are the forwards of an evaluation
    loop.
    """

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._counts: dict[str, int] = {}
        self._steps_at: dict[str, int] = {}  # optimizer steps done when the last event of a kind began
        self._resumed = False

    def add(self, record: Mapping[str, Any]) -> None:
        """Add what a ``tick`` or ``end`` says beyond the one before."""
        at, steps = record.get("uptime_seconds"), record.get("steps")
        if not _is_number(at) or not _is_number(steps):
            return
        before, reached = list(self.events), record.get("phases")
        for phase, kind in _PARTS.items():
            details = reached.get(phase) if isinstance(reached, Mapping) else None
            if self._rose(phase, details.get("count") if isinstance(details, Mapping) else None):
                if self._steps_at.get(kind) != steps:
                    self._append(at, kind, 1)
                self._steps_at[kind] = int(steps)
        for name, kind in _COUNTERS.items():
            if more := self._rose(name, record.get(name)):
                self._append(at, kind, more)
        if self._resumed:
            self.events, self._resumed = before, False

    def resume(self, kept: object) -> None:
        """Take the events of a file that was compacted. The tick behind them tells nothing new."""
        if isinstance(kept, list):
            self.events = [Event(*event) for event in kept if _is_event(event)][:_MOST_EVENTS]
            self._resumed = True

    def _rose(self, name: str, value: object) -> int:
        """By how much a count is above the last one."""
        if not _is_number(value):
            return 0
        more = int(value) - self._counts.get(name, 0)
        self._counts[name] = max(int(value), self._counts.get(name, 0))
        return max(0, more)

    def _append(self, at: float, kind: str, times: int) -> None:
        self.events.append(Event(round(float(at), 1), kind, times))
        if len(self.events) > _MOST_EVENTS:
            self._merge()

    def _merge(self) -> None:
        """Join neighbours of the commonest kind in pairs, each at the time of its first."""
        kinds = [event.kind for event in self.events]
        commonest = max(set(kinds), key=kinds.count)
        kept: list[Event] = []
        first: int | None = None  # of a pair, among those kept
        for event in self.events:
            if event.kind != commonest:
                kept.append(event)
            elif first is None:
                first = len(kept)
                kept.append(event)
            else:
                kept[first] = kept[first]._replace(times=kept[first].times + event.times)
                first = None
        self.events = kept


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _is_event(value: object) -> bool:
    return (
        isinstance(value, list) and len(value) == 3 and _is_number(value[0]) and isinstance(value[1], str)
        and isinstance(value[2], int) and not isinstance(value[2], bool) and value[0] >= 0 and value[2] > 0
    )  # fmt: skip
