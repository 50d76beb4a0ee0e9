"""A plan as one self-contained HTML page: the answer, where memory goes, what else fits, why others lost."""

from __future__ import annotations

import itertools
import json
import shlex
import time
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from zerokit import __version__
from zerokit.domain import strategy
from zerokit.domain.deepspeed_settings import DEEPSPEED_VERSION
from zerokit.domain.settings import value_at
from zerokit.domain.strategy import Candidate
from zerokit.emit.files import emitter_of
from zerokit.errors import MemoryUnknown
from zerokit.fields import all_as_options, as_options
from zerokit.planner import answer, documents
from zerokit.planner.plan_result import PlanResult
from zerokit.report import charts, measured
from zerokit.report.context import made_at, script_and_model
from zerokit.report.html import fill
from zerokit.search.engine import Sizes
from zerokit.search.engines import build_strategy
from zerokit.search.explain import cluster_words, strategy_words
from zerokit.search.search import KnobFamily, Search, fits
from zerokit.search.space import Space
from zerokit.units import counted, format_count, format_gib, format_seconds
from zerokit.values import frozen_dataclass

if TYPE_CHECKING:
    from markupsafe import Markup

    from zerokit.domain.strategy import RankEstimate


def surveyed(space: Space, most: int) -> tuple[tuple[Candidate, ...], int]:
    """The candidates, in the order of their families; and how many are legal.

    ``most``: where more are legal, so many settings of each family that they are about as many; its fastest
    and its most frugal are always among them. Left out is what nobody knows the memory of.
    """
    families = list(Search(space, top=0).families())
    legal = sum(len(family.variants) for family in families)
    share = legal if legal <= most else max(2, most // len(families))
    candidates = tuple(
        candidate
        for family in families
        for chosen in _spread(family.variants, share)
        if (candidate := _candidate(space, family, chosen)) is not None
    )
    return candidates, legal


def _spread(variants: Sequence[Sizes], count: int) -> list[Sizes]:
    """At most ``count`` of them, evenly: the first and the last among them."""
    if len(variants) <= count:
        return list(variants)
    last = len(variants) - 1
    return list(dict.fromkeys(variants[round(at * last / (count - 1))] for at in range(count)))


def _candidate(space: Space, family: KnobFamily, chosen: Sizes) -> Candidate | None:
    strategy = build_strategy(
        space, family.layout, family.placement, family.checkpointing, family.micro_batch,
        family.accumulation, chosen,
    )  # fmt: skip
    try:
        memory = space.memory(space.job, strategy, space.cluster)
    except MemoryUnknown:
        return None
    time = space.timing.estimate(strategy)
    if fits(memory, space.cluster) is None:
        time = space.timing.with_retries(time, strategy, memory)
    return Candidate(strategy=strategy, memory=memory, time=time)


_MOST = 2000


@frozen_dataclass
class Survey:
    """Strategies beside the choice.

    Attributes:
        fitting: by step time; those alike but for their settings have one family.
        misfits: those that require more memory than there is.
        legal: how many the rules allow, of which those above were estimated.
        is_whole: whether it was the whole space that was looked through, not a plan's ranking alone.
    """

    fitting: tuple[Candidate, ...] = ()
    misfits: tuple[Candidate, ...] = ()
    legal: int = 0
    is_whole: bool = False


def survey(result: PlanResult) -> Survey:
    """Look through the whole space of a plan. Of a plan for a script: what was ranked, for its memory is
    known by rehearsals."""
    from zerokit.planner.memory_source import silent
    from zerokit.planner.request import resolve
    from zerokit.search.plan import make_space
    from zerokit.search.remedies import on_cluster

    if result.script is not None:
        return _ranked(result)
    options = {name.replace("-", "_"): value for name, value in result.request.items()}
    options["engine"] = result.plan.chosen.strategy.engine
    space = on_cluster(make_space(resolve(options, say=silent).request)[0], result.cluster)
    candidates, legal = surveyed(space, _MOST)
    others = sorted(
        (candidate for candidate in candidates if candidate.strategy != result.plan.chosen.strategy),
        key=lambda candidate: candidate.time.step_seconds,
    )
    fitting = tuple(candidate for candidate in others if fits(candidate.memory, result.cluster) is None)
    misfits = tuple(candidate for candidate in others if fits(candidate.memory, result.cluster) is not None)
    return Survey(fitting=fitting, misfits=misfits, legal=legal, is_whole=True)


def _ranked(result: PlanResult) -> Survey:
    return Survey(fitting=result.plan.alternatives, legal=len(result.plan.alternatives) + 1)


def frontier(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Those that no other beats in step time and required memory, the fastest first."""
    best: list[Candidate] = []
    for candidate in sorted(candidates, key=lambda one: (one.time.step_seconds, one.memory.min_vram_bytes)):
        if not best or candidate.memory.min_vram_bytes < best[-1].memory.min_vram_bytes:
            best.append(candidate)
    return best


def fastest_by_family(candidates: Sequence[Candidate]) -> list[Candidate]:
    """The first of each family, of candidates by step time."""
    by_family: dict[object, Candidate] = {}
    for candidate in candidates:
        by_family.setdefault(candidate.strategy.family, candidate)
    return list(by_family.values())


@frozen_dataclass
class PlanPage:
    """What a page says beside its plan.

    Attributes:
        folder: where the plan's files are.
        command: the words that were typed; empty where there were none.
        script: the words of the script that was planned for, with its arguments; empty: there is none.
        program: what the user calls zerokit.
        written_at: Unix seconds.
    """

    folder: str
    command: Sequence[str] = ()
    script: Sequence[str] = ()
    program: str = "zerokit"
    written_at: float


def plan_page(result: PlanResult, page: PlanPage, *, others: Survey) -> str:
    """The page. ``others``: the strategies that the choice is shown among."""
    planned, job, strategy = result.chosen, result.job, result.chosen.strategy
    subject = f"{result.model_name} on {cluster_words(result.cluster)}"
    command = [("command", shlex.join((page.program, *page.command)))] if page.command else []
    next_step = result.run_command(page.folder, page.script)
    next_step = next_step.replace("zerokit", page.program, 1)
    return fill(
        "plan.html.j2",
        title=f"Plan for {subject}",
        tab=script_and_model(next((word for word in page.script if word not in _MODULE), None), subject),
        fits=bool(planned.fits),
        answer=[
            *([answer.fails(result.to_fix)] if result.to_fix else []),
            as_options(documents.fits(planned)),
            documents.pace(planned),
            *([result.against.words] if result.against and result.against.words else []),
            *documents.pace_notes(planned),
            *([as_options(result.plan.left_idle)] if result.plan.left_idle else []),
            as_options(planned.candidate.why),
        ],
        facts=[
            ("model", f"{result.model_name}, {format_count(result.parameters)} parameters"),
            *documents.facts(planned),
            ("memory from", _BASES.get(planned.estimate.basis, planned.estimate.basis)),
            *command,
            ("made", made_at(page.written_at)),
            ("zerokit", __version__),
            ("DeepSpeed", DEEPSPEED_VERSION),
        ],
        todo=() if page.script else answer.script_must(strategy, job),
        next=answer.fix_first(result.to_fix) if result.to_fix else next_step,
        components=_components(result),
        phases=_phases(result),
        times=_times(result),
        frontier=_frontier(result, others) if not result.cluster.on_cpu and others.fitting else None,
        frontier_note=_frontier_note(result, others),
        alternatives=[as_options(alternative.candidate.why) for alternative in result.alternatives],
        rejected=[
            (as_options(answer.why_rejected(reason)), f"{count:,}")
            for reason, count in result.plan.rejected.items()
        ],
        assumptions=all_as_options(result.plan.assumptions),
        advice=all_as_options((*result.plan.advice, *result.plan.faster_with)),
        settings=_settings(result),
    )


def framed(result: PlanResult) -> str:
    """The page in a frame that opens, for a notebook. The choice is shown among the plans that were kept:
    a look through the whole space takes seconds."""
    page = PlanPage(folder=result.folder, script=result.launched_words, written_at=time.time())
    text = plan_page(result, page, others=_ranked(result))
    frame = (
        f'<iframe srcdoc="{escape(text)}" title="the plan" style="width:100%;height:40em;border:0"></iframe>'
    )
    return f"<details><summary>Memory, time and other plans</summary>{frame}</details>"


_MODULE = ("-m", "--module")
"""Stands before the script's name where it is a module."""
_BASES = {
    "traced": "a trace of the model",
    "rehearsed": "a rehearsal of the script",
    "analytic": "closed forms",
}


def _times(result: PlanResult) -> Markup | None:
    """The predicted step, by what takes it; None where no time is predicted."""
    parts = sorted(result.chosen.estimate.time_parts.items(), key=lambda item: -item[1])
    if not parts:
        return None
    coloured = [
        (strategy.label(name), seconds, f"c{number % 7}") for number, (name, seconds) in enumerate(parts)
    ]
    return charts.bars(
        "Predicted time of an optimizer step", [charts.Bar(label="step", parts=coloured)],
        shown_as=format_seconds,
    )  # fmt: skip


def _components(result: PlanResult) -> Markup:
    worst = result.chosen.candidate.memory.worst
    parts = measured.stacked(worst.components, measured.styles(_by_phase(worst)))
    required = result.chosen.candidate.memory.min_vram_bytes
    around = result.chosen.estimate.around_peak
    if not around:
        around = {"around it": required - worst.peak_allocated_bytes}
    device = result.chosen.device
    rows = [
        charts.Bar(label="at the peak", parts=parts, note=f"in {worst.peak_phase}"),
        charts.Bar(
            label="required",
            parts=[
                ("peak allocated", float(worst.peak_allocated_bytes), "m0"),
                *((name, float(max(0, size)), f"m{at}") for at, (name, size) in enumerate(around.items(), 1)),
            ],
            note=f"per {device}",
        ),
    ]
    available = result.cluster.gpu.driver_vram_bytes
    limit = charts.Level(label=f"available per {device}", value=available, style="limit")
    return charts.bars("Predicted, worst rank", rows, limit=limit)


def _by_phase(worst: RankEstimate) -> Mapping[str, Mapping[str, int]]:
    return worst.phase_components or {worst.peak_phase: worst.components}


def _phases(result: PlanResult) -> Markup:
    worst = result.chosen.candidate.memory.worst
    colours = measured.styles(_by_phase(worst))
    rows = [
        charts.Bar(
            label=name,
            parts=measured.stacked(worst.phase_components[name], colours)
            if name in worst.phase_components
            else [("predicted peak allocated", float(size), "c0")],
        )
        for name, size in worst.phases.items()
    ]
    return charts.bars("Predicted peak by phase", rows)


def _frontier(result: PlanResult, others: Survey) -> Markup:
    chosen = result.plan.chosen
    best = frontier([chosen, *others.fitting])
    shown = {id(candidate) for candidate in (chosen, *best)}
    fastest = [one for one in fastest_by_family(others.fitting) if id(one) not in shown]
    shown.update(map(id, fastest))
    settings = [one for one in others.fitting if id(one) not in shown]
    dots = [
        *(_dot(one, "others") for one in fastest),
        *(_dot(one, "better") for one in best if one is not chosen),
    ]
    keys = [("chosen", "the choice"), ("better", "no other is faster with less memory"),
            ("others", "fits, with its fastest settings")]  # fmt: skip
    keys += [("speck", "fits, with slower settings")] if settings else []
    available = float(result.cluster.gpu.driver_vram_bytes)
    if others.misfits:
        above = sum(one.memory.min_vram_bytes > available * charts.ABOVE_LIMIT for one in others.misfits)
        keys.append(
            ("misfit", "does not fit" + (f" ({above:,} of them are above this chart)" if above else ""))
        )
    # corners: with as much time as one takes, and less than the next, its memory is the least
    places = _places(best)
    corners = [(later[0], earlier[1]) for earlier, later in itertools.pairwise(places)]
    stairs = [*itertools.chain.from_iterable(zip(places, corners, strict=False)), *places[-1:]]
    return charts.points(
        "Memory required per GPU", [*dots, _dot(chosen, "chosen", radius=8)],
        across="seconds per optimizer step", legend=keys, frontier=stairs,
        specks={"misfit": _places(others.misfits), "speck": _places(settings)},
        limit=charts.Level(label="available per GPU", value=available, style="limit"),
    )  # fmt: skip


def _frontier_note(result: PlanResult, others: Survey) -> str:
    if not others.is_whole:
        return (
            f"The choice and {counted(len(others.fitting), 'other strategy', 'other strategies')} that fit."
        )
    fitting, estimated = 1 + len(others.fitting), 1 + len(others.fitting) + len(others.misfits)
    thinned = "" if estimated >= others.legal else f"; {estimated:,} of those were estimated"
    return (
        f"Of {result.candidates:,} candidates the rules allow {others.legal:,}{thinned}, and {fitting:,} fit."
        " The line joins those that no other beats in both time and memory. Hold the pointer over a dot to "
        "read its strategy."
    )


def _dot(candidate: Candidate, style: str, radius: float = 4) -> charts.Dot:
    seconds, required = candidate.time.step_seconds, candidate.memory.min_vram_bytes
    words = f"{strategy_words(candidate.strategy)}: {format_gib(required, 1)}, {format_seconds(seconds)}"
    return charts.Dot(across=seconds, up=float(required), style=style, title=words, radius=radius)


def _places(candidates: Sequence[Candidate]) -> list[charts.Point]:
    return [(one.time.step_seconds, float(one.memory.min_vram_bytes)) for one in candidates]


def _settings(result: PlanResult) -> list[tuple[str, str, str]]:
    strategy, job, nodes = result.chosen.strategy, result.job, result.cluster.nodes
    emitter = emitter_of(strategy)
    config = next((one for one in emitter.config(strategy, job, nodes).values() if one is not None), None)
    reasons = emitter.files(strategy, job, nodes, Path()).reasons
    return [(key, json.dumps(value_at(config, key)), why) for key, why in reasons.items()]
