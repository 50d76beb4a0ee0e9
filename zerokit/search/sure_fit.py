"""A strategy that surely fits, beside a faster one that an estimate in closed form only may hold."""

from __future__ import annotations

from collections.abc import Sequence

from zerokit.domain.hardware import Cluster
from zerokit.domain.strategy import Candidate, MemoryEstimate
from zerokit.memory.closed_form import ACTIVATIONS_WITHIN, CLOSED_FORM
from zerokit.memory.components import Component
from zerokit.search.explain import strategy_words
from zerokit.search.search import SearchResult, search
from zerokit.search.strategies import Space
from zerokit.units import format_gib

LOOKED_AT = 100
"""So many of the fastest are looked at for one that surely fits."""
SURELY_FITS = "surely fits: "
"""Begins the remark beside a choice that only may fit."""
_HARDLY_SLOWER = 1.02
"""Closed forms know a step time by far less than this."""


def unsure_bytes(memory: MemoryEstimate) -> float:
    """How far an estimate may be off, where it is of a closed form; 0: it was traced or rehearsed."""
    if memory.basis != CLOSED_FORM:
        return 0.0
    return ACTIVATIONS_WITHIN * memory.worst.components.get(Component.ACTIVATIONS.value, 0)


def ranked(space: Space, result: SearchResult, *, timed: bool) -> tuple[list[Candidate], list[str]]:
    """The strategies that fit, the choice first, and what to say of a choice that only may fit."""
    if not timed or is_sure(result.ranked[0], space.cluster):
        return list(result.ranked), []
    wider = search(space, top=LOOKED_AT).ranked  # the same choice however many plans are shown
    ranking = _sure_first(wider, space.cluster)
    return ranking[: len(result.ranked)], _advice(ranking, space.cluster)


def is_sure(candidate: Candidate, cluster: Cluster) -> bool:
    """Whether the headroom is larger than the estimate may be wrong by."""
    return _headroom(candidate, cluster) >= unsure_bytes(candidate.memory)


def _headroom(candidate: Candidate, cluster: Cluster) -> int:
    """What the strategy leaves of each GPU. Bytes."""
    return cluster.gpu.driver_vram_bytes - candidate.memory.min_vram_bytes


def _sure_first(ranking: Sequence[Candidate], cluster: Cluster) -> list[Candidate]:
    """The fastest first, but for one that only may fit where a sure one is hardly slower."""
    fastest = ranking[0]
    if is_sure(fastest, cluster):
        return list(ranking)
    limit = fastest.time.step_seconds * _HARDLY_SLOWER
    sure = next((c for c in ranking if is_sure(c, cluster) and c.time.step_seconds <= limit), fastest)
    return [sure, *(candidate for candidate in ranking if candidate is not sure)]


def _advice(ranking: Sequence[Candidate], cluster: Cluster) -> list[str]:
    """The sure strategy beside a choice that only may fit, with what it costs; empty where there is none."""
    chosen, *others = ranking
    if is_sure(chosen, cluster):
        return []
    sure = next((candidate for candidate in others if is_sure(candidate, cluster)), None)
    if sure is None:
        return []
    slower = sure.time.step_seconds / chosen.time.step_seconds - 1
    zero, settings = sure.strategy.settings.zero, sure.strategy.settings
    options = [
        f"⟨zero⟩ {zero.stage}",
        f"⟨offload_optimizer⟩ {zero.offload_optimizer.device}",
        f"⟨offload_param⟩ {zero.offload_param.device}",
        f"⟨micro_batch⟩ {settings.micro_batch}",
        f"⟨global_batch⟩ {sure.strategy.global_batch}",
        f"⟨checkpointing⟩ {sure.strategy.checkpointing}",
    ]
    if zero.stage < 3:
        del options[2]
    return [
        f"{SURELY_FITS}{strategy_words(sure.strategy)}, {slower:.1%} slower, with "
        f"{format_gib(_headroom(sure, cluster), 1)} of headroom: plan with {' '.join(options)}"
    ]
