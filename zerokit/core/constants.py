"""Every constant of the time model, with its source. Hardware peaks are the GPU catalogue's.

:data:`HUGGING_FACE` is what plans use: Hugging Face modules run eagerly under DeepSpeed 0.19.8.
:data:`MEGATRON` describes Megatron-DeepSpeed's fused kernels, :data:`FSDP_TRITON` MosaicML's
llm-foundry stack; they exist so that published runs of those stacks can judge the same formulas
(``python -m benchmarks.planner``).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

A100_PEAK_FLOPS = 312e12
"""The half-saturation sizes below are an A100's; other GPUs scale them with the root of their peak."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Constants:
    """One training stack on one kind of hardware. Seconds, bytes, elements.

    Attributes:
        matmul_efficiency: largest matmul rate over the datasheet's, where the catalogue has none.
        gemm_m0, gemm_n0: rows and columns at which a product runs at half its largest rate.
        attention_efficiency: of the flash kernel, over the largest matmul rate.
        attention_backward: backward FLOPs over forward FLOPs (flash recomputes the scores).
        score_bytes: traffic per attention score in forward when scores are materialised (eager).
        hidden_bytes, ffn_bytes: element-wise traffic per token, layer and element of the hidden width
            and of the feed-forward width, forward, in 16-bit training.
        logit_bytes: traffic per logit of loss and gradient together.
        launch_seconds: host time to launch one layer's kernels in one pass.
        stage3_launch_seconds: on top of it per layer and pass at stage 3 (hooks, fetch, release).
        tensor_launch_seconds: on top of it per layer, pass and tensor-parallel peer: the slowest host of
            the group sets the pace of each all-reduce.
        launch_join: power of the smooth maximum of host and GPU time.
        step_launch_seconds: fixed host time of an optimizer step.
        adam_bytes: GPU traffic of an Adam step per parameter owned.
        hbm_efficiency: reachable share of the memory bandwidth.
        link_efficiency, network_efficiency: reachable share of the datasheet's bus bandwidth.
        tensor_link_share: of that, what tensor parallel's all-reduces get: they start when the slowest
            rank arrives.
        half_bytes: message size at which a collective inside a node reaches half its bandwidth.
        network_half_bytes: the same between nodes.
        latency_seconds, network_latency_seconds: per collective.
        overlap_loss: share of the shorter of compute and communication that overlap does not hide.
        pcie_efficiency: of the link's datasheet rate when one GPU copies.
        host_to_device_bytes_per_second, device_to_host_bytes_per_second: per node, all GPUs at once.
        cpu_adam_parameters_per_second: per node.
        vocab_parallel: the head is cut by vocabulary (no all-reduce of logits).
        tensor_parallel_collectives: all-reduces a layer, forward and backward, without recomputation.
        remap_seconds_per_byte: to give a page of the allocator back and map it anew, by one process.
        cached_bytes: what the allocator caches beside the peak, over the size of the largest tensor.
        most_retries: of each large tensor, with next to nothing to spare.
    """

    matmul_efficiency: float
    gemm_m0: float
    gemm_n0: float
    attention_efficiency: float
    attention_backward: float
    score_bytes: float
    hidden_bytes: float
    ffn_bytes: float
    logit_bytes: float
    launch_seconds: float
    stage3_launch_seconds: float
    tensor_launch_seconds: float
    launch_join: float
    step_launch_seconds: float
    adam_bytes: float
    hbm_efficiency: float
    link_efficiency: float
    tensor_link_share: float
    half_bytes: float
    network_efficiency: float
    network_half_bytes: float
    latency_seconds: float
    network_latency_seconds: float
    overlap_loss: float
    pcie_efficiency: float
    host_to_device_bytes_per_second: float
    device_to_host_bytes_per_second: float
    cpu_adam_parameters_per_second: float
    vocab_parallel: bool
    tensor_parallel_collectives: int
    remap_seconds_per_byte: float
    cached_bytes: float
    most_retries: float


HUGGING_FACE = Constants(
    # largest measured over datasheet rate: 271/312 on A100, 790/989 on H100 and H200
    matmul_efficiency=0.80,
    # A100, fitted to llm-foundry's A100 rows together (benchmarks/planner.py --fit)
    gemm_m0=480.0,
    gemm_n0=450.0,
    # FlashAttention-2 reaches 50-73 % on A100 (arXiv 2307.08691); 0.47 fitted to 45 H200 runs
    attention_efficiency=0.50,
    # the backward kernel recomputes the scores: five products instead of two (arXiv 2205.14135)
    attention_backward=2.5,
    # written by the product; fp32 softmax read and written; cast; mask; read: 16-bit scores
    score_bytes=22.0,
    # element-wise kernels of Hugging Face's modules counted for Llama (norms in fp32, residuals, rotary
    # embedding, activation) and fitted to 45 runs of DeepSpeed 0.19.8 on H200: 79, 15.6, 39
    hidden_bytes=80.0,
    ffn_bytes=15.0,
    logit_bytes=39.0,
    # fitted to the same runs, whose hosts were shared: 2.4 and 6.5 ms
    launch_seconds=2.0e-3,
    stage3_launch_seconds=6.0e-3,
    # Megatron-DeepSpeed on A100: 8-way layers launch in 1.4 times the time of whole ones
    tensor_launch_seconds=60e-6,
    launch_join=2.0,
    step_launch_seconds=5e-3,
    # fp32 weight, moments and gradient read, three written, 16-bit copies: 30; DeepSpeed's flattening
    # and unscaling passes come on top
    adam_bytes=40.0,
    hbm_efficiency=0.85,
    # NCCL on 8 H200: 345 of 450 GB/s at 256 MiB
    link_efficiency=0.77,
    tensor_link_share=0.60,
    # the same machine: 31, 246, 345, 359 GB/s at 1, 16, 256, 1024 MiB
    half_bytes=8e6,
    network_efficiency=0.85,
    network_half_bytes=32e6,
    latency_seconds=15e-6,
    network_latency_seconds=40e-6,
    overlap_loss=0.15,
    pcie_efficiency=0.8,
    # 8 H200 copying at once: 18.7 and 10.9 GB/s each
    host_to_device_bytes_per_second=150e9,
    device_to_host_bytes_per_second=87e9,
    # 0.22 to 0.26 s per 1e9 parameters at best, 0.48 fitted to runs on busy hosts
    cpu_adam_parameters_per_second=3.0e9,
    vocab_parallel=False,
    # forward and backward of attention and of the feed-forward layer (arXiv 1909.08053)
    tensor_parallel_collectives=4,
    # 8 GiB in pages of 20 MiB on an H200: 13 to 16 ms to give back and 14 to 22 to map, alone; 30 and 31
    # with a second GPU of the host doing the same (benchmarks/measure/data/kernels.jsonl, remap)
    remap_seconds_per_byte=4e-3 / 2**30,
    # zerokit/core/retries.py says what was measured
    cached_bytes=0.75 * 2**30,
    most_retries=2.0,
)
MEGATRON = replace(
    HUGGING_FACE,
    # fused kernels counted: two layer norms, two residual sums with dropout, transposes; bias and GeLU
    hidden_bytes=32.0,
    ffn_bytes=6.0,
    # fused scale-mask-softmax: written, read and written once, dropped, read
    score_bytes=12.0,
    # the vocabulary-parallel cross-entropy runs a dozen fp32 passes
    logit_bytes=60.0,
    launch_seconds=0.9e-3,
    stage3_launch_seconds=0.0,
    launch_join=4.0,
    adam_bytes=30.0,
    vocab_parallel=True,
)
FSDP_TRITON = replace(
    MEGATRON,
    # FlashAttention-1 in Triton: 25-40 % on A100 (arXiv 2307.08691, section 1)
    attention_efficiency=0.35,
    vocab_parallel=False,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerFactor:
    """Measured over predicted time of a layer at one point: what no formula foresees (the kernels that
    a library picks for these sizes)."""

    hidden: int
    tensor_parallel: int
    tokens: float
    factor: float


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFactors:
    """Measured over predicted step time of one job's strategies.

    Attributes:
        tried: ``Strategy.family`` of those that ran -> factor.
        others: the factor of all that did not.
    """

    tried: Mapping[tuple[object, ...], float]
    others: float

    def of(self, family: tuple[object, ...]) -> float:
        """The factor of a strategy's family."""
        return self.tried.get(family, self.others)


_REACH_OCTAVES = 0.35
"""How far, in doublings of a size, a measured layer speaks for another: hardly to the next power of two."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """What was measured on the machine (``zerokit doctor --measure``, ``zerokit tune``); replaces
    the constants. ``None``: not measured.

    Attributes:
        matmul_flops: largest 16-bit matmul rate.
        allreduce_bytes_per_second: bus bandwidth inside a node for large messages.
        layer_factors: measured layers; they speak for layers of nearly the same sizes only.
        tuned: factors of the very job that is timed; they go before the layers'.
    """

    matmul_flops: float | None = None
    allreduce_bytes_per_second: float | None = None
    network_bytes_per_second: float | None = None
    host_to_device_bytes_per_second: float | None = None
    device_to_host_bytes_per_second: float | None = None
    cpu_adam_parameters_per_second: float | None = None
    nvme_bytes_per_second: float | None = None
    layer_factors: tuple[LayerFactor, ...] = ()
    tuned: JobFactors | None = None
    source: str = ""

    def layer_factor(self, hidden: int, tensor_parallel: int, tokens: float) -> float:
        """The factor for a layer of these sizes, from the measured ones near it; 1 far from all."""
        if not self.layer_factors or self.tuned is not None:
            return 1.0
        total, weight = 0.0, 0.0
        for point in self.layer_factors:
            distance = (
                math.log2(point.hidden / hidden) ** 2
                + math.log2(point.tensor_parallel / tensor_parallel) ** 2
                + math.log2(point.tokens / tokens) ** 2
            )
            near = math.exp(-distance / (2 * _REACH_OCTAVES**2))
            total += near * math.log(point.factor)
            weight += near
        return math.exp(total / (weight + 0.05))
