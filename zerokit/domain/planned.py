"""A plan's choice as ``plan.yaml`` and a run's folder hold it: which keys there are, and what kind each is.

They are what :class:`zerokit.planner.documents.PlannedStrategy` publishes. Files of strangers may lack any.
"""

from __future__ import annotations

import math
from typing import Any, TypedDict


class OfScript(TypedDict, total=False):
    """What a script that was planned for decides. ``decided``: options of the request that are the script's,
    not its user's. ``engines``: DeepSpeed engines that it makes. ``other_parameters``: of models beside the
    one that trains."""

    model: str
    arguments: list[str]
    decided: list[str]
    engines: int
    other_parameters: int


class OfRehearsal(TypedDict, total=False):
    """Which command was rehearsed; ``command``: its digest."""

    script: str
    command: str
    step_seconds_range: list[float]
    step_seconds_by_host_factor: list[list[float]]


class OfEstimate(TypedDict, total=False):
    """The prediction. Bytes, seconds; the worst rank's where it is not said by rank."""

    peak_allocated_bytes: int
    min_vram_bytes: int
    host_bytes_per_node: int
    step_seconds: float | None
    basis: str
    saving: dict[str, Any] | None
    per_rank: list[dict[str, Any]]
    components_by_phase: dict[str, dict[str, int]]
    time_parts: dict[str, float]


class Chosen(TypedDict, total=False):
    """The choice; of another engine than DeepSpeed there is no ``zero_stage`` and no ``deepspeed_config``.
    ``rehearsed_with``: in place of ``rehearsed``: the script and arguments of another command.
    ``sequences_per_row``: of a batch, as the script's own data has them."""

    engine: str
    zero_stage: int | None
    offload_optimizer: str
    offload_param: str
    data_parallel: int
    tensor_parallel: int
    pipeline_parallel: int
    sequence_parallel: int
    context_parallel: int
    micro_batch: int
    gradient_accumulation: int
    gradient_clipping: float
    activation_checkpointing: str
    precision: str
    environment: dict[str, str]
    deepspeed_config: dict[str, Any]
    accelerate_config: dict[str, Any]
    parameters: int
    seq_len: int
    sequences_per_row: int
    why: str
    script: OfScript
    rehearsed: OfRehearsal
    rehearsed_with: str
    estimate: OfEstimate
    measured: dict[str, Any]


def degrees(chosen: Chosen) -> dict[str, int]:
    """How many ways the choice divides what is trained, by the names of a strategy, whose ranks share
    sequences in one way at most."""
    shared = max(chosen.get("sequence_parallel") or 1, chosen.get("context_parallel") or 1)
    return {
        "data_parallel": int(chosen.get("data_parallel") or 1),
        "tensor_parallel": int(chosen.get("tensor_parallel") or 1),
        "pipeline_parallel": int(chosen.get("pipeline_parallel") or 1),
        "sequence_parallel": int(shared),
    }


def world_size(chosen: Chosen) -> int:
    """Ranks that the choice is for."""
    return math.prod(degrees(chosen).values())


def global_batch(chosen: Chosen) -> int:
    """Sequences of an optimizer step; 0: it does not say them."""
    batch = int(chosen.get("micro_batch") or 0) * int(chosen.get("gradient_accumulation") or 0)
    return batch * int(chosen.get("data_parallel") or 0)
