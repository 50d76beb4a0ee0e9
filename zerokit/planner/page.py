"""A plan as one self-contained HTML page: the answer, where memory goes, what else fits, why others lost."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from zerokit.emit.deepspeed import emit_deepspeed
from zerokit.fields import all_as_options, as_options
from zerokit.planner import answer
from zerokit.report import charts, component_parts
from zerokit.report.html import fill
from zerokit.search.explain import cluster_words
from zerokit.units import format_gib

if TYPE_CHECKING:
    from markupsafe import Markup

    from zerokit.domain.strategy import Candidate, RankEstimate
    from zerokit.planner.plan_result import PlanResult


def plan_page(
    result: PlanResult, folder: str, *, others: Sequence[Candidate], program: str = "zerokit"
) -> str:
    """The page. ``others``: strategies that fit as well, fastest first; ``folder``: where the files are."""
    planned, job, strategy = result.chosen, result.job, result.chosen.strategy
    title = f"Plan for {result.model_name} on {cluster_words(result.cluster)}"
    unit = "rank" if result.on_cpu else "GPU"
    return fill(
        "plan.html.j2",
        title=title,
        fits=bool(planned.fits),
        answer=[answer.fits(planned), answer.pace(planned), as_options(planned.candidate.why)],
        facts=[
            ("trains", answer.trains(job)),
            ("strategy", answer.strategy(strategy)),
            ("batch", answer.batch(strategy, job, unit)),
            ("host memory", f"{format_gib(planned.estimate.host_bytes_per_node, 1)} per node"),
            ("memory from", "a trace of the model" if planned.estimate.basis == "traced" else "closed forms"),
        ],
        todo=answer.script_must(strategy, job),
        next=f"{program} launch --plan {shlex.quote(folder)} train.py",
        components=_components(result),
        phases=_phases(result),
        frontier=_frontier(result, others) if result.timed and others else None,
        frontier_note=f"The choice and the {len(others)} next best of the strategies that fit.",
        alternatives=[as_options(other.candidate.why) for other in result.alternatives],
        rejected=[(as_options(reason), f"{count:,}") for reason, count in result.plan.rejected.items()],
        assumptions=all_as_options(result.plan.assumptions),
        advice=all_as_options((*result.plan.advice, *result.plan.faster_with)),
        settings=_settings(result),
    )


def _components(result: PlanResult) -> Markup:
    worst = result.chosen.candidate.memory.worst
    shown = component_parts.stacked(worst.components, component_parts.styles(_by_phase(worst)))
    required = result.chosen.candidate.memory.min_vram_bytes
    around = max(0, required - worst.peak_allocated_bytes)
    what = "CPU rank" if result.on_cpu else "GPU"
    rows = [
        charts.Bar(label="at the peak", parts=shown, note=f"in {worst.peak_phase}"),
        charts.Bar(
            label="required",
            parts=[
                ("peak allocated", float(worst.peak_allocated_bytes), "m0"),
                ("around it", float(around), "m1"),
            ],
            note=f"per {what}",
        ),
    ]
    available = result.cluster.gpu.driver_vram_bytes
    limit = charts.Level(label=f"available per {what}", value=available, style="limit")
    return charts.bars("Predicted, worst rank", rows, limit=limit)


def _by_phase(worst: RankEstimate) -> Mapping[str, Mapping[str, int]]:
    return worst.phase_components or {worst.peak_phase: worst.components}


def _phases(result: PlanResult) -> Markup:
    worst = result.chosen.candidate.memory.worst
    colours = component_parts.styles(_by_phase(worst))
    rows = [
        charts.Bar(
            label=name,
            parts=component_parts.stacked(worst.phase_components[name], colours)
            if name in worst.phase_components
            else [("predicted peak allocated", float(size), "c0")],
        )
        for name, size in worst.phases.items()
    ]
    return charts.bars("Predicted peak by phase", rows)


def _frontier(result: PlanResult, others: Sequence[Candidate]) -> Markup:
    chosen = result.plan.chosen
    dots = [(other.time.step_seconds, float(other.memory.min_vram_bytes), "others") for other in others]
    least = min(((memory, seconds) for seconds, memory, _ in dots), default=None)
    dots = [
        (seconds, memory, "better" if (memory, seconds) == least else style)
        for seconds, memory, style in dots
    ]
    dots.append((chosen.time.step_seconds, float(chosen.memory.min_vram_bytes), "chosen"))
    keys = [("chosen", "the choice"), ("better", "needs the least memory"), ("others", "fits too")]
    return charts.points(
        "Memory required per GPU", dots, across="seconds per optimizer step", legend=keys
    )


def _settings(result: PlanResult) -> list[tuple[str, str, str]]:
    emitted = emit_deepspeed(result.chosen.strategy, result.job)
    found = []
    for key, why in emitted.reasons.items():
        value: object = emitted.config
        for part in key.split("."):
            value = value.get(part) if isinstance(value, dict) else None
        found.append((key, json.dumps(value), why))
    return found
