"""What to change after a run went out of memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from zerokit.report.predicted import Plan, chosen_of
from zerokit.units import format_gib

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
    """Changes to the plan's choice that shrink its peak, the one that costs least speed first."""
    chosen = chosen_of(plan)
    ways = []
    micro, accumulation = chosen.get("micro_batch"), chosen.get("gradient_accumulation")
    if chosen.get("activation_checkpointing") in ("none", "selective"):
        ways.append("--checkpointing full")
    if isinstance(micro, int) and micro > 1:
        more = f" (gradient accumulation {accumulation * 2})" if isinstance(accumulation, int) else ""
        ways.append(f"--micro-batch {micro // 2}{more}")
    stage, replicas = chosen.get("zero_stage"), chosen.get("data_parallel")
    if isinstance(stage, int) and stage < 3 and isinstance(replicas, int) and replicas > 1:
        ways.append(f"--zero {stage + 1}")
    if isinstance(plan, Mapping) and (plan.get("cluster") or {}).get("gpu") == "cpu":
        return ways  # everything is in host memory already
    if chosen.get("offload_optimizer") == "none":
        ways.append("--offload-optimizer cpu")
    if stage == 3 and chosen.get("offload_param") == "none":
        ways.append("--offload-param cpu")
    return ways
