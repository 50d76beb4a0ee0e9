"""Losses other than the model's own and activations on the host: where they are not modelled, and what an
answer says of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from zerokit.domain.hardware import Cluster
from zerokit.domain.job import LOSSES, Job
from zerokit.domain.model_shape import ModelShape
from zerokit.domain.strategy import Strategy
from zerokit.errors import InputError
from zerokit.planner.values import choice
from zerokit.search.space import Pins, unmodelled_with_loss

_REHEARSE = "`zerokit rehearse` runs the script with it"
_NOTES = {
    "chunked": "⟨loss⟩ chunked: that of TRL's trainers (TRL 1.16), every label a target",
    "score": "a head of one output stands for that of the words, as in a reward model",
    "liger": "⟨loss⟩ liger: Liger Kernel's fused linear cross-entropy alone (0.8.5); use_liger_kernel "
    "replaces norms, rotary embedding and MLPs too, which keep less than is counted here",
    "cut": "⟨loss⟩ cut: linear_cross_entropy of cut-cross-entropy (25.1), every label a target",
}
_TIMED = "the step time is that of the model's own loss"


def loss_of(options: Mapping[str, Any]) -> str:
    """The loss that was asked for.

    Raises:
        InputError: it is none, or one that is not modelled.
    """
    if options.get("loss") in ("tiled", "alst"):
        raise InputError(
            "⟨loss⟩ tiled: not modelled: DeepSpeed's TiledFusedLogitsLoss runs the head's "
            f"backward, and reduces its gradient, in forward; use chunked, liger or cut, or {_REHEARSE}"
        )
    return choice(options, "loss", LOSSES) or "standard"


def refuse_loss(job: Job, shape: ModelShape, cluster: Cluster, pins: Pins) -> None:
    """Refuse a loss where its bytes are not known.

    Raises:
        InputError: names the loss, and what it is not modelled with.
    """
    with_what = unmodelled_with_loss(job, shape, cluster, pins)
    if with_what is not None:
        raise InputError(f"⟨loss⟩ {job.loss}: not modelled with {with_what}; {_REHEARSE}")


def refuse_strategy(job: Job, strategy: Strategy) -> None:
    """Refuse what only the strategy shows.

    Raises:
        InputError: names the loss, and what it is not modelled with.
    """
    settings = strategy.settings
    if job.loss == "cut" and settings.precision == "fp32":
        raise InputError("⟨loss⟩ cut: cut-cross-entropy takes bf16 and fp16 alone; use chunked or liger")
    if job.loss == "standard":
        return
    if strategy.tensor_parallel > 1:
        raise InputError(f"⟨loss⟩ {job.loss}: not modelled with tensor parallelism; {_REHEARSE}")
    if settings.torch_autocast is not None:
        raise InputError(f"⟨loss⟩ {job.loss}: not modelled with torch_autocast; {_REHEARSE}")


def loss_notes(loss: str) -> tuple[str, ...]:
    """What to say of a loss."""
    return () if loss == "standard" else (f"{_NOTES[loss]}; {_TIMED}",)


def refuse_offloading(options: Mapping[str, Any], job: Job, cluster: Cluster) -> None:
    """Refuse activations on the host where their bytes are not known.

    Raises:
        InputError: names what they are not modelled with.
    """
    if not job.offload_activations:
        return
    names = ("tp", "pp", "sp", "pipeline_module", "images")
    with_what = [f"⟨{name}⟩" for name in names if options.get(name) not in (None, False, 1, "1")]
    if cluster.gpu.name == "cpu":
        with_what.append("CPU ranks")
    if options.get("model") is None:
        with_what.append("⟨params⟩: its layers are traced, which takes ⟨model⟩")
    if with_what:
        raise InputError(f"⟨offload_activations⟩: not modelled with {with_what[0]}; {_REHEARSE}")


def offloading_notes(options: Mapping[str, Any]) -> tuple[str, ...]:
    """What to say of activations on the host."""
    if not options.get("offload_activations"):
        return ()
    return (
        "activations on the host as OffloadActivations of TRL 1.16 moves them, each tensor pinned (a power "
        "of two of bytes); the step time counts no copies",
    )
