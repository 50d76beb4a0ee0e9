"""Every strategy that a plan chose from, for its page: what each takes, and which no other beats."""

from __future__ import annotations

from collections.abc import Sequence

from zerokit.domain.strategy import Candidate
from zerokit.planner.plan_result import PlanResult
from zerokit.values import frozen_dataclass

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
    from zerokit.search.fewer_gpus import on_cluster
    from zerokit.search.plan import make_space
    from zerokit.search.search import fits
    from zerokit.search.survey import survey as surveyed

    if result.script is not None:
        ranked = result.plan.alternatives
        return Survey(fitting=ranked, legal=len(ranked) + 1)
    options = {name.replace("-", "_"): value for name, value in result.request.items()}
    space = on_cluster(make_space(resolve(options, say=silent).request)[0], result.cluster)
    candidates, legal = surveyed(space, _MOST)
    others = sorted(
        (candidate for candidate in candidates if candidate.strategy != result.plan.chosen.strategy),
        key=lambda candidate: candidate.time.step_seconds,
    )
    fitting = [fits(candidate.memory, result.cluster) is None for candidate in others]
    return Survey(
        fitting=tuple(candidate for candidate, fit in zip(others, fitting, strict=True) if fit),
        misfits=tuple(candidate for candidate, fit in zip(others, fitting, strict=True) if not fit),
        legal=legal,
        is_whole=True,
    )


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
