"""What to change after a run went out of memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from zerokit.memory.components import Component
from zerokit.memory.fused_loss import FUSED_LOSS_SAVES
from zerokit.report.predicted import Plan, chosen_of, estimate_of
from zerokit.units import format_gib

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


def larger_than_memory(oom: Mapping[str, Any], host_bytes: int | None) -> str | None:
    """That one request is more than the whole GPU or host holds, so that no plan helps; None where it is not.

    Args:
        oom: the failed allocation, as :class:`zerokit.report.schema.OutOfMemory` has it.
        host_bytes: memory of the rank's host; None where it is not known.
    """
    on_host = oom.get("memory") == "host"
    requested, total = oom.get("asked_bytes"), host_bytes if on_host else oom.get("device_total_bytes")
    if not requested or not total or requested <= total:
        return None
    return (
        f"one request of {format_gib(requested)} is more than the whole {'host' if on_host else 'GPU'} has "
        f"({format_gib(total)}), and no plan makes room for it: look at the line that raised it, and at the "
        "batch and sequence length there"
    )


def ways_to_need_less(plan: Plan | None) -> list[str]:
    """Changes to the plan's choice that shrink its predicted peak, the one that saves most first; those that
    save next to nothing are left out. Without a prediction all of them, the one that costs least speed first.
    """
    ways = _ways(plan)
    parts = _largest_parts(plan)
    total = sum(parts.values())
    if not total:
        return list(ways)
    saved = {
        way: sum(share * parts.get(name, 0) for name, share in saves.items()) for way, saves in ways.items()
    }
    worth = [way for way in ways if saved[way] >= _LEAST_SAVED_SHARE * total]
    return sorted(worth, key=lambda way: -saved[way])


def _ways(plan: Plan | None) -> dict[str, Mapping[str, float]]:
    """Each way, and the share that it saves of each component of the peak."""
    chosen, ways = chosen_of(plan), dict[str, Mapping[str, float]]()
    micro, accumulation = chosen.get("micro_batch"), chosen.get("gradient_accumulation")
    if chosen.get("activation_checkpointing") in ("none", "selective"):
        ways["--checkpointing full"] = {_ACTIVATIONS: _CHECKPOINTING_SAVES}
    if isinstance(micro, int) and micro > 1:
        more = f" (gradient accumulation {accumulation * 2})" if isinstance(accumulation, int) else ""
        ways[f"--micro-batch {micro // 2}{more}"] = {_ACTIVATIONS: 0.5, _LOSS: 0.5}
    if _has_standard_loss(plan):
        ways["--loss liger (the script must fuse head and loss: use_liger_kernel)"] = {
            _LOSS: FUSED_LOSS_SAVES
        }
    stage, replicas = chosen.get("zero_stage"), chosen.get("data_parallel")
    if isinstance(stage, int) and stage < 3 and isinstance(replicas, int) and replicas > 1:
        ways[f"--zero {stage + 1}"] = dict.fromkeys(_DIVIDED_AT[stage + 1], 1 - 1 / replicas)
    request = plan.get("request") if isinstance(plan, Mapping) else None
    cluster = plan.get("cluster") if isinstance(plan, Mapping) else None
    if (cluster or {}).get("gpu") == "cpu" or (request or {}).get("device") == "cpu":
        return ways  # everything is in host memory already
    if chosen.get("offload_optimizer") == "none":
        ways["--offload-optimizer cpu"] = dict.fromkeys((*_DIVIDED_AT[1], *_DIVIDED_AT[2]), 1.0)
    if stage == 3 and chosen.get("offload_param") == "none":
        ways["--offload-param cpu"] = dict.fromkeys(_DIVIDED_AT[3], 1.0)
    return ways


def _has_standard_loss(plan: Plan | None) -> bool:
    """Whether the plan's logits stand in memory as a whole, and its estimate knows a loss that has none."""
    chosen = chosen_of(plan)
    request = (plan.get("request") if isinstance(plan, Mapping) else None) or {}
    is_divided = any((chosen.get(f"{name}_parallel") or 1) > 1 for name in ("tensor", "pipeline"))
    return _LOSS in _largest_parts(plan) and request.get("loss", "standard") == "standard" and not is_divided


def _largest_parts(plan: Plan | None) -> Mapping[str, float]:
    """The components of the predicted peak of the fullest rank; empty where there is no prediction."""
    ranks = [rank for rank in estimate_of(plan).get("per_rank") or () if isinstance(rank, Mapping)]
    worst = max(ranks, key=lambda rank: rank.get("peak_allocated_bytes") or 0, default={})
    return worst.get("components") or {}
