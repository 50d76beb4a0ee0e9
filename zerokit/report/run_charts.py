"""The charts of one run: memory over time, ranks side by side, components, phases."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from typing import TYPE_CHECKING

from zerokit.domain import time_parts
from zerokit.domain.phases import ALL
from zerokit.report import charts, component_parts, figure_text, render, run_events
from zerokit.report.schema import RankReport, RunReport
from zerokit.report.worst_rank import worst_rank
from zerokit.units import counted, format_seconds

if TYPE_CHECKING:
    from markupsafe import Markup

_TIME, _ALLOCATED, _RESERVED, _DEVICE, _HOST = 0, 3, 4, 5, 6  # positions in a timeline point
_COLOURED = frozenset(phase.name for phase in ALL if phase.colours)
_MOST_POINTS, _MOST_SMALL_POINTS = 1000, 60
_ODD = 0.05  # of the median peak: a rank that is further off stands out


def memory_over_time(run: RunReport, *, scale: float = 0.0) -> Markup | None:
    """The rank that is shown: what was allocated, reserved and used of the device, phases behind it.

    Args:
        scale: bytes that at least reach to the top, where runs are compared.
    """
    rank = shown_rank(run)
    if rank is None:
        return None
    fields = (
        [("allocated", _ALLOCATED, "s0"), ("reserved by the allocator", _RESERVED, "s1"),
         ("used of the device", _DEVICE, "s2")]
        if run.gpu_measured else [("host memory (resident)", _HOST, "s0")]
    )  # fmt: skip
    lines = [
        charts.Line(label=name, points=charts.thinned(points, _MOST_POINTS), style=style)
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
        spans=phase_spans(rank), marks=run_events.marks(run, rank), scale=scale,
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
            label=f"rank {rank.rank}", points=charts.thinned(points, _MOST_SMALL_POINTS), style="s0"
        )
        caption = f"rank {rank.rank}: peak {figure_text.size(render.measured(rank))}"
        marks = [mark for mark in run_events.own_marks(rank) if mark.style in run_events.OF_MEMORY]
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
    stacked_parts = component_parts.stacked(
        parts, component_parts.styles(_predicted_components(run) or {"peak": parts})
    )
    rows = [
        charts.Bar(label="predicted", parts=stacked_parts, note="by component"),
        charts.Bar(label="measured", parts=_measured_parts(rank), note="totals only"),
    ]
    limit = rank.device_total_bytes
    level = charts.Level(label="the card's memory", value=limit, style="limit") if limit else None
    return charts.bars(f"At the peak, rank {rank.rank}", rows, limit=level)


def predicted_over_time(run: RunReport) -> Markup | None:
    """What the plan says of that rank's time, by component; the probe measures totals only.

    Training goes through its phases in every step: its area is that of the phase with the highest peak.
    """
    rank, by_phase = shown_rank(run), _predicted_components(run)
    if rank is None or not by_phase:
        return None
    highest = max(
        (name for name in by_phase if name in run_events.TRAINING),
        default="",
        key=lambda n: sum(by_phase[n].values()),
    )
    styles = component_parts.styles(by_phase)
    stacks, spans = [], phase_spans(rank)
    for span in spans:
        phase = highest if span.label == "training" else span.label
        if phase in by_phase:
            stacks.append(
                charts.StackedArea(
                    start=span.start, end=span.end, parts=component_parts.stacked(by_phase[phase], styles)
                )
            )
    if not stacks:
        return None
    pair = run.predicted_vs_measured.peak_bytes if run.predicted_vs_measured else None
    level = (
        charts.Level(label="measured peak", value=pair.measured, style="predicted")
        if pair and pair.measured
        else None
    )
    caption = f"Predicted by component, rank {rank.rank}: the highest phase of a step"
    return charts.areas(caption, stacks, end=spans[-1].end, level=level)


def _predicted_components(run: RunReport) -> dict[str, dict[str, int]]:
    """Of each phase; empty where the run was not what was predicted, or no GPU was measured."""
    predicted = run.predicted_vs_measured
    if predicted is None or predicted.predicted_for is None or not run.gpu_measured:
        return {}
    return {phase: dict(parts) for phase, parts in predicted.components.items() if parts}


def _measured_parts(rank: RankReport) -> list[tuple[str, float, str]]:
    allocated, reserved = rank.peak_allocated_bytes or 0, rank.peak_reserved_bytes or 0
    device = rank.peak_device_used_bytes or 0
    return [
        ("measured: allocated", float(allocated), "m0"),
        ("measured: reserved beyond that (cached or fragmented)", float(max(0, reserved - allocated)), "m1"),
        ("measured: device beyond that (CUDA context, NCCL, others)", float(max(0, device - reserved)), "m2"),
    ]


def phases(run: RunReport) -> Markup | None:
    """Predicted beside measured, a pair of bars for each phase."""
    predicted = run.predicted_vs_measured
    if predicted is None or not predicted.phases:
        return None
    by_phase = _predicted_components(run)
    styles = component_parts.styles(by_phase)
    rows = []
    for name in render.ordered_phases(predicted.phases):
        pair = predicted.phases[name]
        if pair.predicted:
            parts = (
                component_parts.stacked(by_phase[name], styles)
                if name in by_phase
                else [("predicted", pair.predicted, "c0")]
            )
            rows.append(charts.Bar(label=name, parts=parts))
        if pair.measured:
            error = f"predicted {pair.error_fraction * 100:+.1f} %" if pair.error_fraction is not None else ""
            rows.append(
                charts.Bar(
                    label="" if pair.predicted else name,
                    parts=[("measured", pair.measured, "m0")],
                    note=error,
                )
            )
    measure = "GPU memory allocated" if predicted.kind == "gpu_memory" else "host memory"
    return charts.bars(f"Peak by phase, rank {predicted.rank}: {measure}", rows) if rows else None


def step_time(run: RunReport, predicted_parts: Mapping[str, object]) -> Markup | None:
    """A step's measured time by phase, of the slowest rank, below what the plan predicts by what takes it.

    Args:
        predicted_parts: seconds of a step by what they are spent on; empty where nobody predicted them.
    """
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
            (f"predicted: {time_parts.label(name)}", s, f"c{at % 7}") for at, (name, s) in enumerate(shares)
        ]
        if parts:
            rows.append(charts.Bar(label="predicted", parts=parts))
    rows.append(
        charts.Bar(
            label="measured",
            note="median step",
            parts=[("measured: a whole step", median, "m0")],
        )
    )
    by_phase = _seconds_per_step(rank)
    if by_phase:
        parts = [(f"process in {name}", s, f"m{at % 3 + 1}") for at, (name, s) in enumerate(by_phase)]
        rows.append(
            charts.Bar(label="process", note="mean of all steps, the slow first ones too", parts=parts)
        )
    caption = f"Time of an optimizer step, rank {rank.rank}" + (", the slowest" if len(timed) > 1 else "")
    return charts.bars(caption, rows, shown_as=format_seconds)


def _seconds_per_step(rank: RankReport) -> list[tuple[str, float]]:
    """How long a rank's process was in each phase of training, per step."""
    points = []
    for name in run_events.TRAINING[:3]:
        seconds = rank.phase_details.get(name, {}).get("seconds")
        if isinstance(seconds, int | float) and math.isfinite(seconds) and seconds > 0:
            points.append((name, seconds / rank.steps))
    return points


def shown_rank(run: RunReport) -> RankReport | None:
    """The rank that ran out of GPU memory first, else the fullest: the one with the highest measured peak.

    None where nothing was measured.
    """
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
    spans: list[charts.Span] = []
    for at, name in run_events.phase_starts(rank):
        if spans:
            last = spans[-1]
            spans[-1] = charts.Span(label=last.label, start=last.start, end=at, style=last.style)
        spans.append(
            charts.Span(
                label=name, start=at, end=at, style=f"p-{name}" if name in _COLOURED else "p-training"
            )
        )
    if spans and rank.timeline:
        last, end = (
            spans[-1],
            max(at for at, _ in _points(rank, _HOST)) if _points(rank, _HOST) else spans[-1].end,
        )
        spans[-1] = charts.Span(
            label=last.label, start=last.start, end=max(last.start, end), style=last.style
        )
    return [span for span in spans if span.end > span.start]


def _points(rank: RankReport, field: int) -> list[charts.Point]:
    points = []
    for point in rank.timeline:
        if len(point) > field and run_events.is_size(point[_TIME]) and run_events.is_size(point[field]):
            points.append((float(point[_TIME]), float(point[field])))
    return sorted(points)
