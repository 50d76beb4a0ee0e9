"""What to change after a run went out of memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from zerokit.memory.components import Component
from zerokit.memory.fused_loss import FUSED_LOSS_SAVES
from zerokit.report.predicted import Plan, chosen_of, estimate_of, part
from zerokit.units import format_gib
from zerokit.values import frozen_dataclass

_ACTIVATIONS, _LOSS = Component.ACTIVATIONS.value, Component.LOSS.value
_CHECKPOINTING_SAVES = 0.8
"""About, of the activations: a layer's inputs stay. Only to rank the ways."""
_LEAST_SAVED_SHARE = 0.01
_DIVIDED_AT = {
    1: ("optimizer_states", "master_weights", "flat_gradient", "fp32_gradient"),
    2: ("gradients", "gradient_partition"),
    3: ("parameters", "frozen_parameters"),
}
"""ZeRO stage -> components that it divides among the ranks."""
TO_NEED_LESS = "to need less"
"""Stands before each way in the terminal and on the page."""
BLIND_SHARE = 0.8
"""Of the predicted peak, that is tried next where the failure did not tell how much was lacking."""
_LEAST_STEP = 0.97  # what needs all but the same would fail in the same way


def share_that_fits(oom: Mapping[str, Any]) -> float | None:
    """The share of the predicted peak that the next run may reach; None: the failure does not tell.

    At the failure ``reserved + free`` was all that the rank could get of the device (less, where a limit
    was set for the process: it could not get ``allocated + asked``). It wanted ``allocated + asked``, or at
    least what was predicted. The next prediction is to be smaller than the last by that ratio: so a
    prediction that was too low is corrected, and a device that others fill too.
    """
    names = ("reserved_bytes", "device_free_bytes", "allocated_bytes", "asked_bytes")
    values = [oom.get(name) for name in names]
    if any(value is None for value in values):
        return None
    reserved, free, allocated, requested = (int(value or 0) for value in values)
    required = max(allocated + requested, int(oom.get("predicted_peak_allocated_bytes") or 0), 1)
    return min(_LEAST_STEP, min(reserved + free, allocated + requested) / required)


def larger_than_memory(oom: Mapping[str, Any], host_bytes: int | None) -> str | None:
    """Say that one request is more than the whole GPU or host (``host_bytes``) holds, so that no plan helps;
    None where it is not."""
    on_host = oom.get("memory") == "host"
    requested, total = oom.get("asked_bytes"), host_bytes if on_host else oom.get("device_total_bytes")
    if not requested or not total or requested <= total:
        return None
    return (
        f"one request of {format_gib(requested)} is more than the whole {'host' if on_host else 'GPU'} has "
        f"({format_gib(total)}), and no plan makes room for it: look at the line that raised it, and at the "
        "batch and sequence length there"
    )


def ways_to_need_less(plan: Plan | None, share: float | None = None) -> list[str]:
    """Changes to the plan's choice that shrink its predicted peak.

    The largest micro-batch that is predicted to fit comes first, then what saves most; what saves next to
    nothing is left out. Without a prediction all of them, the one that costs least speed first. With
    ``share`` (:func:`share_that_fits`) each says what peak it leaves, and whether that suffices.
    """
    ranks = [rank for rank in estimate_of(plan).get("per_rank") or () if isinstance(rank, Mapping)]
    worst = max(ranks, key=lambda rank: rank.get("peak_allocated_bytes") or 0, default={})
    parts: Mapping[str, float] = worst.get("components") or {}
    total = sum(parts.values())
    limit = share * total if share is not None else None
    ways = _ways(plan, parts, limit)
    if not total:
        return [way.text for way in ways]
    worth = [way for way in ways if way.saved(parts) >= _LEAST_SAVED_SHARE * total]
    worth.sort(key=lambda way: -way.saved(parts))
    if limit is None:
        return [way.text for way in worth]
    worth.sort(key=lambda way: not (way.is_batch and total - way.saved(parts) <= limit))
    texts = []
    for way in worth:
        peak = total - way.saved(parts)
        does = "fits" if peak <= limit else "alone not enough for"
        texts.append(f"{way.text}: predicted peak about {format_gib(peak, 1)}, {does} {format_gib(limit, 1)}")
    return texts


@frozen_dataclass
class _Way:
    """A change, and the share that it saves of each component of the peak."""

    text: str
    saves: Mapping[str, float]
    is_batch: bool = False

    def saved(self, parts: Mapping[str, float]) -> float:
        """Bytes that it saves of a peak."""
        return sum(share * parts.get(name, 0) for name, share in self.saves.items())


def _ways(plan: Plan | None, parts: Mapping[str, float], limit: float | None) -> list[_Way]:
    chosen, request, ways = chosen_of(plan), part(plan, "request"), list[_Way]()
    if chosen.get("activation_checkpointing") in ("none", "selective"):
        ways.append(_Way(text="--checkpointing full", saves={_ACTIVATIONS: _CHECKPOINTING_SAVES}))
    smaller = _smaller_batches(chosen)
    fitting = (
        way for way in smaller if limit is not None and sum(parts.values()) - way.saved(parts) <= limit
    )
    ways += [next(fitting, smaller[0 if limit is None else -1])] if smaller else []
    is_divided = any((chosen.get(f"{name}_parallel") or 1) > 1 for name in ("tensor", "pipeline"))
    if _LOSS in parts and request.get("loss", "standard") == "standard" and not is_divided:
        liger = "--loss liger (the script must fuse head and loss: use_liger_kernel)"
        ways.append(_Way(text=liger, saves={_LOSS: FUSED_LOSS_SAVES}))
    stage, replicas = chosen.get("zero_stage"), chosen.get("data_parallel")
    if isinstance(stage, int) and stage < 3 and isinstance(replicas, int) and replicas > 1:
        divided = dict.fromkeys(_DIVIDED_AT[stage + 1], 1 - 1 / replicas)
        ways.append(_Way(text=f"--zero {stage + 1}", saves=divided))
    if part(plan, "cluster").get("gpu") == "cpu" or request.get("device") == "cpu":
        return ways  # everything is in host memory already
    if chosen.get("offload_optimizer") == "none":
        moved = dict.fromkeys((*_DIVIDED_AT[1], *_DIVIDED_AT[2]), 1.0)
        ways.append(_Way(text="--offload-optimizer cpu", saves=moved))
    if stage == 3 and chosen.get("offload_param") == "none":
        ways.append(_Way(text="--offload-param cpu", saves=dict.fromkeys(_DIVIDED_AT[3], 1.0)))
    return ways


def _smaller_batches(chosen: Mapping[str, Any]) -> list[_Way]:
    """Micro-batches that are halved again and again, the largest first, with the same global batch."""
    micro, accumulation = chosen.get("micro_batch"), chosen.get("gradient_accumulation")
    ways: list[_Way] = []
    size = micro if isinstance(micro, int) else 1
    while isinstance(micro, int) and size > 1:
        size = size // 2 if size % 2 == 0 else 1
        parts = micro // size
        more = f" (gradient accumulation {accumulation * parts})" if isinstance(accumulation, int) else ""
        saves = dict.fromkeys((_ACTIVATIONS, _LOSS), 1 - 1 / parts)
        ways.append(_Way(text=f"--micro-batch {size}{more}", saves=saves, is_batch=True))
    return ways
