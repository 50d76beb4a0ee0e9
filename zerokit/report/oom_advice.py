"""What to change after a run went out of memory."""

from __future__ import annotations

from collections.abc import Mapping

from zerokit.report.predicted import Plan, chosen_of

TO_NEED_LESS = "to need less"
"""Stands before each way in the terminal and on the page."""


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
