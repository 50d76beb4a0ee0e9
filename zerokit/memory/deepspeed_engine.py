"""What an estimate asks of the engine that trains, answered for DeepSpeed."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from zerokit.domain.activations import ActivationTrace
from zerokit.domain.deepspeed_settings import DEFAULT_ZERO, DeepSpeedSettings, deepspeed
from zerokit.domain.hardware import Gpu
from zerokit.domain.job import Job
from zerokit.domain.profile import ModelProfile
from zerokit.domain.strategy import Strategy
from zerokit.memory.components import Component, HostComponent
from zerokit.memory.engine import Engine
from zerokit.memory.host import host_components
from zerokit.memory.rank_model import ElementBytes, RankModel
from zerokit.memory.replay import step
from zerokit.memory.replay.model_states import flattening_bytes as flattening_of
from zerokit.memory.replay.model_states import least_state_bytes, partition
from zerokit.values import replace


def _autocast_covered(job: Job, strategy: Strategy) -> bool:
    zero = deepspeed(strategy.settings).zero
    is_alone = strategy.tensor_parallel == strategy.pipeline_parallel == strategy.sequence_parallel == 1
    if zero.stage == 3:
        stays = zero.offload_optimizer.device == zero.offload_param.device == "none"
        return job.packed_base_bytes is None and is_alone and (stays or strategy.data_parallel > 1)
    is_plain_zero = zero.contiguous_gradients and zero.offload_optimizer.device == "none"
    return job.method == "full" and is_alone and is_plain_zero


@lru_cache(maxsize=2048)
def _shared_settings(settings: DeepSpeedSettings) -> DeepSpeedSettings:
    zero = settings.zero
    if zero.stage == 0:  # no buckets
        zero = replace(zero, reduce_bucket_size=DEFAULT_ZERO.reduce_bucket_size)
    accumulation = min(settings.gradient_accumulation, 2)
    return replace(settings, micro_batch=1, gradient_accumulation=accumulation, zero=zero)


@lru_cache(maxsize=2048)
def _settings_of_host(settings: DeepSpeedSettings) -> DeepSpeedSettings:
    """The settings with the sizes of what is only on the GPU made equal."""
    zero = replace(
        settings.zero,
        reduce_bucket_size=DEFAULT_ZERO.reduce_bucket_size,
        allgather_bucket_size=DEFAULT_ZERO.allgather_bucket_size,
        prefetch_bucket_size=DEFAULT_ZERO.prefetch_bucket_size,
        max_reuse_distance=DEFAULT_ZERO.max_reuse_distance,
        overlap_comm=DEFAULT_ZERO.overlap_comm,
    )
    return replace(settings, zero=zero)


@lru_cache(maxsize=256)
def _worst_ranks(model: RankModel, settings: DeepSpeedSettings, ranks: int) -> tuple[int, ...]:
    """Partitions differ in the whole parameters they touch: the last rank holds what backward finishes first;
    the one with the most whole parameters peaks in the step."""
    if ranks == 1:
        return (0,)
    round_robin = settings.zero.round_robin_gradients
    heaviest = max(
        range(ranks), key=lambda rank: partition(model, rank, ranks, round_robin=round_robin).whole
    )
    return tuple(sorted({0, heaviest, ranks - 1}))


@lru_cache(maxsize=2048)
def _host_parts(
    model: RankModel, settings: DeepSpeedSettings, ranks: int, world_size: int, room: int
) -> dict[HostComponent, int]:
    part = partition(model, 0, ranks, round_robin=settings.zero.round_robin_gradients)
    on_cpu = flattening_of(model, settings) > room
    return host_components(model, settings, part, ranks, world_size, flattens_on_cpu=on_cpu)


def releases_gradients(settings: DeepSpeedSettings) -> bool:
    """Whether ZeRO-1 moves each gradient into its bucket as it comes, so that they are never all there.

    With ``overlap_comm`` it does in the last micro-step (``stage_1_and_2.py:713``, 0.19.8); earlier ones add
    up whole gradients, and so does an fp32 accumulation of a 16-bit model.
    """
    zero = settings.zero
    is_moved = zero.stage == 1 and bool(zero.overlap_comm) and zero.contiguous_gradients
    return is_moved and settings.gradient_accumulation == 1 and not ElementBytes.of(settings).compact


class DeepSpeed(Engine[DeepSpeedSettings]):
    """DeepSpeed."""

    def not_replayed(self, job: Job, strategy: Strategy) -> str:
        """What of this training is not replayed; empty: all is."""
        settings = strategy.settings
        if strategy.pipeline_parallel > 1 and settings.divides_gradients:
            return "DeepSpeed's pipeline engine has no ZeRO stage 2 or 3"
        packed = job.packed_base_bytes is not None
        if packed and (settings.divides_weights or strategy.tensor_parallel > 1):
            return "DeepSpeed divides packed weights otherwise"
        if settings.autocasts and not _autocast_covered(job, strategy):
            return "torch_autocast with these settings"
        if job.offload_activations and strategy.world_size != strategy.data_parallel:
            return "offloaded activations of ranks that are not data-parallel alone"
        return ""

    def sharing_sequences(
        self,
        profile: ModelProfile,
        trace: ActivationTrace,
        settings: DeepSpeedSettings,
        degree: int,
        checkpointed: bool,
    ) -> tuple[ActivationTrace, str]:
        """The trace with Ulysses' exchanges, where the model's heads are known."""
        from zerokit.memory.sequence_parallel import exchange_of, with_exchanges

        exchange = exchange_of(profile, degree, settings)
        if exchange is None:
            return trace, "Ulysses' exchanges left out: the model's heads are not known"
        counted = "Ulysses' exchanges of q, k, v and context counted"
        return with_exchanges(trace, exchange, checkpointed), counted

    def settings_of_replay(self, strategy: Strategy, gpu: Gpu) -> DeepSpeedSettings:
        """The settings with all that DeepSpeed's own bytes do not depend on made equal."""
        settings = _shared_settings(deepspeed(strategy.settings))
        if strategy.sequence_parallel == 1:
            return settings
        from zerokit.memory.sequence_parallel import with_sequence_peers

        return with_sequence_peers(settings, gpu)

    def layers_kept(self, model: RankModel, settings: DeepSpeedSettings) -> int | None:
        """Layers at either end of a stack beyond which ZeRO-3 looks neither ahead nor back: what it gathers
        is decided within the reuse distance, and by how far it has fetched ahead. Each module of a layer
        fetches another bucket ahead, so that only the live-parameter limit ends it. Other stages: None."""
        zero = settings.zero
        if zero.stage < 3:
            return None
        smallest = min(model.layer_numel.values(), default=1)
        ahead = max(zero.max_reuse_distance, zero.max_live_parameters)
        reach = ahead + zero.prefetch_bucket_size + zero.reduce_bucket_size
        # few values, so that traces are shared
        return 1 << (-(-reach // max(1, smallest)) + 2 - 1).bit_length()

    def rank_bytes(
        self, model: RankModel, settings: DeepSpeedSettings, ranks: int, rank: int
    ) -> step.RankBytes:
        """One optimizer step of one rank."""
        return step.rank_bytes(model, settings, ranks, rank)

    def compose(
        self,
        model: RankModel,
        settings: DeepSpeedSettings,
        ranks: int,
        rank: int,
        instants: Mapping[str, step.Instant | None],
    ) -> dict[str, dict[Component, int]]:
        """The components at one instant of each phase."""
        return step.compose(model, settings, ranks, rank, instants)

    def flattening_bytes(self, model: RankModel, settings: DeepSpeedSettings) -> int:
        """Allocated in init where the card has room for it, and on the host where it has not."""
        return flattening_of(model, settings)

    def listed_ranks(
        self, model: RankModel, settings: DeepSpeedSettings, ranks: int, *, every: bool
    ) -> tuple[int, ...]:
        """Ranks that can have the highest peak; ``every``: all that differ."""
        if settings.zero.stage in (0, 3):  # every rank holds as much of every parameter
            return (0,)
        return tuple(range(ranks)) if every else _worst_ranks(model, settings, ranks)

    def host_parts(
        self,
        model: RankModel,
        settings: DeepSpeedSettings,
        ranks: int,
        world_size: int,
        room: int,
        per_node: int,
    ) -> dict[HostComponent, int]:
        """Host bytes of one rank; ``room``: what its card has for tensors during init. Ranks are alike."""
        return _host_parts(model, _settings_of_host(settings), ranks, world_size, room)

    def least_bytes(self, model: RankModel, settings: DeepSpeedSettings, ranks: int) -> tuple[int, int]:
        """(bytes at every instant of a step, gradients at its end), without any rounding."""
        zero, element_bytes = settings.zero, ElementBytes.of(settings)
        trainable, frozen = model.trainable_numel, model.frozen_bytes(element_bytes.parameter)
        optimizer = least_state_bytes(settings)
        if element_bytes.parameter != element_bytes.master:
            optimizer += element_bytes.master
        if zero.stage == 3:
            size = 0
            if zero.offload_param.device == "none":
                size += (trainable * element_bytes.parameter + frozen) // ranks
            if zero.offload_optimizer.device == "none":
                size += trainable * (optimizer + element_bytes.accumulation) // ranks
            return size, 0
        size = trainable * element_bytes.parameter + frozen
        if zero.stage == 0 or zero.offload_optimizer.device == "none":
            size += trainable * optimizer // (1 if zero.stage == 0 else ranks)
        is_whole = zero.stage == 0 or (
            zero.stage == 1 and zero.offload_optimizer.device == "none" and not releases_gradients(settings)
        )
        return size, trainable * element_bytes.parameter if is_whole else 0
