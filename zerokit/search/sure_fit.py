"""A strategy that surely fits, beside a faster one that only may, or that leaves next to nothing."""

from __future__ import annotations

from zerokit.domain.hardware import DEFAULT_MARGIN, Cluster
from zerokit.domain.strategy import Candidate, MemoryEstimate, Strategy
from zerokit.search.explain import pace_words
from zerokit.search.headroom import headroom_bytes, is_sure
from zerokit.search.request import Request
from zerokit.search.search import search
from zerokit.search.strategies import Space
from zerokit.units import format_gib

LOOKED_AT = 100
"""So many of the fastest are looked at for one that surely fits."""
WORST_ERROR = 0.0092
"""Of a traced peak, in 357 runs on H200s (docs/accuracy.md; a test compares them)."""
NARROW = "may run out of memory: "
"""Begins the remark beside a traced choice with next to no headroom."""
SURELY_FITS = "surely fits, "
"""Begins the remark beside a choice that only may fit."""


def advise(space: Space, chosen: Candidate, request: Request) -> list[str]:
    """What to say of a choice that only may fit: the fastest strategy that surely does, and what it costs.

    The choice stays the fastest: a slower one that fits more surely would make a GPU with more memory, in
    which it surely fits as well, slower than one with less.
    """
    if not request.timed or is_sure(chosen.memory, space.cluster.gpu):
        return []
    wider = search(space, top=LOOKED_AT).ranked  # the same remark however many plans are shown
    gpu = space.cluster.gpu
    sure = next((candidate for candidate in wider if is_sure(candidate.memory, gpu)), None)
    if sure is None:
        return []
    costs = f"{_slower_words(sure, chosen)}, {_headroom_words(sure, space.cluster)}"
    return [f"{SURELY_FITS}{costs}: plan with {_options(sure.strategy, request)}"]


def narrow(chosen: Candidate, request: Request) -> list[str]:
    """What to say of a traced choice that leaves less than predictions of measured runs were off by."""
    cluster, memory = request.cluster, chosen.memory
    room, off = headroom_bytes(memory, cluster.gpu), _worst_error_bytes(memory)
    if memory.basis != "traced" or cluster.gpu.name == "cpu" or not 0 <= room < off:
        return []
    said = (
        f"{NARROW}{format_gib(room, 1)} of headroom, and predictions of measured runs were off by up to "
        f"{WORST_ERROR:.1%} of the peak (here {format_gib(off, 1)}; half of them by less than 0.001%)"
    )
    remedy = "plan without ⟨margin⟩" if request.cluster.margin < DEFAULT_MARGIN else "no strategy leaves more"
    return [f"{said}; {remedy}"]


def _worst_error_bytes(memory: MemoryEstimate) -> int:
    """How far predictions of measured runs were off at worst, of this peak."""
    return int(WORST_ERROR * memory.worst.peak_allocated_bytes)


def _headroom_words(candidate: Candidate, cluster: Cluster) -> str:
    return f"with {format_gib(headroom_bytes(candidate.memory, cluster.gpu), 1)} of headroom"


def _slower_words(other: Candidate, chosen: Candidate) -> str:
    return pace_words(other.time.step_seconds / chosen.time.step_seconds - 1)


def _options(strategy: Strategy, request: Request) -> str:
    """What plans this strategy, but for what the request fixes already: written after the options that were
    given, none of them stands there twice."""
    zero, settings, pins = strategy.settings.zero, strategy.settings, request.pins
    options = (
        ("zero", zero.stage, pins.zero_stage),
        ("offload_optimizer", zero.offload_optimizer.device, pins.offload_optimizer),
        ("offload_param", zero.offload_param.device if zero.stage == 3 else None, pins.offload_param),
        ("micro_batch", settings.micro_batch, pins.micro_batch),
        ("global_batch", strategy.global_batch, request.job.global_batch),
        ("checkpointing", strategy.checkpointing, pins.checkpointing),
    )
    return " ".join(
        f"⟨{name}⟩ {value}" for name, value, fixed in options if value is not None and fixed is None
    )
