"""The strategies of one search: degrees, placement, batch and knobs made into DeepSpeed's settings."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from zerokit.domain.client_optimizers import client_optimizer
from zerokit.domain.deepspeed_settings import Offload, ZeroSettings
from zerokit.domain.hardware import Cluster
from zerokit.domain.job import Job
from zerokit.domain.model_shape import ModelShape
from zerokit.domain.strategy import Strategy
from zerokit.search.request import HostBytes, LeastVram, MemoryModel
from zerokit.search.space import Knobs, Layout, OffloadChoice, Pins, divisors
from zerokit.timing.step_time import TimeModel
from zerokit.values import frozen_dataclass, replace


@frozen_dataclass
class Space:
    """What is searched, and with which models."""

    shape: ModelShape
    job: Job
    cluster: Cluster
    pins: Pins
    precision: str
    global_batch: int
    memory: MemoryModel
    timing: TimeModel
    least_vram: LeastVram | None = None
    host_bytes: HostBytes | None = None
    torch_adam: bool = False


def build_strategy(
    space: Space, layout: Layout, placement: OffloadChoice, checkpointing: str, micro_batch: int,
    accumulation: int, chosen: Knobs,
) -> Strategy:  # fmt: skip
    """The strategy of one point of the space."""
    fixed = space.pins.settings
    zero = _zero_settings(
        fixed.zero, placement, chosen, nvme_path=space.cluster.nvme_path,
        saves_16_bit=placement.stage == 3 and not space.job.inference,
        largest_parameter=space.shape.largest_parameter if placement.parameters == "nvme" else 0,
    )  # fmt: skip
    by_script = not space.job.inference and client_optimizer(space.job.optimizer) is not None
    settings = replace(
        fixed,
        precision=space.precision,
        micro_batch=micro_batch,
        gradient_accumulation=accumulation,
        gradient_clipping=0.0 if space.job.inference else 1.0,
        optimizer=None if space.job.inference or by_script else space.job.optimizer,
        client_optimizer=space.job.optimizer if by_script else None,
        torch_adam=space.torch_adam,
        autotp_size=layout.tensor,
        zero=zero,
    )
    return Strategy(
        settings=settings,
        data_parallel=layout.data,
        tensor_parallel=layout.tensor,
        pipeline_parallel=layout.pipeline,
        sequence_parallel=layout.sequence,
        checkpointing=checkpointing,
    )


@lru_cache(maxsize=4096)
def _zero_settings(
    fixed: ZeroSettings,
    placement: OffloadChoice,
    chosen: Knobs,
    *,
    nvme_path: str | None,
    saves_16_bit: bool,
    largest_parameter: int,
) -> ZeroSettings:
    """ZeRO's part of a strategy; the same for every layout and batch."""
    return replace(
        fixed,
        stage=placement.stage,
        overlap_comm=chosen.overlap_comm,
        reduce_bucket_size=chosen.reduce_bucket_size,
        allgather_bucket_size=chosen.reduce_bucket_size,
        sub_group_size=chosen.sub_group_size,
        prefetch_bucket_size=chosen.prefetch_bucket_size,
        param_persistence_threshold=chosen.persistence_threshold,
        max_reuse_distance=chosen.reuse_distance,
        zero_hpz_partition_size=chosen.hpz_partition_size,
        round_robin_gradients=chosen.round_robin or fixed.round_robin_gradients,
        gather_16bit_weights_on_model_save=saves_16_bit,
        offload_optimizer=Offload(
            device=placement.optimizer, nvme_path=nvme_path if placement.optimizer == "nvme" else None
        ),
        offload_param=Offload(
            device=placement.parameters,
            nvme_path=nvme_path if placement.parameters == "nvme" else None,
            buffer_count=5,
            # one NVMe buffer must hold the largest parameter
            buffer_size=max(100_000_000, largest_parameter),
        ),
    )


def batches(space: Space, layout: Layout) -> Iterator[tuple[int, int]]:
    """(micro-batch, accumulation) pairs that meet the global batch exactly, largest micro-batch first."""
    per_rank, rest = divmod(space.global_batch, layout.data)
    if rest or not per_rank:
        return
    pinned, steps = space.pins.micro_batch, space.pins.gradient_accumulation
    for micro in reversed(divisors(per_rank)):
        if (pinned is None or micro == pinned) and (steps is None or micro * steps == per_rank):
            yield micro, per_rank // micro


def checkpointings(space: Space) -> tuple[str, ...]:
    """Selective checkpointing recomputes attention scores: pointless where none are kept."""
    if space.job.inference:
        return ("none",)
    if space.pins.checkpointing is not None:
        return (space.pins.checkpointing,)
    return ("none", "selective", "full") if space.job.attention == "eager" else ("none", "full")
