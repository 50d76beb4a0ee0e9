"""Host memory of the ranks of one node, and NVMe space, under offload.

``stage_1_and_2.py`` and ``stage3.py`` (0.19.8) allocate what is listed; torch's pinned allocator
rounds every request up to a power of two and never gives it back (``CachingHostAllocator``).
"""

from __future__ import annotations

from zerokit.domain.deepspeed_settings import DeepSpeedSettings
from zerokit.memory.components import HostComponent
from zerokit.memory.rank_model import Layout, Precision
from zerokit.memory.replay.model_states import on_device, share_bytes, shares
from zerokit.memory.replay.optimizers import optimizer_bytes, optimizer_values
from zerokit.memory.replay.zero_1_2 import Partition
from zerokit.units import MIB

PROCESS_BYTES = 1060 * MIB
"""Python, torch, CUDA and DeepSpeed in one rank (H200 runs without offload, the weights taken off)."""

PROCESS_NCCL_BYTES = 340 * MIB
"""More where NCCL talks to other ranks (the same runs with 2, 4 and 8 ranks)."""


def pinned(size_bytes: int, pin: bool = True) -> int:
    """What pinning this many bytes takes."""
    if size_bytes <= 0:
        return 0
    return 1 << (size_bytes - 1).bit_length() if pin else size_bytes


def host_components(
    layout: Layout, settings: DeepSpeedSettings, part: Partition, ranks: int, world_size: int
) -> dict[HostComponent, int]:
    """Host bytes of one rank, and those it keeps on NVMe, by component."""
    width = Precision.of(settings)
    whole = max(layout.profile.parameter_count, layout.trainable_numel + layout.frozen_numel)
    process = PROCESS_BYTES + (PROCESS_NCCL_BYTES if world_size > 1 else 0)
    found = {HostComponent.PROCESS: process}
    if settings.zero.stage == 3:
        trainable, _ = shares(layout, ranks)
        found |= _stage3(layout, settings, width, trainable, ranks)
    else:
        # the whole model is built in host memory by every rank before it moves to the GPU
        found[HostComponent.MODEL_BEFORE_IT_MOVES] = whole * width.parameter
        if settings.zero.offload_optimizer.device != "none":
            found |= _stage12(layout, settings, width, part)
            # long gone when the optimizer's states appear at the first step
            states = sum(
                size
                for name, size in found.items()
                if name not in (HostComponent.PROCESS, HostComponent.MODEL_BEFORE_IT_MOVES)
            )
            found[HostComponent.MODEL_BEFORE_IT_MOVES] = max(
                0, found[HostComponent.MODEL_BEFORE_IT_MOVES] - states
            )
    return {name: size for name, size in found.items() if size}


def _stage12(
    layout: Layout, settings: DeepSpeedSettings, width: Precision, part: Partition
) -> dict[HostComponent, int]:
    pin = settings.zero.offload_optimizer.pin_memory
    largest = layout.largest
    found = {
        HostComponent.MASTER_WEIGHTS: pinned(part.size * width.master, pin),
        HostComponent.GRADIENTS: pinned(part.size * width.master, pin),
        HostComponent.STAGING: pinned(part.size * width.parameter, pin),
        HostComponent.OFFLOAD_BUFFER: pinned(largest * width.parameter, pin),
        HostComponent.OPTIMIZER_STATES: part.size * optimizer_bytes(settings),
    }
    # async_accumulate_grad_in_cpu_via_gpu: whole parameters, unless the master's gradients are as narrow;
    # stage 1 accumulates on the GPU, and so does stage 2 in fp32 (_use_compact_grad_partition_buffer)
    on_gpu = settings.zero.stage == 1 or width.compact
    if not on_gpu and settings.gradient_accumulation > 1 and width.master == 4:
        sizes = [layout.trainable_sizes[i] * width.gradient for i in part.fragments]
        found[HostComponent.ACCUMULATED_GRADIENTS] = sum(pinned(size, pin) for size in sizes)
    return found


def _stage3(
    layout: Layout, settings: DeepSpeedSettings, width: Precision, trainable: int, ranks: int
) -> dict[HostComponent, int]:
    zero = settings.zero
    found: dict[HostComponent, int] = {}
    optimizer, parameter = zero.offload_optimizer, zero.offload_param
    if parameter.device == "none":
        found[HostComponent.DEFRAGMENTATION] = (
            trainable * width.parameter
        )  # zero/utils.py defragment goes over the host
    if parameter.device == "cpu":
        found[HostComponent.PARAMETERS] = pinned(share_bytes(layout, ranks, width.parameter))
        # zero.Init pins every parameter's share by itself; the pinned blocks stay cached
        widths = layout.widths(width.parameter)
        each = (-(-size // ranks) * wide for size, wide in zip(layout.sizes, widths, strict=True))
        found[HostComponent.PARAMETERS_WHILE_BUILT] = sum(pinned(size, parameter.pin_memory) for size in each)
    elif parameter.device == "nvme":
        found[HostComponent.PARAMETER_BUFFERS] = pinned(
            parameter.buffer_count * parameter.buffer_size * width.parameter
        )
        found[HostComponent.NVME_PARAMETERS] = share_bytes(layout, ranks, width.parameter)
    group = min(trainable, zero.sub_group_size)
    if optimizer.device == "cpu":
        on_host = trainable - sum(on_device(layout, zero, ranks))
        found[HostComponent.MASTER_WEIGHTS] = on_host * width.master
        found[HostComponent.GRADIENTS] = pinned(group * width.master, optimizer.pin_memory) * max(
            1, -(-on_host // max(1, group))
        )
        found[HostComponent.GRADIENT_PARTITION] = pinned(trainable * width.accumulation, optimizer.pin_memory)
        found[HostComponent.OPTIMIZER_STATES] = on_host * optimizer_bytes(settings)
    elif optimizer.device == "nvme":
        states = 1 + optimizer_values(settings)
        found[HostComponent.NVME_OPTIMIZER] = trainable * 4 * (states + 1)
        found[HostComponent.SWAP_BUFFERS] = pinned(optimizer.buffer_count * 4 * group)
        found[HostComponent.GRADIENT_PARTITION] = pinned(trainable * width.accumulation, optimizer.pin_memory)
    return found
