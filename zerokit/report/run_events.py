"""What happened in a run and when: the table of events, and their marks on the chart of memory over time."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from zerokit.domain.phases import ALL, TRAINING_PHASES
from zerokit.report import charts, figure_text
from zerokit.report.schema import Event, Failure, RankReport, RunReport

TRAINING = (*TRAINING_PHASES, "other")
_TIME, _PHASE = 0, 1  # positions in a timeline point
_BY_EVENTS = frozenset(phase.name for phase in ALL if phase.event)
_MOST_ROWS = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """How events of a kind are named and drawn."""

    one: str
    several: str
    letter: str
    style: str


KINDS: Mapping[str, Kind] = MappingProxyType({
    "oom": Kind(one="out of memory", several="allocations out of memory", letter="!", style="e-oom"),
    "failure": Kind(one="first failure", several="failures", letter="×", style="e-oom"),
    "retry": Kind(one="allocation retry", several="allocation retries", letter="R", style="e-retry"),
    **{
        name: Kind(one=name, several=f"{name}s", letter=name[0].upper(), style=f"e-{name}")
        for name in sorted(filter(None, (phase.event for phase in ALL)), key="save".__ne__)
    },
    "skipped step": Kind(one="skipped step", several="skipped steps", letter="0", style="e-skipped"),
})  # fmt: skip
"""The most important first."""
OF_MEMORY = frozenset({"e-oom", "e-retry"})
_OTHER = Kind(one="", several="", letter="•", style="e-skipped")


def marks(run: RunReport, rank: RankReport) -> list[charts.Mark]:
    """The events of ``rank`` and the first failure of the run, on the clock of that rank's process."""
    own = own_marks(rank)
    failure, at = run.first_failure, _failure_seconds(run, rank)
    if (
        failure is not None
        and at is not None
        and not (failure.kind == "oom" and _has_oom(rank, failure.rank))
    ):
        kind = "oom" if failure.kind == "oom" else "failure"
        own.append(_mark(Event(at=at, what=kind), f"{_failure_text(failure)}, rank {failure.rank}", kind))
    order = {kind.style: number for number, kind in enumerate(KINDS.values())}
    return sorted(own, key=lambda mark: (order[mark.style], mark.at))


def own_marks(rank: RankReport) -> list[charts.Mark]:
    """The events of one rank alone."""
    return [_mark(event, _text(event), event.what) for event in rank.events]


def _mark(event: Event, text: str, label: str) -> charts.Mark:
    kind = KINDS.get(label, _OTHER)
    return charts.Mark(
        at=event.at, label=kind.one or label, letter=kind.letter, style=kind.style,
        title=f"{text}, after {figure_text.seconds(event.at)}", strong=kind.style in OF_MEMORY,
    )  # fmt: skip


def table(run: RunReport, rank: RankReport | None) -> list[tuple[str, str, str]]:
    """When, which rank, what: phases and events of ``rank``, lack of memory on any, the first failure."""
    rows: list[tuple[float, str, str]] = []
    if rank is not None:
        rows += [(at, str(rank.rank), f"{name} begins") for at, name in _first_phases(rank)]
        rows += [(event.at, str(rank.rank), _text(event)) for event in rank.events]
    for other in run.ranks:
        memory_events = [event for event in other.events if KINDS.get(event.what, _OTHER).style in OF_MEMORY]
        if other is not rank:
            rows += [
                (_shifted(event.at, other, rank), str(other.rank), _text(event)) for event in memory_events
            ]
        if other.alloc_retries and not any(event.what == "retry" for event in memory_events):
            rows.append((math.inf, str(other.rank), f"{other.alloc_retries} allocation retries in all"))
    if run.first_failure is not None:
        at = _failure_seconds(run, rank) if rank is not None else None
        subject = str(run.first_failure.rank)
        rows.append((math.inf if at is None else at, subject, _failure_text(run.first_failure)))
    rows.sort(key=lambda row: row[0])
    listed = [(_after(at), subject, what) for at, subject, what in rows]
    left = len(listed) - _MOST_ROWS
    return [*listed[:_MOST_ROWS], ("…", "", f"{left} more are in report.json")] if left > 0 else listed


def _after(at: float) -> str:
    return "–" if math.isinf(at) else figure_text.seconds(at) if at else "0 s"


def _failure_seconds(run: RunReport, rank: RankReport) -> float | None:
    """When the first failure was on the clock of ``rank``; None where that is not known."""
    at = run.first_failure.at if run.first_failure is not None else None
    started = rank.started_at if rank.started_at is not None else run.started_at
    return max(0.0, at - started) if at is not None and started is not None else None


def _failure_text(failure: Failure) -> str:
    return f"first failure: {failure.kind}" + (f" in {failure.phase}" if failure.phase else "")


def _has_oom(rank: RankReport, number: int) -> bool:
    return rank.rank == number and any(event.what == "oom" for event in rank.events)


def _shifted(at: float, rank: RankReport, to: RankReport | None) -> float:
    """A time of one rank on another rank's clock."""
    if to is None or rank.started_at is None or to.started_at is None:
        return at
    return max(0.0, at + rank.started_at - to.started_at)


def _text(event: Event) -> str:
    kind = KINDS.get(event.what, _OTHER)
    if event.times == 1:
        return kind.one or event.what
    return f"{event.times} {kind.several or event.what}"


def _first_phases(rank: RankReport) -> list[tuple[float, str]]:
    """When each phase began first. Reports without events tell of evaluations and saves so, each time."""
    starts = phase_starts(rank)
    if not rank.events:
        return starts
    first = {name: at for at, name in reversed(starts) if name not in _BY_EVENTS}
    return [(at, name) for name, at in first.items()]


def phase_starts(rank: RankReport) -> list[tuple[float, str]]:
    """When the rank came from one phase to another, in seconds; the phases of a step are ``training``."""
    starts: list[tuple[float, str]] = []
    for point in rank.timeline:
        if len(point) <= _PHASE or not is_size(point[_TIME]) or not isinstance(point[_PHASE], str):
            continue
        name = "training" if point[_PHASE] in TRAINING else point[_PHASE]
        if not starts or starts[-1][1] != name:
            starts.append((float(point[_TIME]), name))
    return starts


def is_size(value: object) -> bool:
    """Whether it is a number that a chart can draw: finite, not below zero."""
    return (
        isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value >= 0
    )
