"""Predictions as the JSON that the interfaces fix (``zerokit.estimate/1``, ``zerokit.plan/1``)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from zerokit.domain.hardware import Cluster
from zerokit.domain.job import Job
from zerokit.domain.strategy import Candidate, RankEstimate, Strategy
from zerokit.emit.accelerate import parallelism_environment
from zerokit.emit.deepspeed import emit_deepspeed
from zerokit.search.plan import Plan

ESTIMATE_SCHEMA = "zerokit.estimate/1"
PLAN_SCHEMA = "zerokit.plan/1"
_ALL_RANKS_UP_TO = 64


def estimate(
    candidate: Candidate,
    cluster: Cluster,
    *,
    fits: bool | None,
    assumptions: tuple[str, ...] = (),
    timed: bool = True,
    on_cpu: bool = False,
) -> dict[str, Any]:
    """ESTIMATE: memory and time of one configuration."""
    memory, time = candidate.memory, candidate.time
    host = memory.host_bytes_per_node
    if on_cpu:
        host = memory.min_vram_bytes * candidate.strategy.world_size
    return {
        "schema": ESTIMATE_SCHEMA,
        "fits": fits,
        "peak_allocated_bytes": memory.worst.peak_allocated_bytes,
        "min_vram_bytes": memory.min_vram_bytes,
        "host_bytes_per_node": host,
        "host_components": dict(memory.host_components),
        "nvme_bytes_per_node": memory.nvme_bytes_per_node,
        "step_seconds": time.step_seconds if timed else None,
        "tokens_per_second_per_gpu": time.tokens_per_second_per_gpu if timed else None,
        "time_parts": dict(time.parts) if timed else {},
        "bound_by": time.bound_by if timed else None,
        "basis": memory.basis,
        "saving": None if candidate.saving is None else dataclasses.asdict(candidate.saving),
        "per_rank": per_rank(memory.ranks, candidate.strategy.world_size),
        "assumptions": list(dict.fromkeys((*assumptions, *memory.assumptions))),
    }


def per_rank(ranks: tuple[RankEstimate, ...], world_size: int) -> list[dict[str, Any]]:
    """One entry a GPU up to 64 of them; above that, or with ``world_size=0``, one for ranks alike."""

    def entry(rank: RankEstimate, number: int) -> dict[str, Any]:
        return {
            "rank": number,
            "peak_allocated_bytes": rank.peak_allocated_bytes,
            "peak_phase": rank.peak_phase,
            "phases": dict(rank.phases),
            "components": dict(rank.components),
        }

    if 0 < world_size <= _ALL_RANKS_UP_TO:
        return [entry(rank, n) for rank in ranks for n in range(rank.first, rank.last + 1)]
    return [{**entry(rank, rank.first), "ranks": [rank.first, rank.last]} for rank in ranks]


def environment(cluster: Cluster, chosen: Strategy, attention: str) -> dict[str, str]:
    """Variables that the prediction counts on, and the degrees that no DeepSpeed JSON can say."""
    stages = chosen.pipeline_parallel
    return {
        **_allocator(cluster),
        **({"ZEROKIT_PIPELINE_STAGES": str(stages)} if stages > 1 else {}),
        **parallelism_environment(chosen, attention),
    }


def _allocator(cluster: Cluster) -> dict[str, str]:
    if cluster.gpu.name == "cpu" or not cluster.gpu.expandable_segments:
        return {}
    return {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}


def degrees(strategy: Strategy) -> dict[str, Any]:
    """STRATEGY without its configuration and prediction."""
    zero, settings = strategy.settings.zero, strategy.settings
    return {
        "zero_stage": zero.stage,
        "offload_optimizer": zero.offload_optimizer.device,
        "offload_param": zero.offload_param.device,
        "data_parallel": strategy.data_parallel,
        "tensor_parallel": strategy.tensor_parallel,
        "pipeline_parallel": strategy.pipeline_parallel,
        "sequence_parallel": strategy.sequence_parallel,
        "micro_batch": settings.micro_batch,
        "gradient_accumulation": settings.gradient_accumulation,
        "activation_checkpointing": strategy.checkpointing,
        "precision": settings.precision,
    }


def strategy(
    candidate: Candidate,
    job: Job,
    cluster: Cluster,
    *,
    assumptions: tuple[str, ...],
    timed: bool,
    on_cpu: bool,
) -> dict[str, Any]:
    """STRATEGY of ``plan --json``."""
    return {
        **degrees(candidate.strategy),
        "environment": environment(cluster, candidate.strategy, job.attention),
        "deepspeed_config": emit_deepspeed(candidate.strategy, job).config,
        "estimate": estimate(
            candidate, cluster, fits=True, assumptions=assumptions, timed=timed, on_cpu=on_cpu
        ),
        "why": candidate.why,
    }


def plan(
    made: Plan,
    request: Mapping[str, Any],
    job: Job,
    cluster: Cluster,
    *,
    timed: bool,
    on_cpu: bool,
    whole: bool,
) -> dict[str, Any]:
    """The object of ``plan --json``, with no files written yet.

    Not ``whole``: of the alternatives only why they come next, which is all that a person is shown.
    """

    def one(candidate: Candidate) -> dict[str, Any]:
        return strategy(candidate, job, cluster, assumptions=made.assumptions, timed=timed, on_cpu=on_cpu)

    return {
        "schema": PLAN_SCHEMA,
        "request": dict(request),
        "chosen": one(made.chosen),
        "alternatives": [one(other) if whole else {"why": other.why} for other in made.alternatives],
        "rejected": dict(made.rejected),
        "search": {"candidates": made.candidates, "seconds": made.seconds},
        "global_batch": made.global_batch,
        "assumptions": list(made.assumptions),
        "faster_with": list(made.faster_with),
        "advice": list(made.advice),
        "files": {},
    }
