"""Every constant of the time model, with its source. Hardware peaks are the GPU catalogue's.

:data:`HUGGING_FACE` is what plans use: Hugging Face modules run eagerly under DeepSpeed 0.19.8. Other stacks,
by whose published runs the same formulas are judged, stand in ``benchmarks/stacks.py``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import field

from zerokit.timing.host_speed import USUAL
from zerokit.values import frozen_dataclass, replace

A100_PEAK_FLOPS = 312e12
"""The half-saturation sizes below are an A100's; other GPUs scale them with the root of their peak."""


@frozen_dataclass
class Constants:
    """One training stack on one kind of hardware. Seconds, bytes, elements.

    Attributes:
        matmul_efficiency: largest matmul rate over the datasheet's, where the catalogue has none.
        gemm_m0, gemm_n0: rows and columns at which a product runs at half its largest rate.
        unaligned_flops: most that the head's product reaches where the vocabulary is no multiple of 8 (the
            tensor cores read rows of 16 bytes), and half of the largest rate at best.
        attention_efficiency: of the flash kernel with heads of 128, over the largest matmul rate.
        attention_head_power: smaller heads reach (width/128) to this power of it.
        attention_backward: backward FLOPs over forward FLOPs (flash recomputes the scores).
        score_bytes: traffic per attention score in forward when scores are materialised (eager).
        hidden_bytes, ffn_bytes: element-wise traffic per token, layer and element of the hidden width (two
            norms, two sums) and of the feed-forward width, forward, in 16-bit training.
        rotary_bytes, norm_bytes: of the width of queries and keys, for their rotation; of what other norms
            read.
        autocast_hidden_share: times ``hidden_bytes`` under autocast with weights in fp32.
        plain_hidden_bytes: instead of ``hidden_bytes`` in models whose norm is one kernel (LayerNorm).
        adapter_bytes: more traffic per token, pass and output of a projection that has an adapter.
        gradient_bytes: traffic per trainable weight and micro-batch: gradients added up.
        reduce_bytes: more where they are reduced (stage 2 and 3 every micro-batch, else the last): copied
            to their bucket; with several ranks as much again, scaled and flattened.
        logit_bytes: traffic per logit of loss and gradient together.
        launch_seconds: host time to launch one layer's kernels in the forward pass.
        launch_kernels: how many those are; a layer with more takes longer. 0: layers are all alike.
        backward_launch, recompute_launch: of the backward pass and of recomputation, over the forward's.
        hook_seconds: host time per trainable tensor where gradients are reduced.
        offload_hook_seconds: more per trainable tensor of the rank where its gradient goes to the host.
        offload_fetch_seconds: more per weight and pass where weights come from the host.
        adapter_launch: with adapters on all projections, over that time: one adds three kernels.
        autocast_launch: under autocast with weights in fp32, more of ``launch_seconds`` per layer in forward,
            backward and recomputation: weights and inputs are cast. ``autocast_adapter_launch``: the same of
            adapters in fp32 on all projections in 16 bits.
        packed_seconds: host time more per pass and linear module whose weight is packed in 4 bits.
        checkpoint_seconds: host time more per checkpointed layer in the forward pass.
        stage3_launch_seconds, stage3_backward_seconds, stage3_recompute_seconds: on top of it per layer at
            stage 3, by pass (hooks, fetch, release).
        gather_seconds, stage3_reduce_seconds: more per gather and per reduction among several ranks
            (``zero_3_host``).
        stage3_step_seconds: host time of a stage-3 optimizer step per trainable tensor.
        persistent_gather_seconds: more per tensor that is gathered after it.
        stage3_adapter_launch: factors of the first three with adapters on all projections: more modules have
            hooks. ``stage3_adapter_seconds``: more per adapter's tensor and pass that releases it.
        fsdp2_hook_seconds: host time more per group of FSDP2 and pass; ``fsdp2_gather_seconds``: more where
            it is gathered, and ``fsdp2_tensor_seconds`` per tensor of it.
        fsdp2_reduce_seconds, fsdp2_step_seconds: more per trainable tensor where gradients are reduced, and
            where the optimizer steps; ``fsdp2_fixed_seconds``: of such a step.
        tensor_launch_seconds: on top of it per layer, pass and tensor-parallel peer: the slowest host of
            the group sets the pace of each all-reduce.
        launch_join: power of the smooth maximum of host and GPU time.
        step_launch_seconds: fixed host time of an optimizer step.
        tensor_step_seconds: host time of an optimizer step per tensor owned below stage 3: some 18 short
            kernels each (norm, flattening, scaling, copies).
        adam_bytes: GPU traffic of an Adam step per parameter owned.
        hbm_efficiency: reachable share of the memory bandwidth.
        link_efficiency, network_efficiency: reachable share of the datasheet's bus bandwidth.
        tensor_link_share: of that, what tensor parallel's all-reduces get: they start when the slowest
            rank arrives.
        half_bytes: message size at which a collective inside a node reaches half its bandwidth.
        network_half_bytes: the same between nodes.
        latency_seconds, network_latency_seconds: per collective.
        overlap_loss: share of a collective beside kernels that overlap does not hide, since they are slowed;
            ``copy_overlap_loss``: of copies from and to the host.
        pcie_efficiency: of the link's datasheet rate when one GPU copies.
        host_to_device_bytes_per_second, device_to_host_bytes_per_second: per node, all GPUs at once.
        cpu_adam_parameters_per_second: per node.
        cast_seconds: per weight that a rank casts from fp32 in host memory.
        blocking_cast_seconds: per weight that a rank copies from its GPU to host memory with another dtype:
            not through pinned memory, and cast there.
        vocab_parallel: the head is cut by vocabulary (no all-reduce of logits).
        tensor_parallel_collectives: all-reduces a layer, forward and backward, without recomputation.
        remap_seconds_per_byte: to give a page of the allocator back and map it again, by one process.
        cached_bytes: what the allocator caches beside the peak, over the size of the largest tensor.
        most_retries: of each large tensor, with next to nothing to spare.
    """

    matmul_efficiency: float
    gemm_m0: float
    gemm_n0: float
    unaligned_flops: float
    attention_efficiency: float
    attention_head_power: float
    attention_backward: float
    score_bytes: float
    hidden_bytes: float
    plain_hidden_bytes: float
    autocast_hidden_share: float
    rotary_bytes: float
    norm_bytes: float
    ffn_bytes: float
    adapter_bytes: float
    gradient_bytes: float
    reduce_bytes: float
    logit_bytes: float
    launch_seconds: float
    launch_kernels: float
    backward_launch: float
    recompute_launch: float
    hook_seconds: float
    offload_hook_seconds: float
    offload_fetch_seconds: float
    adapter_launch: float
    autocast_launch: tuple[float, float, float]
    autocast_adapter_launch: tuple[float, float, float]
    packed_seconds: float
    checkpoint_seconds: float
    stage3_launch_seconds: float
    stage3_backward_seconds: float
    stage3_recompute_seconds: float
    gather_seconds: float
    stage3_reduce_seconds: float
    stage3_step_seconds: float
    persistent_gather_seconds: float
    stage3_adapter_launch: tuple[float, float, float]
    stage3_adapter_seconds: float
    fsdp2_hook_seconds: float
    fsdp2_gather_seconds: float
    fsdp2_tensor_seconds: float
    fsdp2_reduce_seconds: float
    fsdp2_step_seconds: float
    fsdp2_fixed_seconds: float
    tensor_launch_seconds: float
    launch_join: float
    step_launch_seconds: float
    tensor_step_seconds: float
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
    copy_overlap_loss: float
    pcie_efficiency: float
    host_to_device_bytes_per_second: float
    device_to_host_bytes_per_second: float
    cpu_adam_parameters_per_second: float
    cast_seconds: float
    blocking_cast_seconds: float
    vocab_parallel: bool
    tensor_parallel_collectives: int
    remap_seconds_per_byte: float
    cached_bytes: float
    most_retries: float


HUGGING_FACE = Constants(
    # largest measured over datasheet rate: 271/312 on A100, 790/989 on H100 and H200
    matmul_efficiency=0.80,
    # H200, kernels.jsonl: 720 of 800 TFLOP/s at 512 rows; all of it at 8,192 rows and widths from 2,048 on
    gemm_m0=40.0,
    gemm_n0=70.0,
    # GPT-2's 50,257 on H200: 98 and 137 TFLOP/s forward and backward, where 50,304 reaches 790
    unaligned_flops=120e12,
    # H200: 0.67 with heads of 128 at 2,048 tokens (0.78 at 8,192), 0.43 to 0.48 with heads of 64;
    # FlashAttention-2 on A100 50-73 % of the datasheet (arXiv 2307.08691)
    attention_efficiency=0.67,
    attention_head_power=0.5,
    # the backward kernel recomputes the scores: five products instead of two (arXiv 2205.14135); 2.8 to 3.2
    attention_backward=2.9,
    # written by the product; fp32 softmax read and written; cast; mask; read: 16-bit scores
    score_bytes=22.0,
    # Llama of three widths: 189 to 197 in all with 10 for the activation and its product (two kernels: 4 and
    # 6); GPT-NeoX and GPT-2: 110 to 160. By torch's dispatcher a norm reads and writes 36 bytes of an element
    # forward and 92 backward, the sums 12 and 25, a rotation 20 and 36: those shares of 192
    hidden_bytes=155.0,
    plain_hidden_bytes=125.0,
    # rehearsed kernels of Qwen2.5-0.5B, 16 rows of 1,024: 24.7 ms of 199 more than in bf16, casts of weights
    # 1.5 of them: 91 bytes; Llama-3.2-1B some 120
    autocast_hidden_share=1.6,
    rotary_bytes=29.6,
    norm_bytes=67.7,
    ffn_bytes=10.0,
    # scaled and added (10), and the thin products: 14.6 forward, 15 backward
    adapter_bytes=15.0,
    # 5.4 by kernels, 8.3 by copies at half the bandwidth; with peers div_ and flatten are 4 and 4
    # (zero/stage_1_and_2.py:1688 and 1545)
    gradient_bytes=6.0,
    reduce_bytes=8.0,
    # upcast, fp32 log-softmax, its gradient and the cast back: 56 at a vocabulary of 152 thousand
    logit_bytes=57.0,
    # Host times are those of the usual host, 1.5 times a quiet one's (kernels.jsonl: a 2.1 GHz Xeon, 16 us a
    # kernel), and of the host lanes of six rehearsed loops at stages 1 and 2 (0.9 to 1.2 times): those
    # of the 45 runs that shared hosts by up to eight come out at twice.
    # Llama, 40 kernels forward: 0.65 ms alone; 1.56 backward, of which 45 of 103 kernels are those of
    # DeepSpeed's hooks on 9 gradients; 0.9 more when recomputing
    launch_seconds=1.0e-3,
    launch_kernels=38.0,
    backward_launch=1.4,
    recompute_launch=1.4,
    hook_seconds=0.1e-3,
    # norm, overflow, copies (zero/stage_1_and_2.py, set_norm_for_param_grad_in_gpu and the two after it):
    # eight launches; a copy with its events: three
    offload_hook_seconds=0.2e-3,
    offload_fetch_seconds=0.07e-3,
    # 69 kernels instead of 40, and 143 instead of 103
    adapter_launch=1.7,
    # host lanes of rehearsed loops by Accelerate on one GPU, layers of Qwen2.5 and Llama with and without it:
    # 0.24 and 0.18 ms more on the reference host forward, 0.68 and 0.56 backward with recomputation; with
    # adapters 0.78 forward, 0.46 backward and 1.36 of recomputation beyond adapter_launch
    autocast_launch=(0.16, 0.27, 0.21),
    autocast_adapter_launch=(0.59, 0.35, 1.03),
    # a loop of the race on one GPU took 67 us more than the same launches without it (bitsandbytes: five
    # kernels, two of them of operators registered from Python); under FSDP2 more that is not explained
    packed_seconds=0.08e-3,
    # 0.3 ms alone
    checkpoint_seconds=0.45e-3,
    # least squares over the host lanes of 23 rehearsed loops (benchmarks/waiting_times.py --lanes), which
    # they meet within 9 % in every phase
    stage3_launch_seconds=4.55e-3,
    stage3_backward_seconds=3.96e-3,
    stage3_recompute_seconds=3.32e-3,
    gather_seconds=0.29e-3,
    stage3_reduce_seconds=0.23e-3,
    stage3_step_seconds=0.08e-3,
    persistent_gather_seconds=0.30e-3,
    # nine rehearsed loops with adapters, six recomputing, whose gathers were counted: 2.8 to 2.9, 2.2 to 2.4
    # and 3.8; the same with 3 and with 14 tensors of a layer released: 0.25 ms each on the reference host
    stage3_adapter_launch=(2.85, 2.3, 3.8),
    stage3_adapter_seconds=0.19e-3,
    # their proportions are those of rehearsed host lanes (torch 2.13, Accelerate 1.15); together a tenth less
    # than what narrow models of 24 and 28 layers took more than without an engine, beside the host's probe on
    # two H200s (benchmarks/measure/data/host-lanes.jsonl): wider ones took less
    fsdp2_hook_seconds=0.36e-3,
    fsdp2_gather_seconds=0.41e-3,
    fsdp2_tensor_seconds=0.046e-3,
    fsdp2_reduce_seconds=0.05e-3,
    fsdp2_step_seconds=0.038e-3,
    fsdp2_fixed_seconds=3.3e-3,
    # Megatron-DeepSpeed on A100: 8-way layers launch in 1.4 times the time of whole ones
    tensor_launch_seconds=60e-6,
    launch_join=5.0,
    # 3 ms and 0.13 ms a tensor alone
    step_launch_seconds=4.5e-3,
    tensor_step_seconds=0.2e-3,
    # Adam alone 34 (fp32 weight, moments and gradient read, three written); the norm in fp64, flattening,
    # unscaling and the 16-bit copies make it 94 to 117
    adam_bytes=100.0,
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
    # 25.7 ms of kernels took 34.9 beside NCCL's (kernel_prices.slowed)
    overlap_loss=0.26,
    copy_overlap_loss=0.15,
    pcie_efficiency=0.8,
    # 8 H200 copying at once: 18.7 and 10.9 GB/s each
    host_to_device_bytes_per_second=150e9,
    device_to_host_bytes_per_second=87e9,
    # 0.22 to 0.26 s per 1e9 parameters at best, 0.48 fitted to runs on busy hosts
    cpu_adam_parameters_per_second=3.0e9,
    # read 4 bytes and write 2: 0.1 to 0.3 ns beside Adam in the four offloaded runs of h200-deepspeed
    cast_seconds=0.2e-9,
    # torch's copy_ without non_blocking: 4 bytes a weight into new, pageable memory, then cast
    # (aten/src/ATen/native/cuda/Copy.cu, conversion_device): 2.8 ns on H200, two ranks of one host at once
    blocking_cast_seconds=2.8e-9,
    vocab_parallel=False,
    # forward and backward of attention and of the feed-forward layer (arXiv 1909.08053)
    tensor_parallel_collectives=4,
    # 8 GiB in pages of 20 MiB on an H200: 13 to 16 ms to give back and 14 to 22 to map, alone; 30 and 31
    # with a second GPU of the host doing the same (benchmarks/measure/data/kernels.jsonl, remap)
    remap_seconds_per_byte=4e-3 / 2**30,
    # zerokit/timing/step_time.py says what was measured
    cached_bytes=0.75 * 2**30,
    most_retries=2.0,
)


_OF_THE_HOST = (
    "launch_seconds", "hook_seconds", "offload_hook_seconds", "offload_fetch_seconds", "packed_seconds",
    "checkpoint_seconds",
    "stage3_launch_seconds", "stage3_backward_seconds", "stage3_recompute_seconds", "gather_seconds",
    "stage3_reduce_seconds", "stage3_adapter_seconds", "stage3_step_seconds", "persistent_gather_seconds",
    "tensor_launch_seconds", "step_launch_seconds", "tensor_step_seconds", "fsdp2_hook_seconds",
    "fsdp2_gather_seconds", "fsdp2_tensor_seconds", "fsdp2_reduce_seconds", "fsdp2_step_seconds",
    "fsdp2_fixed_seconds",
)  # fmt: skip


def at_host(constants: Constants, factor: float) -> Constants:
    """The constants on a host that takes ``factor`` times the reference host's seconds to issue work. Theirs
    is the usual one."""
    scale = factor / USUAL
    return replace(constants, **{name: scale * getattr(constants, name) for name in _OF_THE_HOST})


@frozen_dataclass
class LayerFactor:
    """Measured over predicted time of a layer at one point: what no formula foresees (the kernels that
    a library picks for these sizes)."""

    hidden: int
    tensor_parallel: int
    tokens: float
    factor: float


@frozen_dataclass
class JobFactors:
    """Measured over predicted step time of one job's strategies.

    Attributes:
        by_family: ``Strategy.family`` of those that ran -> factor.
        otherwise: the factor of all that did not.
        ranges: family -> between how many times its step is on the fastest and the slowest host, of those
            that were rehearsed, whose host is not known.
    """

    by_family: Mapping[tuple[object, ...], float]
    otherwise: float
    ranges: Mapping[tuple[object, ...], tuple[float, float]] = field(default_factory=dict)

    def of(self, family: tuple[object, ...]) -> float:
        """The factor of a strategy's family."""
        return self.by_family.get(family, self.otherwise)


_REACH_OCTAVES = 0.35
"""How far, in doublings of a size, a measured layer speaks for another: hardly to the next power of two."""
_PRIOR_WEIGHT = 0.05
"""Of the guess that a layer takes as long as predicted, beside measured layers, each of which counts 1 at its
own sizes: so that one far from all of them is left as it is. Chosen, not fitted."""


@frozen_dataclass
class Calibration:
    """What was measured on the machine (``zerokit doctor --measure``, ``zerokit tune``); replaces
    the constants. ``None``: not measured.

    Attributes:
        matmul_flops: largest 16-bit matmul rate.
        allreduce_bytes_per_second: bus bandwidth inside a node for large messages.
        host_memory_bytes_per_second: of the node: elementwise work on host tensors, read and written.
        host_cast_bytes_per_second: of the node: casts of host tensors to half their width, read and written.
        layer_factors: measured layers; they speak for layers of nearly the same sizes only.
        host_factor: the host's seconds to issue operators over the reference host's (``host_speed``).
        host_factor_low, host_factor_high: between them are nine tenths of its probe's rounds.
        host_source: where the factor comes from, for a reader.
        tuned: factors of the very job that is timed; they go before the layers'.
        rehearsed: the same of its script's rehearsals; ``tuned`` goes before them.
    """

    matmul_flops: float | None = None
    allreduce_bytes_per_second: float | None = None
    network_bytes_per_second: float | None = None
    host_to_device_bytes_per_second: float | None = None
    device_to_host_bytes_per_second: float | None = None
    cpu_adam_parameters_per_second: float | None = None
    nvme_bytes_per_second: float | None = None
    host_memory_bytes_per_second: float | None = None
    host_cast_bytes_per_second: float | None = None
    host_factor: float | None = None
    host_factor_low: float | None = None
    host_factor_high: float | None = None
    host_source: str = ""
    layer_factors: tuple[LayerFactor, ...] = ()
    tuned: JobFactors | None = None
    rehearsed: JobFactors | None = None
    source: str = ""

    def layer_factor(self, hidden: int, tensor_parallel: int, tokens: float) -> float:
        """The factor for a layer of these sizes, from the measured ones near it; 1 far from all."""
        if not self.layer_factors or self.tuned is not None or self.rehearsed is not None:
            return 1.0
        total, weight = 0.0, 0.0
        for point in self.layer_factors:
            distance = (
                math.log2(point.hidden / hidden) ** 2
                + math.log2(point.tensor_parallel / tensor_parallel) ** 2
                + math.log2(point.tokens / tokens) ** 2
            )
            nearness = math.exp(-distance / (2 * _REACH_OCTAVES**2))
            total += nearness * math.log(point.factor)
            weight += nearness
        return math.exp(total / (weight + _PRIOR_WEIGHT))
