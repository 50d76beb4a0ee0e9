"""Host memory of the ranks of one node, and NVMe space, under offload.

``stage_1_and_2.py`` and ``stage3.py`` (0.19.8) allocate what is listed; torch's pinned allocator
rounds every request up to a power of two and never gives it back (``CachingHostAllocator``).
"""

from __future__ import annotations

from zerokit.domain.activations import ActivationTrace
from zerokit.domain.deepspeed_settings import DeepSpeedSettings
from zerokit.memory.components import HostComponent
from zerokit.memory.rank_model import ElementBytes, RankModel
from zerokit.memory.replay.model_states import (
    Partition,
    managed_bytes,
    on_device,
    optimizer_bytes,
    optimizer_values,
    second_state_bytes,
    share_bytes,
    shares,
    stepped_tensors,
)
from zerokit.units import MIB

PROCESS_BYTES = 1060 * MIB
"""Python, torch, CUDA and DeepSpeed in one rank (H200 runs without offload, the weights taken off)."""

PROCESS_NCCL_BYTES = 340 * MIB
"""More where NCCL talks to other ranks (the same runs with 2, 4 and 8 ranks)."""


def process_bytes(world_size: int) -> int:
    """Bytes of one rank, beside its tensors."""
    return PROCESS_BYTES + (PROCESS_NCCL_BYTES if world_size > 1 else 0)


def pinned(size_bytes: int, pin: bool = True) -> int:
    """What pinning this many bytes takes."""
    if size_bytes <= 0:
        return 0
    return 1 << (size_bytes - 1).bit_length() if pin else size_bytes


def host_components(
    model: RankModel,
    settings: DeepSpeedSettings,
    part: Partition,
    ranks: int,
    world_size: int,
    *,
    flattens_on_cpu: bool = False,
) -> dict[HostComponent, int]:
    """Host bytes of one rank, and those it keeps on NVMe, by component. ``flattens_on_cpu``: its GPU has no
    room for ``flattening_bytes``."""
    element_bytes = ElementBytes.of(settings)
    parameters = max(model.profile.parameter_count, model.trainable_numel + model.frozen_numel)
    components = {HostComponent.PROCESS: process_bytes(world_size)}
    managed = managed_bytes(settings, stepped_tensors(model, settings, part, ranks))
    if settings.zero.stage == 3:
        trainable, _ = shares(model, ranks)
        components |= _stage3(model, settings, element_bytes, trainable, ranks)
    else:
        # below stage 3 every rank builds the whole model in host memory before it moves to the GPU
        built = 0 if model.loads_on_gpu else parameters * element_bytes.parameter
        if flattens_on_cpu:  # the weights as they come from the GPU, and joined
            built = max(built, 2 * model.trainable_numel * element_bytes.parameter)
        components[HostComponent.MODEL_BEFORE_IT_MOVES] = built
        if settings.zero.offload_optimizer.device != "none":
            components |= _stage12(model, settings, element_bytes, part)
            # long gone when the optimizer's states appear at the first step
            states = sum(
                size
                for name, size in components.items()
                if name not in (HostComponent.PROCESS, HostComponent.MODEL_BEFORE_IT_MOVES)
            )
            components[HostComponent.MODEL_BEFORE_IT_MOVES] = max(
                0, components[HostComponent.MODEL_BEFORE_IT_MOVES] - states
            )
    # paged states are where the driver puts them: on the host, all of them, when the GPU is full
    components[HostComponent.OPTIMIZER_STATES] = components.get(HostComponent.OPTIMIZER_STATES, 0) + managed
    return {name: size for name, size in components.items() if size}


def _stage12(
    model: RankModel, settings: DeepSpeedSettings, element_bytes: ElementBytes, part: Partition
) -> dict[HostComponent, int]:
    pin = settings.zero.offload_optimizer.pin_memory
    largest = model.largest

    def for_each_group(size_bytes: int) -> int:
        return sum(pinned(group.size * size_bytes, pin) for group in part.groups)

    components = {
        HostComponent.MASTER_WEIGHTS: for_each_group(element_bytes.master),
        HostComponent.GRADIENTS: for_each_group(element_bytes.master),
        HostComponent.STAGING: for_each_group(element_bytes.parameter),
        HostComponent.OFFLOAD_BUFFER: pinned(largest * element_bytes.parameter, pin),
        HostComponent.OPTIMIZER_STATES: part.size * optimizer_bytes(settings)
        + second_state_bytes(model, settings, part.size),
    }
    # async_accumulate_grad_in_cpu_via_gpu: whole parameters, unless the master's gradients are as narrow;
    # stage 1 accumulates on the GPU, and so does stage 2 in fp32 (_use_compact_grad_partition_buffer)
    on_gpu = settings.zero.stage == 1 or element_bytes.compact
    if not on_gpu and settings.gradient_accumulation > 1 and element_bytes.master == 4:
        sizes = [model.trainable_sizes[i] * element_bytes.gradient for i in part.fragments]
        components[HostComponent.ACCUMULATED_GRADIENTS] = sum(pinned(size, pin) for size in sizes)
    return components


def _stage3(
    model: RankModel, settings: DeepSpeedSettings, element_bytes: ElementBytes, trainable: int, ranks: int
) -> dict[HostComponent, int]:
    zero = settings.zero
    components: dict[HostComponent, int] = {}
    optimizer, parameter = zero.offload_optimizer, zero.offload_param
    copies = 2 if model.has_copy else 1  # its engine offloads as the policy's does
    if parameter.device == "none":
        components[HostComponent.DEFRAGMENTATION] = (
            trainable * element_bytes.parameter
        )  # zero/utils.py defragment goes over the host
    if parameter.device == "cpu":
        components[HostComponent.PARAMETERS] = pinned(
            copies * share_bytes(model, ranks, element_bytes.parameter)
        )
        # zero.Init pins every parameter's share by itself; the pinned blocks stay cached
        parameter_bytes = model.element_bytes(element_bytes.parameter)
        shares = (-(-size // ranks) * wide for size, wide in zip(model.sizes, parameter_bytes, strict=True))
        components[HostComponent.PARAMETERS_WHILE_BUILT] = sum(
            pinned(size, parameter.pin_memory) for size in shares
        )
    elif parameter.device == "nvme":
        components[HostComponent.PARAMETER_BUFFERS] = pinned(
            parameter.buffer_count * parameter.buffer_size * element_bytes.parameter
        )
        components[HostComponent.NVME_PARAMETERS] = copies * share_bytes(
            model, ranks, element_bytes.parameter
        )
    group = min(trainable, zero.sub_group_size)
    if optimizer.device == "cpu":
        on_host = trainable - sum(on_device(model, zero, ranks))
        components[HostComponent.MASTER_WEIGHTS] = on_host * element_bytes.master
        components[HostComponent.GRADIENTS] = pinned(
            group * element_bytes.master, optimizer.pin_memory
        ) * max(1, -(-on_host // max(1, group)))
        components[HostComponent.GRADIENT_PARTITION] = pinned(
            trainable * element_bytes.accumulation, optimizer.pin_memory
        )
        states = on_host * optimizer_bytes(settings) + second_state_bytes(model, settings, on_host)
        components[HostComponent.OPTIMIZER_STATES] = states
    elif optimizer.device == "nvme":
        states = 1 + optimizer_values(settings)
        components[HostComponent.NVME_OPTIMIZER] = trainable * 4 * (states + 1)
        components[HostComponent.SWAP_BUFFERS] = pinned(optimizer.buffer_count * 4 * group)
        components[HostComponent.GRADIENT_PARTITION] = pinned(
            trainable * element_bytes.accumulation, optimizer.pin_memory
        )
    return components


def activation_copies(trace: ActivationTrace, micro_batch: int, seq_len: int) -> int:
    """Bytes of one rank's activations on the host, each tensor pinned by itself; 0 where none go there. Of
    one micro-batch: the blocks stay cached, and the next takes them again."""
    levels = trace.cached(micro_batch, seq_len).levels
    kinds = [[mark.kind for mark in segment] for segment in trace.segments]
    names = (kind for run in trace.cache for _ in range(run.count) for kind in kinds[run.segment])
    total, before = 0, 0.0
    for kind, level in zip(names, levels, strict=True):
        if kind == "host":
            total += pinned(round(level - before))
        before = level
    return total
