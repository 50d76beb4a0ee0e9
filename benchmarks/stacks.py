"""Training stacks other than the one that plans are for, as constants of the same time model.

Published runs of them judge the formulas (``python -m benchmarks.planner``); no plan uses them.
"""

from __future__ import annotations

import math
from dataclasses import replace

from zerokit.timing.constants import HUGGING_FACE, Constants

MEGATRON = replace(
    HUGGING_FACE,
    # A100, cuBLAS 11; fitted to llm-foundry's A100 rows together
    gemm_m0=480.0,
    gemm_n0=450.0,
    unaligned_flops=math.inf,
    attention_efficiency=0.50,
    attention_head_power=0.0,
    attention_backward=2.5,
    # fused kernels counted: two layer norms, two residual sums with dropout, transposes; bias and GeLU
    hidden_bytes=32.0,
    plain_hidden_bytes=32.0,
    rotary_bytes=0.0,
    norm_bytes=0.0,
    ffn_bytes=6.0,
    # gradients are added up where they are written
    gradient_bytes=0.0,
    reduce_bytes=0.0,
    # fused scale-mask-softmax: written, read and written once, dropped, read
    score_bytes=12.0,
    # the vocabulary-parallel cross-entropy runs a dozen fp32 passes
    logit_bytes=60.0,
    launch_seconds=0.8e-3,
    launch_kernels=0.0,
    backward_launch=1.0,
    recompute_launch=1.0,
    hook_seconds=0.0,
    packed_seconds=0.0,
    checkpoint_seconds=0.0,
    stage3_launch_seconds=0.0,
    stage3_backward_seconds=0.0,
    stage3_recompute_seconds=0.0,
    gather_seconds=0.0,
    stage3_reduce_seconds=0.0,
    stage3_step_seconds=0.0,
    persistent_gather_seconds=0.0,
    step_launch_seconds=5e-3,
    tensor_step_seconds=0.0,
    launch_join=4.0,
    adam_bytes=30.0,
    vocab_parallel=True,
)
"""Megatron-DeepSpeed's fused kernels."""
FSDP_TRITON = replace(
    MEGATRON,
    # FlashAttention-1 in Triton: 25-40 % on A100 (arXiv 2307.08691, section 1)
    attention_efficiency=0.35,
    vocab_parallel=False,
)
"""MosaicML's llm-foundry."""
FSDP_H100 = replace(
    FSDP_TRITON,
    # FlashAttention-2 without Hopper's instructions: fitted to the 12 rows of 16,384 tokens and more; it
    # reaches 35 % of the datasheet by itself (arXiv 2407.08608, section 1), heads of 64 to 128 less
    attention_efficiency=0.25,
)
"""The same on H100s, with FlashAttention-2 2.4 (its benchmark script installs that)."""


def fsdp_stack(gpu: str) -> Constants:
    """llm-foundry's, on this GPU of the catalogue."""
    return FSDP_H100 if gpu.startswith("h100") else FSDP_TRITON
