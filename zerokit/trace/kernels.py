"""Operators whose CUDA kernels allocate other than the CPU ones that a trace runs.

Replaced while a trace runs:

* ``scaled_dot_product_attention``: the kernel that PyTorch would choose on CUDA. The flash
  kernel (16-bit, no mask; ``aten/src/ATen/native/transformers/cuda/flash_attn/flash_api.cpp``)
  saves q, k, v as they are (grouped-query heads are not repeated), the output and an fp32
  log-sum-exp of (batch, heads, sequence); its backward holds an fp32 dq accumulator, an fp32
  softmax_d and, with grouped-query heads, dk and dv for every query head. The memory-efficient
  kernel (fp32, or a mask; ``attention_backward.cu``) takes as many key as query heads; with
  grouped-query heads in fp32 only the composite of matmuls and softmax is left.
* ``softmax``: the backward on CUDA holds grad × output beside the gradient and the result
  (``aten/src/ATen/native/cuda/SoftMax.cu``).
* ``dropout``: CUDA's fused kernel saves a one-byte mask; the CPU's keeps noise of the input's
  dtype.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

FLASH_MAX_HEAD_DIM = 256


def _round_up(value: int, multiple: int) -> int:
    return math.ceil(value / multiple) * multiple


class _FlashAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Any, key: Any, value: Any) -> Any:
        batch, heads, length, _ = query.shape
        out = query.new_empty(batch, length, heads, value.shape[-1]).transpose(1, 2)
        log_sum_exp = query.new_empty(batch, heads, length, dtype=torch.float32)
        ctx.save_for_backward(query, key, value, out, log_sum_exp)
        return out

    @staticmethod
    def backward(ctx: Any, grad_out: Any) -> Any:
        query, key, value, _, _ = ctx.saved_tensors
        batch, heads, length, dim = query.shape
        key_heads, key_length, value_dim = key.shape[1], key.shape[2], value.shape[-1]
        dq = query.new_empty(batch, length, heads, dim)
        dk = query.new_empty(batch, key_length, key_heads, dim)
        dv = query.new_empty(batch, key_length, key_heads, value_dim)
        rounded = _round_up(length, 128)
        # kept in a list: live together while the kernel runs
        workspace = [
            query.new_empty(batch, heads, rounded, dtype=torch.float32),
            query.new_empty(batch, rounded, heads, _round_up(dim, 32), dtype=torch.float32),
        ]
        if key_heads != heads:
            workspace.append(query.new_empty(batch, key_length, heads, dim))
            workspace.append(query.new_empty(batch, key_length, heads, value_dim))
        del workspace
        return dq.transpose(1, 2), dk.transpose(1, 2), dv.transpose(1, 2)


class _EfficientAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Any, key: Any, value: Any, mask: Any) -> Any:
        batch, heads, length, _ = query.shape
        out = query.new_empty(batch, length, heads, value.shape[-1]).transpose(1, 2)
        log_sum_exp = query.new_empty(batch, heads, _round_up(length, 32), dtype=torch.float32)
        ctx.save_for_backward(query, key, value, mask, out, log_sum_exp)
        return out

    @staticmethod
    def backward(ctx: Any, grad_out: Any) -> Any:
        query, key, value, mask, _, _ = ctx.saved_tensors
        batch, heads, length, dim = query.shape
        dq = query.new_empty(batch, length, heads, dim)
        dk = query.new_empty(batch, key.shape[2], heads, dim)
        dv = query.new_empty(batch, key.shape[2], heads, value.shape[-1])
        delta = query.new_empty(batch, heads, length, dtype=torch.float32)
        del delta
        dmask = torch.empty_like(mask) if mask is not None and mask.requires_grad else None
        return dq.transpose(1, 2), dk.transpose(1, 2), dv.transpose(1, 2), dmask


def attention(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """Stand in for ``torch.nn.functional.scaled_dot_product_attention`` on CUDA."""
    half = query.dtype in (torch.float16, torch.bfloat16)
    if (
        half
        and attn_mask is None
        and query.shape[-1] <= FLASH_MAX_HEAD_DIM
        and query.shape[-1] == value.shape[-1]
    ):
        pad = -query.shape[-1] % 8
        if pad:
            query, key, value = (torch.nn.functional.pad(x, (0, pad)) for x in (query, key, value))
        out = _FlashAttention.apply(query, key, value)
        return out[..., : out.shape[-1] - pad] if pad else out
    if key.shape[1] != query.shape[1]:
        # no fused kernel takes fp32 or a mask with grouped-query heads: the plain composite runs
        math_attention = torch.ops.aten._scaled_dot_product_attention_math
        return math_attention(
            query, key, value, attn_mask, dropout_p, is_causal, None, scale=scale, enable_gqa=enable_gqa
        )[0]
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        # scaled_dot_product_attention turns a boolean mask into an additive one of the query's dtype
        attn_mask = torch.zeros_like(attn_mask, dtype=query.dtype).masked_fill_(attn_mask, 0.0)
    return _EfficientAttention.apply(query, key, value, attn_mask)


class _Softmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, input: Any) -> Any:
        output = torch.empty_like(input)
        ctx.save_for_backward(output)
        return output

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        (output,) = ctx.saved_tensors
        product = grad.contiguous() * output
        result = torch.empty_like(output)
        del product
        return result


def _softmax(input: Any, dim: Any = None, _stacklevel: int = 3, dtype: Any = None) -> Any:
    # only fp16 scores have a kernel with an fp32 result; bf16 ones are converted first
    return _Softmax.apply(input if dtype is None else input.to(dtype))


def _dropout(input: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
    if not training or p == 0:
        return input
    return torch.native_dropout(input, p, True)[0]


@contextmanager
def cuda_kernels() -> Iterator[None]:
    """While active, the replaced operators allocate as their CUDA kernels do.

    The functions are replaced by name: a ``TorchFunctionMode`` would be off inside
    ``backward()``, where activation checkpointing runs the forward again.
    """
    functional = torch.nn.functional
    replaced = {"scaled_dot_product_attention": attention, "dropout": _dropout, "softmax": _softmax}
    originals = {name: getattr(functional, name) for name in replaced}
    try:
        for name, function in replaced.items():
            setattr(functional, name, function)
        yield
    finally:
        for name, function in originals.items():
            setattr(functional, name, function)
