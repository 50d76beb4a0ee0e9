"""From allocated to "does it fit": what the card must have beside the tensors.

The fitted figures around a peak are here. Source: ``device_used_bytes`` and the capped
runs of the project's H200 measurements (torch 2.11, CUDA 13, driver 580): tests/data/h200 and
benchmarks/measure/data.
"""

from __future__ import annotations

from zerokit.domain.hardware import Gpu
from zerokit.domain.strategy import Strategy
from zerokit.domain.trainers import Trainer
from zerokit.units import GIB, MIB

LIBRARIES_BYTES = 720 * MIB
"""Loaded kernels and library handles beside the bare context: 1.30 GiB used in all on one GPU."""

NCCL_BYTES = 480 * MIB
"""Buffers of the world's communicator: 1.77 GiB in all with 2, 4 and 8 ranks."""

NCCL_FURTHER_BYTES = 388 * MIB
"""More for each further group that has a communicator, as a Trainer's has, where Accelerate waits and gathers
in PyTorch's default group and DeepSpeed below stage 3 in its own: 388 MiB for a group of one rank, at its
first collective on an H200 (torch 2.11); runs of TRL's trainers take 1.68 GiB in all, 1.29 at stage 3."""

NCCL_PER_GROUP_MEMBER_BYTES = 450 * MIB
"""More with tensor parallel: 2.47 GiB in all at 2, 3.51 GiB at 4 on the group's first rank."""

DEFAULT_CONTEXT_BYTES = 621 * MIB


CONTEXT, NCCL, DRIVER, RESERVED, FLAT_COPY = (
    "context and libraries", "NCCL buffers", "kept by the driver", "reserved beyond allocated",
    "copied on the CPU where the GPU has no room",
)  # fmt: skip
"""What stands between the tensors of a peak and the card that a run requires."""


def _gathers(strategy: Strategy, trainer: Trainer | None) -> bool:
    """Whether what is logged is gathered on a communicator beside the engine's."""
    return trainer is not None and trainer.gathers and strategy.settings.has_own_group


def _nccl_bytes(strategy: Strategy, trainer: Trainer | None = None) -> int:
    gathering = NCCL_FURTHER_BYTES if _gathers(strategy, trainer) else 0
    if strategy.world_size == 1:
        return gathering
    groups = max(strategy.tensor_parallel, strategy.pipeline_parallel)
    if strategy.engine == "deepspeed":
        groups = max(groups, strategy.sequence_parallel)
    shared = strategy.sequence_parallel if strategy.data_parallel > 1 else 1  # else the default group does
    own = NCCL_BYTES + (strategy.settings.communicators(shared) - 1) * NCCL_FURTHER_BYTES
    return gathering + own + (NCCL_PER_GROUP_MEMBER_BYTES * min(groups, 8) if groups > 1 else 0)


def outside_allocator_bytes(gpu: Gpu, strategy: Strategy, trainer: Trainer | None = None) -> int:
    """Context, libraries and NCCL. Bytes."""
    return (gpu.context_bytes or DEFAULT_CONTEXT_BYTES) + LIBRARIES_BYTES + _nccl_bytes(strategy, trainer)


def room_in_init(gpu: Gpu, strategy: Strategy) -> int:
    """What the driver calls free while the engine is set up, on a card without tensors: before kernels and
    libraries of the first step are loaded. Bytes."""
    return gpu.vram_bytes - (gpu.context_bytes or DEFAULT_CONTEXT_BYTES) - _nccl_bytes(strategy)


def around_peak(
    gpu: Gpu, strategy: Strategy, peak_bytes: int, required_bytes: int, trainer: Trainer
) -> dict[str, int]:
    """What a card must have beside the tensors of a peak, by what it is; it sums to ``required_bytes`` less
    the peak. Bytes."""
    rest = required_bytes - peak_bytes
    outside = {
        CONTEXT: (gpu.context_bytes or DEFAULT_CONTEXT_BYTES) + LIBRARIES_BYTES,
        NCCL: _nccl_bytes(strategy, trainer),
        DRIVER: gpu.driver_kept_bytes,
    }
    reserved = rest - sum(outside.values())
    parts = {RESERVED if reserved > 0 else FLAT_COPY: reserved, **outside}
    return {name: size for name, size in parts.items() if size}


EXPANDABLE_BYTES = 384 * MIB
"""Above the peak with expandable segments. Of 21 configurations (16 on one GPU, 5 on two; peaks of 5 to
66 GiB) started anew under caps, all ran with 384 MiB above their peak or less and 20 with 256 MiB; 53
lowered step by step while training went on needed 32 to 320 MiB (benchmarks/measure/data). It does not
grow with the peak: it is the pages (2 MiB; 20 MiB for large blocks) that live tensors fill in part."""

EXPANDABLE_SHARE = 200
"""1/200 of the peak more: a margin, not measured."""


KEPT_SHARE = 12
"""1/12 of the peak, where what PyTorch's allocator keeps cannot be taken back, since NCCL makes a
communicator after training began. Beyond the peak 0.2 to 6.5 % were reserved in 13 runs of TRL's SFT and DPO
(benchmarks/fast_answers and H200s), 7 % in a rehearsal of the Trainer's; GRPO, which generates, took up to
21 %."""


def keeps_memory(strategy: Strategy, trainer: Trainer) -> bool:
    """Whether NCCL makes a communicator after training began."""
    return _gathers(strategy, trainer) and not trainer.waits


def allocator_bytes(gpu: Gpu, peak_bytes: int, *, keeps: bool = False) -> int:
    """What the caching allocator must hold beyond the peak for the run to succeed.

    With expandable segments (set by ``launch``) cached pages are given back when the limit is met, and
    only fragments count. Without them blocks stay split: a peak of 23.4 GiB failed 3 GiB above it and ran
    with 4, one of 25.4 failed with 1.6 and ran with 3.1, one of 26.9 failed with 1 and ran with 2.
    """
    if gpu.expandable_segments:
        return max(EXPANDABLE_BYTES + peak_bytes // EXPANDABLE_SHARE, keeps * peak_bytes // KEPT_SHARE)
    return max(2 * GIB, peak_bytes // 5)


def min_vram_bytes(gpu: Gpu, strategy: Strategy, peak_bytes: int, trainer: Trainer | None = None) -> int:
    """The smallest card, in nvidia-smi's total, on which a run with this peak succeeds. Bytes. ``trainer``:
    under which it runs; None: a loop of its own."""
    return (
        peak_bytes
        + allocator_bytes(gpu, peak_bytes, keeps=trainer is not None and keeps_memory(strategy, trainer))
        + outside_allocator_bytes(gpu, strategy, trainer)
        + gpu.driver_kept_bytes
    )
