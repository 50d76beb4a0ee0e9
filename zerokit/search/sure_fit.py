"""A strategy that surely fits, beside a faster one that an estimate in closed form only may hold."""

from __future__ import annotations

from zerokit.domain.hardware import Cluster
from zerokit.domain.strategy import Candidate, MemoryEstimate
from zerokit.memory.closed_form import ACTIVATIONS_WITHIN, CLOSED_FORM
from zerokit.memory.components import Component
from zerokit.search.explain import pace_words
from zerokit.search.search import search
from zerokit.search.strategies import Space
from zerokit.units import format_gib

LOOKED_AT = 100
"""So many of the fastest are looked at for one that surely fits."""
WORST_ERROR = 0.0092
"""Of a traced peak, in 357 runs on H200s (docs/accuracy.md; a test compares them)."""
NARROW = "a narrow fit: "
"""Begins the remark beside a traced choice with next to no headroom."""
SURELY_FITS = "surely fits, "
"""Begins the remark beside a choice that only may fit."""


def unsure_bytes(memory: MemoryEstimate) -> float:
    """How far an estimate may be off, where it is of a closed form; 0: it was traced or rehearsed."""
    if memory.basis != CLOSED_FORM:
        return 0.0
    return ACTIVATIONS_WITHIN * memory.worst.components.get(Component.ACTIVATIONS.value, 0)


def advise(space: Space, chosen: Candidate, *, timed: bool) -> list[str]:
    """What to say of a choice that only may fit: the fastest strategy that surely does, and what it costs.

    The choice stays the fastest: a slower one that fits more surely would make a GPU with more memory, in
    which it surely fits as well, slower than one with less.
    """
    if not timed or is_sure(chosen, space.cluster):
        return []
    wider = search(space, top=LOOKED_AT).ranked  # the same remark however many plans are shown
    sure = next((candidate for candidate in wider if is_sure(candidate, space.cluster)), None)
    return [] if sure is None else [_words(sure, chosen, space.cluster)]


def narrow(chosen: Candidate, cluster: Cluster) -> list[str]:
    """What to say of a traced choice that leaves less than predictions of measured runs were off by."""
    room, memory = _headroom(chosen, cluster), chosen.memory
    off = int(WORST_ERROR * memory.worst.peak_allocated_bytes)
    if memory.basis != "traced" or cluster.gpu.name == "cpu" or not 0 <= room < off:
        return []
    total = cluster.gpu.driver_vram_bytes - off
    return [
        f"{NARROW}{format_gib(room, 1)} is less than predictions of measured runs were off by at worst "
        f"({WORST_ERROR:.1%} of the peak, here {format_gib(off, 1)}; half of them by less than 0.001%): "
        f"⟨vram⟩ {total >> 20}MiB plans with that much to spare"
    ]


def is_sure(candidate: Candidate, cluster: Cluster) -> bool:
    """Whether the headroom is larger than the estimate may be wrong by."""
    return _headroom(candidate, cluster) >= unsure_bytes(candidate.memory)


def _headroom(candidate: Candidate, cluster: Cluster) -> int:
    """What the strategy leaves of each GPU. Bytes."""
    return cluster.gpu.driver_vram_bytes - candidate.memory.min_vram_bytes


def _words(sure: Candidate, chosen: Candidate, cluster: Cluster) -> str:
    """How much slower the sure strategy is, its headroom, and the options that plan it."""
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
    return (
        f"{SURELY_FITS}{pace_words(slower)}, with "
        f"{format_gib(_headroom(sure, cluster), 1)} of headroom: plan with {' '.join(options)}"
    )
