"""Operators whose CUDA kernels allocate other than the CPU ones that a trace runs.

Replaced while a trace runs:

* ``scaled_dot_product_attention``: the kernel that PyTorch would choose on CUDA. The fused
  kernels for 16-bit inputs (cuDNN's, which PyTorch from 2.10 prefers on Hopper and Blackwell, with
  or without a mask; ``aten/src/ATen/native/cudnn/MHA.cpp``; and flash, without;
  ``native/transformers/cuda/flash_attn/flash_api.cpp``) save q, k, v as they are (grouped-query
  heads are not repeated), the output laid out as q and an fp32 log-sum-exp of (batch, heads,
  sequence); their backward holds an fp32 dq accumulator, an fp32 softmax_d and, with grouped-query
  heads, dk and dv for every query head. The memory-efficient kernel (fp32, or a mask that needs a
  gradient; ``attention_backward.cu``) takes as many key as query heads; without as many, only the
  composite of matmuls and softmax is left (``_scaled_dot_product_attention_math``).
* ``softmax``: the backward on CUDA holds grad × output beside the gradient and the result
  (``aten/src/ATen/native/cuda/SoftMax.cu``).
* ``dropout``: CUDA's fused kernel saves a one-byte mask; the CPU's keeps noise of the input's
  dtype.
* autocast: CUDA computes normalisation, softmax, powers and losses in fp32 (``AT_FORALL_FP32``,
  ``AT_FORALL_FP32_SET_OPT_DTYPE``, aten/src/ATen/autocast_mode.h), the CPU leaves them as they come.
  What is cast to 16 bits, and the cache of cast weights, is the same code on both.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch

from zerokit.trace.sdpa_workspaces import FLASH_MAX_HEAD_DIM, flash_backward, round_up

FP32 = (
    "layer_norm", "native_layer_norm", "group_norm", "pow.Tensor_Scalar", "pow.Tensor_Tensor", "pow.Scalar",
    "rsqrt", "exp", "expm1", "log", "log10", "log2", "log1p", "reciprocal", "softplus", "nll_loss",
    "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "kl_div", "logsumexp",
    "binary_cross_entropy_with_logits",
)  # fmt: skip
"""Arguments are cast to fp32."""

FP32_RESULT = ("softmax.int", "log_softmax.int", "cumsum", "cumprod", "prod", "prod.dim_int")
"""Computed with ``dtype=torch.float32`` unless one is given."""


def _wide(value: Any) -> Any:
    narrow = isinstance(value, torch.Tensor) and value.is_floating_point() and value.dtype != torch.float64
    return value.float() if narrow else value


def _in_fp32(name: str, by_dtype: bool) -> Any:
    packet, _, overload = name.partition(".")
    operator = getattr(getattr(torch.ops.aten, packet), overload or "default")
    off = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)

    def run(*args: Any, **kwargs: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(off):
            if by_dtype and args[0].is_floating_point():
                kwargs["dtype"] = kwargs.get("dtype") or torch.float32
                return operator(*args[:2], **kwargs)
            return operator(*map(_wide, args), **{key: _wide(value) for key, value in kwargs.items()})

    return run


@contextmanager
def cuda_lists() -> Iterator[None]:
    """While active, autocast on the CPU casts what CUDA's does."""
    library = torch.library.Library("aten", "IMPL", "AutocastCPU")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for name in (*FP32, *FP32_RESULT):
                library.impl(name, _in_fp32(name, name in FP32_RESULT))
        yield
    finally:
        library._destroy()


def narrow(*tensors: Any) -> list[Any]:
    """Tensors as an operator that autocast runs in 16 bits gets them; as they are without autocast."""
    if not torch.is_autocast_enabled("cpu"):
        return list(tensors)
    dtype = torch.get_autocast_dtype("cpu")
    return [t.to(dtype) if t is not None and t.is_floating_point() else t for t in tensors]


def _like(tensor: torch.Tensor, last: int) -> torch.Tensor:
    """Dense, dimensions in memory in ``tensor``'s order, ``last`` elements in the last one.

    What ``empty_like`` and cuDNN's ``alloc_with_matching_layout`` give. Queries that rotary embedding
    concatenates lie as (batch, heads, sequence, dim), and so does the output then: joining the heads
    copies it.
    """
    shape = (*tensor.shape[:-1], last)
    order = sorted(range(len(shape)), key=lambda dim: -tensor.stride(dim))
    ordered = tensor.new_empty([shape[dim] for dim in order])
    return ordered.permute([order.index(dim) for dim in range(len(shape))])


class _FlashAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Any, key: Any, value: Any, mask: Any) -> Any:
        batch, heads, length, _ = query.shape
        out = _like(query, value.shape[-1])
        log_sum_exp = query.new_empty(batch, heads, length, dtype=torch.float32)
        ctx.save_for_backward(query, key, value, mask, out, log_sum_exp)
        return out

    @staticmethod
    def backward(ctx: Any, grad_out: Any) -> Any:
        query, key, value, *_ = ctx.saved_tensors
        dim = query.shape[-1]
        dq, dk, dv = _like(query, dim), _like(key, dim), _like(value, value.shape[-1])
        # kept in a list: live together while the kernel runs
        workspace = [
            query.new_empty(shape.shape, dtype=torch.float32 if shape.is_fp32 else query.dtype)
            for shape in flash_backward(query.shape, key.shape, value.shape)
        ]
        del workspace
        return dq, dk, dv, None


class _EfficientAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Any, key: Any, value: Any, mask: Any) -> Any:
        batch, heads, length, _ = query.shape
        out = query.new_empty(batch, length, heads, value.shape[-1]).transpose(1, 2)
        log_sum_exp = query.new_empty(batch, heads, round_up(length, 32), dtype=torch.float32)
        ctx.save_for_backward(query, key, value, mask, out, log_sum_exp)
        return out

    @staticmethod
    def backward(ctx: Any, grad_out: Any) -> Any:
        saved = ctx.saved_tensors  # the output too lives while the kernel runs, which reads it
        query, key, value, mask = saved[:4]
        batch, heads, length, dim = query.shape
        key_length = key.shape[2]
        dq = query.new_empty(batch, length, heads, dim)
        dk = query.new_empty(batch, key_length, heads, dim)
        dv = query.new_empty(batch, key_length, heads, value.shape[-1])
        has_mask_gradient = mask is not None and ctx.needs_input_grad[3]
        # a learned position bias: its gradient is made for every sequence and head, then summed
        scores = query.new_empty(batch, heads, length, key_length) if has_mask_gradient else None
        workspace = [
            query.new_empty(batch, heads, length, dtype=torch.float32),
            query.new_empty(batch, length, heads, dim, dtype=torch.float32),
        ]
        del workspace
        dmask = None
        if scores is not None:
            dmask = scores if mask.shape == scores.shape else torch.empty_like(mask)
        return dq.transpose(1, 2), dk.transpose(1, 2), dv.transpose(1, 2), dmask


class _SafeSoftmax(torch.autograd.Function):
    """``aten::_safe_softmax``: as softmax, and rows masked whole are looked for."""

    @staticmethod
    def forward(ctx: Any, scores: Any) -> Any:
        output = torch.empty_like(scores)
        masked = torch.empty_like(scores, dtype=torch.bool)
        masked_rows = torch.empty_like(scores[..., :1], dtype=torch.bool)
        del masked, masked_rows
        ctx.save_for_backward(output)
        return output

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        (output,) = ctx.saved_tensors
        return _softmax_backward(grad, output)


def _softmax_backward(grad: torch.Tensor, output: torch.Tensor) -> torch.Tensor:
    result = torch.empty_like(output)
    product = grad * output
    del product
    return result


def _math_attention(
    query: Any, key: Any, value: Any, mask: Any, dropout_p: float, is_causal: bool, enable_gqa: bool
) -> Any:
    """``aten::_scaled_dot_product_attention_math``, which computes 16-bit inputs in fp32."""
    dtype = query.dtype
    # held until the composite returns (native/transformers/attention.cpp, query_acc)
    unscaled, key, value = query.float(), key.float(), value.float()
    query = unscaled * 1.0
    if enable_gqa and key.shape[1] != query.shape[1]:
        repeats = query.shape[1] // key.shape[1]
        key, value = key.repeat_interleave(repeats, 1), value.repeat_interleave(repeats, 1)
    if is_causal:
        mask = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool, device=query.device)
    if mask is not None and mask.dtype == torch.bool:
        mask = torch.zeros_like(mask, dtype=query.dtype)
    weights = torch.matmul(query, key.transpose(-2, -1) * 1.0)
    if mask is not None:
        weights.add_(mask)
    weights = _SafeSoftmax.apply(weights)
    weights = _dropout(weights, dropout_p)
    result = torch.matmul(weights, value).to(dtype)
    if dtype != torch.float32:
        returned = weights.detach().to(dtype)  # the second output, dropped at once
        del returned
    return result


def _fused(query: Any, key: Any, value: Any, mask: Any, enable_gqa: bool) -> bool:
    """Whether cuDNN (Hopper, Blackwell; masks too) or the flash kernel takes the inputs.
    ``aten/src/ATen/native/transformers/cuda/sdp_utils.cpp``; probed on an H200."""
    dims = (query.shape[-1], value.shape[-1])
    half = query.dtype in (torch.float16, torch.bfloat16)
    if not half or max(dims) > FLASH_MAX_HEAD_DIM or (key.shape[1] != query.shape[1] and not enable_gqa):
        return False
    if mask is None:
        return dims[0] == dims[1] or all(dim % 8 == 0 for dim in dims)
    return not mask.requires_grad and all(dim % 8 == 0 for dim in dims)


def _dense_rows(*tensors: Any) -> bool:
    """Every fused kernel wants the last dimension without gaps (a permuted position bias is not so)."""
    return all(t is None or t.stride(-1) == 1 or t.shape[-1] == 1 for t in tensors)


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
    query, key, value, attn_mask = narrow(query, key, value, attn_mask)
    with torch.autocast("cpu", enabled=False):
        fused = _fused(query, key, value, attn_mask, enable_gqa)
        repeated = key.shape[1] != query.shape[1]
        if not _dense_rows(query, key, value, attn_mask) or (not fused and repeated):
            return _math_attention(query, key, value, attn_mask, dropout_p, is_causal, enable_gqa)
        if attn_mask is not None and attn_mask.dtype == torch.bool:
            # scaled_dot_product_attention turns a boolean mask into an additive one of the query's dtype
            attn_mask = torch.zeros_like(attn_mask, dtype=query.dtype).masked_fill_(attn_mask, 0.0)
        if not fused:
            return _EfficientAttention.apply(query, key, value, attn_mask)
        pad = -query.shape[-1] % 8
        if pad:
            query, key, value = (torch.nn.functional.pad(x, (0, pad)) for x in (query, key, value))
        out = _FlashAttention.apply(query, key, value, attn_mask)
        return out[..., : out.shape[-1] - pad] if pad else out


class _Softmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, input: Any) -> Any:
        output = torch.empty_like(input)
        ctx.save_for_backward(output)
        return output

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        (output,) = ctx.saved_tensors
        return _softmax_backward(grad, output)


def _softmax(input: Any, dim: Any = None, _stacklevel: int = 3, dtype: Any = None) -> Any:
    if dtype is None and torch.is_autocast_enabled("cpu"):
        dtype = torch.float32
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
    replaced: dict[str, Any] = {"dropout": _dropout, "softmax": _softmax}
    replaced["scaled_dot_product_attention"] = attention
    with mock.patch.multiple(torch.nn.functional, **replaced):
        yield
