"""What a fused or chunked loss would gain over the model's own, where that takes much of the peak."""

from __future__ import annotations

from zerokit.domain.strategy import REHEARSED, Candidate
from zerokit.memory.components import Component
from zerokit.memory.fused_loss import FUSED_LOSS_SAVES
from zerokit.search.explain import gain_words
from zerokit.search.request import Request
from zerokit.search.search import search
from zerokit.search.space import unmodelled_with_loss
from zerokit.search.strategies import Space
from zerokit.units import format_gib
from zerokit.values import replace

_LARGE_SHARE = 0.15
"""Of the peak, from which the loss is worth a remark: a choice."""
_WORTH_SAYING_GAIN = 1.02
"""How many times as fast a plan must be for its gain to be named: a choice."""
FASTER_WITH_LOSS = "⟨loss⟩ chunked (TRL) or liger (Trainer) would make it "
"""Begins the remark on a loss with which a plan is faster."""


def on_loss(request: Request, space: Space, chosen: Candidate) -> tuple[str, ...]:
    """The options that fuse head and loss, and what they gain: time, or else memory.

    A rehearsed script computes its own loss, whatever is asked for.
    """
    worst, job = chosen.memory.worst, space.job
    loss = worst.components.get(Component.LOSS, 0)
    if job.inference or job.loss != "standard" or loss <= _LARGE_SHARE * worst.peak_allocated_bytes:
        return ()
    saves = (
        f"would save up to {format_gib(loss * FUSED_LOSS_SAVES, 1)}: the loss over a vocabulary of "
        f"{space.shape.vocab:,} takes {format_gib(loss, 1)} of the peak"
    )
    if chosen.memory.basis == REHEARSED:
        return (f"a fused (chunked) cross-entropy in the script {saves}",)
    fused = replace(job, loss="chunked")
    if with_what := unmodelled_with_loss(fused, space.shape, space.cluster, space.pins):
        return (f"a fused (chunked) cross-entropy {saves}; ⟨loss⟩ is not modelled with {with_what}",)
    faster = _fastest(request, replace(space, job=fused), chosen) if request.timed else None
    if faster is not None:
        return (f"{FASTER_WITH_LOSS}{gain_words(faster, chosen)} faster",)
    return (f"⟨loss⟩ chunked (TRL) or liger (Trainer) {saves}",)


def _fastest(request: Request, space: Space, chosen: Candidate) -> Candidate | None:
    """The fastest with another loss, if it is clearly faster than the choice."""
    known = request.for_remarks()
    space = replace(space, memory=known.memory, least_vram=known.least_vram, host_bytes=known.host_bytes)
    ranked = search(space, top=1, limit_seconds=chosen.time.step_seconds / _WORTH_SAYING_GAIN).ranked
    return ranked[0] if ranked else None
