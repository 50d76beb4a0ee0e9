"""From allocated to "does it fit": what the card must have beside the tensors.

The only fitted figures of the memory model are here. Source: ``device_used_bytes`` and the capped
runs of the project's H200 measurements (torch 2.11, CUDA 13, driver 580).
"""

from __future__ import annotations

from zerokit.core.hardware import Gpu
from zerokit.core.strategy import Strategy
from zerokit.units import GIB, MIB

LIBRARIES_BYTES = 720 * MIB
"""Loaded kernels and library handles beside the bare context: 1.30 GiB used in all on one GPU."""

NCCL_BYTES = 480 * MIB
"""Buffers of the world's communicator: 1.77 GiB in all with 2, 4 and 8 ranks."""

NCCL_PER_GROUP_MEMBER_BYTES = 450 * MIB
"""More with tensor parallel: 2.47 GiB in all at 2, 3.51 GiB at 4 on the group's first rank."""

DEFAULT_CONTEXT_BYTES = 621 * MIB


def outside_allocator_bytes(gpu: Gpu, strategy: Strategy) -> int:
    """Context, libraries and NCCL. Bytes."""
    total = (gpu.context_bytes or DEFAULT_CONTEXT_BYTES) + LIBRARIES_BYTES
    if strategy.world_size > 1:
        total += NCCL_BYTES
    groups = max(strategy.tensor_parallel, strategy.sequence_parallel, strategy.pipeline_parallel)
    if groups > 1:
        total += NCCL_PER_GROUP_MEMBER_BYTES * min(groups, 8)
    return total


def allocator_bytes(gpu: Gpu, peak_bytes: int) -> int:
    """What the caching allocator holds beyond the peak: with expandable segments (set by ``launch``)
    rounding to 2 MiB pages per stream and pool; without them split and cached blocks."""
    if gpu.expandable_segments:
        return 256 * MIB + peak_bytes // 50
    return max(2 * GIB, peak_bytes // 8)


def min_vram_bytes(gpu: Gpu, strategy: Strategy, peak_bytes: int) -> int:
    """The smallest card, in nvidia-smi's total, on which a run with this peak succeeds. Bytes."""
    driver_reserve = max(0, gpu.driver_vram_bytes - gpu.vram_bytes)
    return (
        peak_bytes
        + allocator_bytes(gpu, peak_bytes)
        + outside_allocator_bytes(gpu, strategy)
        + driver_reserve
    )
