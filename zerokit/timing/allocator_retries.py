"""What PyTorch's allocator costs near the card's limit: memory given back and mapped again.

With expandable segments the allocator keeps what was freed mapped. A tensor that fits into none of
the holes gets new pages at the end of the segment; where the limit forbids them, it waits for the
GPU, gives **every** cached page back and maps what it needs (``num_alloc_retries``;
c10/cuda/CUDACachingAllocator.cpp of torch 2.11: ``release_cached_blocks``, ``ExpandableSegment``).
So it is the largest tensors that retry: the holes that the rest of a step leaves are smaller.

What is cached beside the peak is about as large as the largest tensor. In the runs on several GPUs
of ``benchmarks/measure/data/quality.jsonl`` that nothing held back, reserved less allocated was 2.1 to
7 GiB where the loss's fp32 logits were 1 to 7.8 GiB. Below that the number of retries grows as room
shrinks, to about two per occurrence: 0 at 4 GiB to spare, 1 at 2, 2 at 1 and 4 at 0.5 for a tensor of
5 GiB; 2.2, 0.6, 1.9 and 1 a micro-batch in the four runs of ``quality.jsonl`` that were held to a card.
"""

from __future__ import annotations

from zerokit.domain.hardware import Cluster
from zerokit.domain.job import Job
from zerokit.domain.model_shape import ModelShape
from zerokit.domain.strategy import MemoryEstimate, Strategy
from zerokit.memory.card import allocator_bytes, keeps_memory
from zerokit.timing.constants import Constants

_FP32 = 4


def spare_bytes(memory: MemoryEstimate, strategy: Strategy, job: Job, cluster: Cluster) -> int:
    """What the allocator may hold beyond the peak on this card; below 0 where the run does not fit."""
    keeps, peak = keeps_memory(strategy, job.defaults), memory.worst.peak_allocated_bytes
    required = memory.min_vram_bytes - allocator_bytes(cluster.gpu, peak, keeps=keeps)
    return cluster.gpu.driver_vram_bytes - required


def large_blocks(
    shape: ModelShape, job: Job, strategy: Strategy, flattened: float
) -> list[tuple[float, int]]:
    """(bytes, times a step) of the tensors for which no hole is large enough; ``flattened``: elements of the
    gradients that the optimizer's step makes one tensor in fp32 of."""
    settings = strategy.settings
    blocks: list[tuple[float, int]] = []
    if shape.head == "causal":
        # transformers/loss/loss_utils.py, ForCausalLMLoss: "Upcast to float"
        tokens = settings.micro_batch * job.row_tokens / strategy.sequence_parallel
        blocks.append((_FP32 * tokens * shape.vocab, settings.gradient_accumulation))
    if flattened:
        blocks.append((_FP32 * flattened, 1))
    return blocks


def most_spare_bytes(least_vram: int, strategy: Strategy, job: Job, cluster: Cluster) -> int:
    """The most that ``spare_bytes`` can say of an estimate that needs ``least_vram`` or more."""
    keeps, vram = keeps_memory(strategy, job.defaults), cluster.gpu.vram_bytes
    return cluster.gpu.driver_vram_bytes - least_vram + allocator_bytes(cluster.gpu, vram, keeps=keeps)


def retry_seconds(
    shape: ModelShape,
    job: Job,
    strategy: Strategy,
    cluster: Cluster,
    constants: Constants,
    flattened: float,
    headroom: int,
) -> float:
    """Seconds of a step in which pages are given back and mapped again; 0 with room enough.

    A retry moves what is spare and the tensor's own size. The driver does it for one process of the
    host at a time (two GPUs took 1.8 times as long as one), and the ranks of a node reach it together.
    It never falls as ``headroom`` shrinks, from what any run must have on (``fits.EXPANDABLE_BYTES``).
    """
    if job.inference or headroom < 0 or cluster.on_cpu:
        return 0.0
    per_byte = constants.remap_seconds_per_byte * cluster.gpus_per_node
    seconds = 0.0
    for size, times in large_blocks(shape, job, strategy, flattened):
        cached = size + constants.cached_bytes
        if headroom < cached:
            retries = constants.most_retries * (1 - headroom / cached)
            seconds += times * retries * (headroom + size) * per_byte
    return seconds
