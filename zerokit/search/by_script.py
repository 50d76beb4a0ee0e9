"""What a script that does its part could gain over the plan for an unmodified one."""

from __future__ import annotations

from zerokit.domain.strategy import Candidate
from zerokit.search import explain as advice
from zerokit.search.request import Request
from zerokit.search.search import search
from zerokit.search.space import Pins, divisors, layouts, unmodelled_with_loss
from zerokit.search.strategies import Space
from zerokit.values import replace

_WORTH_SAYING_GAIN = 1.02
"""How many times as fast a plan must be for a change of the script to be mentioned: a choice."""


def faster_with(request: Request, space: Space, chosen: Candidate) -> tuple[str, ...]:
    """What a script that does its part could gain: tensor and sequence parallel, pipelines."""
    if request.cluster.gpus < 2 or request.job.inference or not request.timed:
        return ()
    known = request.for_remarks()
    space = replace(space, memory=known.memory, least_vram=known.least_vram, host_bytes=known.host_bytes)
    faster = []
    for way in advice.BY_SCRIPT:
        pins = way.searched(request)
        best = _fastest(space, pins, chosen) if pins is not None else None
        if best is not None:
            words = f"{way.name} {way.degree(best.strategy)} ({advice.strategy_words(best.strategy)})"
            faster.append(
                f"{advice.gain_words(best, chosen)} faster with {words}: {way.needs}; "
                f"then plan with ⟨{way.option}⟩"
            )
    return (*faster, *_faster_pipeline(request, space, chosen))


def _faster_pipeline(request: Request, space: Space, chosen: Candidate) -> tuple[str, ...]:
    """What a script with a PipelineModule could gain."""
    if request.pins.pipeline_module or request.job.method != "full" or request.shape.head != "causal":
        return ()
    with_pipeline = replace(request.pins, pipeline_module=True)
    if unmodelled_with_loss(request.job, request.shape, request.cluster, with_pipeline):
        return ()
    best: Candidate | None = None
    for degree in divisors(request.cluster.gpus)[1:]:
        pins = replace(with_pipeline, pipeline_parallel=degree)
        best = _fastest(space, pins, chosen, best) or best
    if best is None:
        return ()
    s = best.strategy
    return (
        f"{advice.gain_words(best, chosen)} faster with {s.pipeline_parallel} pipeline stages "
        f"(tensor parallel {s.tensor_parallel}, data parallel {s.data_parallel}, "
        f"ZeRO-{s.settings.zero.stage}): needs a script that builds a DeepSpeed "
        "PipelineModule; then plan with ⟨pipeline_module⟩",
    )


def _fastest(space: Space, pins: Pins, chosen: Candidate, best: Candidate | None = None) -> Candidate | None:
    """The fastest under other pins, if it is clearly faster than the choice, and than ``best``."""
    limit = best.time.step_seconds if best is not None else chosen.time.step_seconds / _WORTH_SAYING_GAIN
    searched = frozenset(layouts(space.cluster, space.pins))  # the choice is the fastest of these
    ranked = search(replace(space, pins=pins), top=1, limit_seconds=limit, excluded=searched).ranked
    return ranked[0] if ranked else None
