"""How sure a choice is: its headroom, its time, and what is as good, simpler, or fits more surely."""

from __future__ import annotations

from collections.abc import Sequence

from zerokit.domain.hardware import DEFAULT_MARGIN, Gpu
from zerokit.domain.strategy import Candidate, MemoryEstimate, Strategy
from zerokit.notes import Note
from zerokit.search.engines import engine_of
from zerokit.search.explain import pace_words, strategy_words
from zerokit.search.search import search
from zerokit.search.space import Request, Space
from zerokit.timing.ranges import measured_on_no_machine, step_range, turned_by
from zerokit.timing.step_time import TimeModel
from zerokit.units import GIB, format_gib
from zerokit.values import replace


def with_range(candidate: Candidate, timing: TimeModel) -> Candidate:
    """The candidate with the range of its step time, and what of its hardware was never measured."""
    seconds_range = step_range(timing, candidate.strategy, candidate.memory)
    none = measured_on_no_machine(timing, candidate.strategy)
    time = replace(candidate.time, step_seconds_range=seconds_range, measured_on_no_machine=none)
    return replace(candidate, time=time)


def close_call(chosen: Candidate, others: Sequence[Candidate], timing: TimeModel) -> tuple[Note, ...]:
    """The first of the next best that may be faster than the choice, and what tells; empty: none may."""
    for rival in others:
        turn = turned_by(timing, chosen.strategy, rival.strategy)
        if turn is not None:
            what_tells = f"{turn.told_by} or `zerokit tune`" if turn.told_by else "`zerokit tune`"
            words = strategy_words(rival.strategy)
            text = f"{turn.name} decides between the choice and {words}: {what_tells} tells which is faster"
            return (Note("close-call", text, "advice"),)
    return ()


def headroom_bytes(memory: MemoryEstimate, gpu: Gpu) -> int:
    """What is left of each GPU; negative: so much is lacking."""
    return gpu.driver_vram_bytes - memory.min_vram_bytes


def is_sure(memory: MemoryEstimate, gpu: Gpu) -> bool:
    """Whether the headroom is at least what the estimate may be off by."""
    return headroom_bytes(memory, gpu) >= memory.unsure_bytes


def is_roomy(candidate: Candidate, gpu: Gpu) -> bool:
    """Whether a strategy surely fits and leaves a GiB."""
    return is_sure(candidate.memory, gpu) and headroom_bytes(candidate.memory, gpu) >= GIB


def headroom_words(memory: MemoryEstimate, gpu: Gpu) -> str:
    """``1.7 GiB headroom``; with how far the estimate may be off, where that is more:
    ``0.6 ± 4.6 GiB headroom``."""
    left = format_gib(headroom_bytes(memory, gpu), 1)
    if is_sure(memory, gpu) or not memory.unsure_bytes:
        return f"{left} headroom"
    return f"{left.removesuffix(' GiB')} ± {format_gib(memory.unsure_bytes, 1)} headroom"


def remark(candidate: Candidate, gpu: Gpu) -> str:
    """Of a strategy that is named as one that fits: ``may fit: 0.6 ± 4.6 GiB headroom``, ``barely: 0.1 GiB
    headroom``; empty where it is roomy."""
    if is_roomy(candidate, gpu):
        return ""
    word = "barely" if is_sure(candidate.memory, gpu) else "may fit"
    return f"{word}: {headroom_words(candidate.memory, gpu)}"


NOISE = 0.02
"""Of a step, up to which two predicted times are alike. The steps of one run alone on its host differ as
much: by 0.5 to 4 % in ZeRO-1 and 2 runs of Llama-3.1-8B on four H100s and H200s, by more under ZeRO-3."""


def simplest(space: Space, fastest: Candidate) -> Candidate:
    """The simplest strategy that is as fast as the fastest but for :data:`NOISE`, and fits as surely; of
    these its fastest."""
    for pins in engine_of(space).simpler(space, fastest):
        if (simpler := as_fast(replace(space, pins=pins), fastest)) is not None:
            return simpler
    return fastest


def as_fast(space: Space, fastest: Candidate) -> Candidate | None:
    """The fastest strategy of a part of the space, if it is as fast as the fastest of all but for
    :data:`NOISE`, and fits as surely."""
    gpu, limit = space.cluster.gpu, fastest.time.step_seconds * (1 + NOISE)
    found = next(iter(search(space, top=1, limit_seconds=limit).ranked), None)
    if found is None or (is_sure(fastest.memory, gpu) and not is_sure(found.memory, gpu)):
        return None
    return found


LOOKED_AT = 100
"""So many of the fastest are looked at for one that surely fits."""
WORST_ERROR = 0.0092
"""Of a traced peak, in 357 runs on H200s (docs/accuracy.md; a test compares them)."""


def advise(space: Space, chosen: Candidate, request: Request) -> list[Note]:
    """What to say of a choice that only may fit: the fastest strategy that surely does, and what it costs.

    The choice stays the fastest: a slower one that fits more surely would make a GPU with more memory, in
    which it surely fits as well, slower than one with less.
    """
    if space.cluster.on_cpu or is_sure(chosen.memory, space.cluster.gpu):
        return []
    wider = search(space, top=LOOKED_AT).ranked  # the same remark however many plans are shown
    gpu = space.cluster.gpu
    sure = next((candidate for candidate in wider if is_sure(candidate.memory, gpu)), None)
    if sure is None:
        return []
    slower = pace_words(sure.time.step_seconds / chosen.time.step_seconds - 1)
    room = format_gib(headroom_bytes(sure.memory, gpu), 1)
    text = f"surely fits, {slower}, with {room} of headroom: plan with {_options(sure.strategy, request)}"
    return [Note("surely-fits", text, "advice")]


def narrow(chosen: Candidate, request: Request) -> list[Note]:
    """What to say of a traced choice that leaves less than predictions of measured runs were off by."""
    cluster, memory = request.cluster, chosen.memory
    room = headroom_bytes(memory, cluster.gpu)
    off = int(WORST_ERROR * memory.worst.peak_allocated_bytes)
    if memory.basis != "traced" or cluster.on_cpu or not 0 <= room < off:
        return []
    said = (
        f"may run out of memory: {format_gib(room, 1)} of headroom, and predictions of measured runs were "
        f"off by up to {WORST_ERROR:.1%} of the peak (here {format_gib(off, 1)}; half of them by less than "
        "0.001%)"
    )
    remedy = "plan without ⟨margin⟩" if request.cluster.margin < DEFAULT_MARGIN else "no strategy leaves more"
    return [Note("narrow", f"{said}; {remedy}", "advice", "warning")]


def _options(strategy: Strategy, request: Request) -> str:
    """What plans this strategy, but for what the request fixes already: written after the options that were
    given, none of them stands there twice."""
    settings, pins = strategy.settings, request.pins
    options = (
        ("zero", settings.zero_stage, pins.zero_stage),
        ("offload_optimizer", settings.optimizer_device, pins.offload_optimizer),
        ("offload_param", settings.weights_device if settings.divides_weights else None, pins.offload_param),
        ("micro_batch", settings.micro_batch, pins.micro_batch),
        ("global_batch", strategy.global_batch, request.job.global_batch),
        ("checkpointing", strategy.checkpointing, pins.checkpointing),
    )
    return " ".join(
        f"⟨{name}⟩ {value}" for name, value, fixed in options if value is not None and fixed is None
    )
