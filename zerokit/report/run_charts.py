"""The charts of one run: memory over time with what happened when, ranks side by side, components,
phases, and what the allocator kept beyond what tensors took."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

from zerokit.domain import strategy
from zerokit.domain.phases import ALL, TRAINING_PHASES
from zerokit.report import charts, measured, render, words
from zerokit.report.measured import worst_rank
from zerokit.report.schema import Event, Failure, RankReport, RunReport
from zerokit.units import counted, format_seconds

if TYPE_CHECKING:
    from markupsafe import Markup

TRAINING = (*TRAINING_PHASES, "other")
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
    has_own = rank.rank == (failure and failure.rank) and any(event.what == "oom" for event in rank.events)
    if failure is not None and at is not None and not (failure.kind == "oom" and has_own):
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
        title=f"{text}, after {words.seconds(event.at)}", strong=kind.style in OF_MEMORY,
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
    listed = [
        ("–" if math.isinf(at) else words.seconds(at) if at else "0 s", subject, what)
        for at, subject, what in rows
    ]
    left = len(listed) - _MOST_ROWS
    return [*listed[:_MOST_ROWS], ("…", "", f"{left} more are in report.json")] if left > 0 else listed


def _failure_seconds(run: RunReport, rank: RankReport) -> float | None:
    """When the first failure was on the clock of ``rank``; None where that is not known."""
    at = run.first_failure.at if run.first_failure is not None else None
    started = rank.started_at if rank.started_at is not None else run.started_at
    return max(0.0, at - started) if at is not None and started is not None else None


def _failure_text(failure: Failure) -> str:
    return f"first failure: {failure.kind}" + (f" in {failure.phase}" if failure.phase else "")


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


_TIME, _PHASE, _ALLOCATED, _RESERVED, _DEVICE, _HOST = 0, 1, 3, 4, 5, 6  # positions in a timeline point
_COLOURED = frozenset(phase.name for phase in ALL if phase.colours)
_MOST_POINTS, _MOST_SMALL_POINTS = 1000, 60
_ODD = 0.05  # of the median peak: a rank that is further off stands out


def memory_over_time(run: RunReport, *, scale: float = 0.0) -> Markup | None:
    """The rank that is shown: what was allocated, reserved and used of the device, phases behind it.
    ``scale``: bytes that at least reach to the top, where runs are compared."""
    rank = shown_rank(run)
    if rank is None:
        return None
    fields = (
        [("allocated", _ALLOCATED, "s0"), ("reserved by the allocator", _RESERVED, "s1"),
         ("used of the device", _DEVICE, "s2")]
        if run.gpu_measured else [("host memory (resident)", _HOST, "s0")]
    )  # fmt: skip
    lines = [
        charts.Line(label=name, points=measured.thinned(points, _MOST_POINTS), style=style)
        for name, field, style in fields
        if len(points := _points(rank, field)) > 1
    ]
    if not lines:
        return None
    levels = []
    pair = run.predicted_vs_measured.peak_bytes if run.predicted_vs_measured else None
    if pair and pair.predicted and run.on_gpu == run.gpu_measured:
        label = "predicted peak allocated" if run.gpu_measured else "predicted peak of host memory"
        levels.append(charts.Level(label=label, value=pair.predicted, style="predicted"))
    if run.gpu_measured and rank.device_total_bytes:
        levels.append(charts.Level(label="the card's memory", value=rank.device_total_bytes, style="limit"))
    kind = "GPU memory" if run.gpu_measured else "Host memory"
    return charts.over_time(
        f"{kind} over time, rank {rank.rank}{_among(run, rank)}", lines, levels=levels,
        spans=phase_spans(rank), marks=marks(run, rank), scale=scale,
    )  # fmt: skip


def highest(run: RunReport) -> float:
    """The highest point of :func:`memory_over_time`, in bytes."""
    rank = shown_rank(run)
    fields = (_ALLOCATED, _RESERVED, _DEVICE) if run.gpu_measured else (_HOST,)
    return max((v for field in fields for _, v in (_points(rank, field) if rank else ())), default=0.0)


def ranks_side_by_side(run: RunReport) -> list[tuple[str, Markup]]:
    """A small chart for each rank, all on one scale; the odd ones are marked. Empty for one rank."""
    ranks, _ = render.shown_ranks(run)
    if len(run.ranks) < 2:
        return []
    odd = odd_ranks(run)
    field = _ALLOCATED if run.gpu_measured else _HOST
    series = [(rank, points) for rank in ranks if len(points := _points(rank, field)) > 1]
    scale = max((value for _, points in series for _, value in points), default=0.0)
    small_charts = []
    for rank, points in series:
        line = charts.Line(
            label=f"rank {rank.rank}", points=measured.thinned(points, _MOST_SMALL_POINTS), style="s0"
        )
        caption = f"rank {rank.rank}: peak {words.size(render.measured(rank))}"
        marks = [mark for mark in own_marks(rank) if mark.style in OF_MEMORY]
        chart = charts.over_time(caption, [line], small=True, scale=scale, marks=marks)
        small_charts.append((odd.get(rank.rank, ""), chart))
    return small_charts


def odd_ranks(run: RunReport) -> dict[int, str]:
    """Ranks unlike the others, and in what: their end, their peak, their pace."""
    peaks = [value for rank in run.ranks if (value := render.measured(rank))]
    times = [rank.median_step_seconds for rank in run.ranks if rank.median_step_seconds]
    odd = {}
    for rank in run.ranks:
        reasons = [rank.state.value] if not rank.state.is_good and rank.state != "running" else []
        peak, seconds = render.measured(rank), rank.median_step_seconds
        if len(peaks) > 2 and peak and abs(peak / (statistics.median(peaks) or 1) - 1) > _ODD:
            reasons.append(f"peak {peak / statistics.median(peaks) - 1:+.0%} of the median")
        if len(times) > 2 and seconds and seconds / statistics.median(times) - 1 > _ODD:
            reasons.append(f"{seconds / statistics.median(times):.2f} times the median step time")
        if reasons:
            odd[rank.rank] = ", ".join(reasons)
    return odd


def components(run: RunReport) -> Markup | None:
    """Predicted components beside the measured total, which the probe cannot divide."""
    rank = shown_rank(run)
    predicted = run.predicted_vs_measured
    if rank is None or predicted is None or predicted.predicted_for != "plan" or not run.gpu_measured:
        return None
    parts = {
        name: size for name, size in rank.predicted_components.items() if isinstance(size, int) and size > 0
    }
    if not parts:
        return None
    stacked_parts = measured.stacked(parts, measured.styles(_predicted_components(run) or {"peak": parts}))
    allocated, reserved = rank.peak_allocated_bytes or 0, rank.peak_reserved_bytes or 0
    cached, beyond = reserved - allocated, (rank.peak_device_used_bytes or 0) - reserved
    totals = [
        ("measured: allocated", float(allocated), "m0"),
        ("measured: reserved beyond that (cached or fragmented)", float(max(0, cached)), "m1"),
        ("measured: device beyond that (CUDA context, NCCL, others)", float(max(0, beyond)), "m2"),
    ]
    rows = [
        charts.Bar(label="predicted", parts=stacked_parts, note="by component"),
        charts.Bar(label="measured", parts=totals, note="totals only"),
    ]
    limit = rank.device_total_bytes
    level = charts.Level(label="the card's memory", value=limit, style="limit") if limit else None
    return charts.bars(f"At the peak, rank {rank.rank}", rows, limit=level)


def predicted_over_time(run: RunReport) -> Markup | None:
    """What the plan says of that rank's time, by component; the probe measures totals only. Training goes
    through its phases in every step: its area is that of the phase with the highest peak."""
    rank, by_phase = shown_rank(run), _predicted_components(run)
    if rank is None or not by_phase:
        return None
    in_step = (name for name in by_phase if name in TRAINING)
    highest = max(in_step, default="", key=lambda name: sum(by_phase[name].values()))
    styles = measured.styles(by_phase)
    stacks, spans = [], phase_spans(rank)
    for span in spans:
        phase = highest if span.label == "training" else span.label
        if phase in by_phase:
            parts = measured.stacked(by_phase[phase], styles)
            stacks.append(charts.StackedArea(start=span.start, end=span.end, parts=parts))
    if not stacks:
        return None
    pair = run.predicted_vs_measured.peak_bytes if run.predicted_vs_measured else None
    seen = pair.measured if pair else None
    level = charts.Level(label="measured peak", value=seen, style="predicted") if seen else None
    caption = f"Predicted by component, rank {rank.rank}: the highest phase of a step"
    return charts.areas(caption, stacks, end=spans[-1].end, level=level)


def _predicted_components(run: RunReport) -> dict[str, dict[str, int]]:
    """Of each phase; empty where the run was not what was predicted, or no GPU was measured."""
    predicted = run.predicted_vs_measured
    if predicted is None or predicted.predicted_for is None or not run.gpu_measured:
        return {}
    return {phase: dict(parts) for phase, parts in predicted.components.items() if parts}


def phases(run: RunReport) -> Markup | None:
    """Predicted beside measured, a pair of bars for each phase."""
    predicted = run.predicted_vs_measured
    if predicted is None or not predicted.phases:
        return None
    by_phase = _predicted_components(run)
    styles = measured.styles(by_phase)
    rows = []
    for name in render.ordered_phases(predicted.phases):
        pair = predicted.phases[name]
        if pair.predicted:
            parts = [("predicted", pair.predicted, "c0")]
            if name in by_phase:
                parts = measured.stacked(by_phase[name], styles)
            rows.append(charts.Bar(label=name, parts=parts))
        if pair.measured:
            error = f"predicted {pair.error_fraction * 100:+.1f} %" if pair.error_fraction is not None else ""
            label = "" if pair.predicted else name
            rows.append(charts.Bar(label=label, parts=[("measured", pair.measured, "m0")], note=error))
    measure = "GPU memory allocated" if predicted.kind == "gpu_memory" else "host memory"
    return charts.bars(f"Peak by phase, rank {predicted.rank}: {measure}", rows) if rows else None


def step_time(run: RunReport, predicted_parts: Mapping[str, object]) -> Markup | None:
    """A step's measured time by phase, of the slowest rank, below what the plan predicts by what takes it.
    ``predicted_parts``: seconds of a step by what they are spent on; empty where nobody predicted them."""
    timed = [rank for rank in run.ranks if rank.median_step_seconds and rank.steps > 1]
    if not timed:
        return None
    rank = max(timed, key=lambda rank: rank.median_step_seconds or 0.0)
    median = rank.median_step_seconds or 0.0
    rows = []
    predicted = run.predicted_vs_measured
    if predicted is not None and predicted.predicted_for == "plan" and predicted.step_seconds is not None:
        shares = [
            (name, float(s)) for name, s in predicted_parts.items() if isinstance(s, int | float) and s > 0
        ]
        shares.sort(key=lambda part: -part[1])
        parts = [
            (f"predicted: {strategy.label(name)}", s, f"c{at % 7}") for at, (name, s) in enumerate(shares)
        ]
        if parts:
            rows.append(charts.Bar(label="predicted", parts=parts))
    whole_step = [("measured: a whole step", median, "m0")]
    rows.append(charts.Bar(label="measured", note="median step", parts=whole_step))
    by_phase = [(name, rank.phase_details.get(name, {}).get("seconds", 0)) for name in TRAINING[:3]]
    by_phase = [(name, seconds / rank.steps) for name, seconds in by_phase if is_size(seconds) and seconds]
    if by_phase:
        parts = [(f"process in {name}", s, f"m{at % 3 + 1}") for at, (name, s) in enumerate(by_phase)]
        note = "mean of all steps, the slow first ones too"
        rows.append(charts.Bar(label="process", note=note, parts=parts))
    caption = f"Time of an optimizer step, rank {rank.rank}" + (", the slowest" if len(timed) > 1 else "")
    return charts.bars(caption, rows, shown_as=format_seconds)


def shown_rank(run: RunReport) -> RankReport | None:
    """The rank that ran out of GPU memory first, else the fullest: the one with the highest measured peak.
    None where nothing was measured."""
    candidates = [rank for rank in run.ranks if render.measured(rank)]
    failure = run.first_failure
    if failure is not None and failure.oom is not None and failure.oom.memory == "gpu":
        candidates = [rank for rank in candidates if rank.rank == failure.rank] or candidates
    return worst_rank(candidates, render.measured) if candidates else None


def _among(run: RunReport, rank: RankReport) -> str:
    """Why this one is shown, where there are several ranks."""
    if len(run.ranks) < 2:
        return ""
    failure = run.first_failure
    ran_out = failure is not None and failure.oom is not None and failure.rank == rank.rank
    among = counted(len(run.ranks), "rank")
    return f", which of {among} ran out of memory" if ran_out else f", the fullest of {among}"


def phase_spans(rank: RankReport) -> list[charts.Span]:
    """The run of a rank in stretches: load, init, training (forward, backward, step), eval, save."""
    starts = phase_starts(rank)
    ends = [*(at for at, _ in starts[1:]), max((at for at, _ in _points(rank, _HOST)), default=0.0)]
    return [
        charts.Span(label=name, start=at, end=end, style=f"p-{name if name in _COLOURED else 'training'}")
        for (at, name), end in zip(starts, ends, strict=False)
        if end > at
    ]


def _points(rank: RankReport, field: int) -> list[charts.Point]:
    return sorted(
        (float(point[_TIME]), float(point[field]))
        for point in rank.timeline
        if len(point) > field and is_size(point[_TIME]) and is_size(point[field])
    )


_AT_MOST = "reserved and not allocated, at most (cached or fragmented)"
_SAMPLED = "reserved and not allocated (cached or fragmented)"
_FRAGMENTED = "fragmented: reserved and not allocated after the cache was given back"


def allocator(run: RunReport, rank: RankReport) -> Markup | None:
    """Its two peaks, the sample with the most allocated, and what it had when it ran out of memory.

    The peaks may be of different moments, so that their difference is the most that can have been left over
    when most was allocated. PyTorch gives back what it caches before an allocation fails: what is left over
    then is fragmented.
    """
    rows = []
    if rank.peak_allocated_bytes and rank.peak_reserved_bytes:
        rows.append(_bar("peaks", rank.peak_allocated_bytes, rank.peak_reserved_bytes, _AT_MOST))
    sample = _fullest_sample(rank)
    if sample is not None:
        rows.append(_bar("fullest sample", *sample, _SAMPLED))
    failure = run.first_failure
    oom = failure.oom if failure is not None and failure.rank == rank.rank else None
    if oom is not None and oom.allocated_bytes and oom.reserved_bytes:
        rows.append(_bar("out of memory", oom.allocated_bytes, oom.reserved_bytes, _FRAGMENTED))
    return charts.bars(f"Reserved by the allocator, rank {rank.rank}", rows) if rows else None


def left_over(allocated_bytes: int | None, reserved_bytes: int | None) -> tuple[int, float] | None:
    """Bytes reserved and not allocated, and their share of what is reserved; None where that is not known."""
    if allocated_bytes is None or not reserved_bytes:
        return None
    left = max(0, reserved_bytes - allocated_bytes)
    return left, left / reserved_bytes


def _bar(label: str, allocated: int, reserved: int, kind: str) -> charts.Bar:
    left, share = left_over(allocated, reserved) or (0, 0.0)
    style = {_AT_MOST: "m1", _SAMPLED: "m4", _FRAGMENTED: "m2"}[kind]
    parts = [("allocated", float(min(allocated, reserved)), "m0"), (kind, float(left), style)]
    return charts.Bar(label=label, parts=parts, note=f"{share:.1%} left over".replace("%", " %"))


def _fullest_sample(rank: RankReport) -> tuple[int, int] | None:
    samples = [
        (point[_ALLOCATED], point[_RESERVED])
        for point in rank.timeline
        if len(point) > _RESERVED and all(map(is_size, (point[_ALLOCATED], point[_RESERVED])))
    ]
    fullest = max(samples, default=(0, 0))
    return fullest if fullest[1] else None
