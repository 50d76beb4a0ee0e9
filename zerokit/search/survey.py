"""Every legal strategy with its memory and time, whether it fits or not: what a page draws of a search."""

from __future__ import annotations

from collections.abc import Sequence

from zerokit.domain.strategy import Candidate
from zerokit.errors import MemoryUnknown
from zerokit.search.misfits import KnobFamily
from zerokit.search.search import Search, fits
from zerokit.search.space import Knobs
from zerokit.search.strategies import Space, build_strategy


def survey(space: Space, most: int) -> tuple[tuple[Candidate, ...], int]:
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


def _spread(variants: Sequence[Knobs], count: int) -> list[Knobs]:
    """At most ``count`` of them, evenly: the first and the last among them."""
    if len(variants) <= count:
        return list(variants)
    last = len(variants) - 1
    return list(dict.fromkeys(variants[round(at * last / (count - 1))] for at in range(count)))


def _candidate(space: Space, family: KnobFamily, chosen: Knobs) -> Candidate | None:
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
