"""Every constant of the time model, with its source. Hardware peaks are the GPU catalogue's.

:data:`HUGGING_FACE` is what plans use: Hugging Face modules run eagerly under DeepSpeed 0.19.8.
:data:`MEGATRON` describes Megatron-DeepSpeed's fused kernels, :data:`FSDP_TRITON` MosaicML's
llm-foundry stack; they exist so that published runs of those stacks can judge the same formulas
(``python -m benchmarks.planner``).
"""

from __future__ import annotations

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
        launch_join: power of the smooth maximum of host and GPU time.
        step_launch_seconds: fixed host time of an optimizer step.
        adam_bytes: GPU traffic of an Adam step per parameter owned.
        hbm_efficiency: reachable share of the memory bandwidth.
        link_efficiency, network_efficiency: reachable share of the datasheet's bus bandwidth.
        half_bytes: message size at which a collective inside a node reaches half its bandwidth.
        network_half_bytes: the same between nodes.
        latency_seconds, network_latency_seconds: per collective.
        overlap_loss: share of the shorter of compute and communication that overlap does not hide.
        pcie_efficiency: of the link's datasheet rate when one GPU copies.
        host_to_device_bytes_per_second, device_to_host_bytes_per_second: per node, all GPUs at once.
        cpu_adam_parameters_per_second: per node.
        vocab_parallel: the head is cut by vocabulary (no all-reduce of logits).
        tensor_parallel_collectives: all-reduces a layer, forward and backward, without recomputation.
    """

    matmul_efficiency: float = 0.80
    gemm_m0: float = 520.0
    gemm_n0: float = 2200.0
    attention_efficiency: float = 0.60
    attention_backward: float = 2.5
    score_bytes: float = 22.0
    hidden_bytes: float = 56.0
    ffn_bytes: float = 14.0
    logit_bytes: float = 34.0
    launch_seconds: float = 0.9e-3
    stage3_launch_seconds: float = 4.5e-3
    launch_join: float = 4.0
    step_launch_seconds: float = 5e-3
    adam_bytes: float = 30.0
    hbm_efficiency: float = 0.85
    link_efficiency: float = 0.77
    half_bytes: float = 8e6
    network_efficiency: float = 0.85
    network_half_bytes: float = 32e6
    latency_seconds: float = 15e-6
    network_latency_seconds: float = 40e-6
    overlap_loss: float = 0.15
    pcie_efficiency: float = 0.8
    host_to_device_bytes_per_second: float = 150e9
    device_to_host_bytes_per_second: float = 87e9
    cpu_adam_parameters_per_second: float = 4.2e9
    vocab_parallel: bool = False
    tensor_parallel_collectives: int = 4


HUGGING_FACE = Constants()
MEGATRON = replace(HUGGING_FACE, vocab_parallel=True)
FSDP_TRITON = replace(HUGGING_FACE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """What was measured on the machine (``zerokit doctor --measure``, ``zerokit tune``); replaces
    the constants. ``None``: not measured.

    Attributes:
        matmul_flops: largest 16-bit matmul rate.
        allreduce_bytes_per_second: bus bandwidth inside a node for large messages.
        step_factor: measured over predicted step time of a tuned plan, applied to all.
    """

    matmul_flops: float | None = None
    allreduce_bytes_per_second: float | None = None
    network_bytes_per_second: float | None = None
    host_to_device_bytes_per_second: float | None = None
    device_to_host_bytes_per_second: float | None = None
    cpu_adam_parameters_per_second: float | None = None
    nvme_bytes_per_second: float | None = None
    step_factor: float = 1.0
    source: str = ""
