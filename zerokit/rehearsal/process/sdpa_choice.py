"""Scaled dot product attention as CUDA runs it.

``_fused_sdp_choice`` asks a C++ dispatch stub that a CPU build has no CUDA entry for, and the composite
would fall to matmuls and softmax. Here the choice follows PyTorch's own conditions
(``aten/src/ATen/native/transformers/cuda/sdp_utils.cpp`` and ``sdp_utils_cpp.h``), and the fused operators
are called, whose shapes and gradients are PyTorch's.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from enum import IntEnum
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch._subclasses.fake_tensor import FakeTensor

from zerokit.rehearsal.process import in_place_adds
from zerokit.rehearsal.process.twins import twin
from zerokit.trace.sdpa_workspaces import FLASH_MAX_HEAD_DIM

if TYPE_CHECKING:
    from zerokit.rehearsal.process.machine import Machine

_HALF = (torch.float16, torch.bfloat16)
_CUDNN_HEAD_DIM = 128
"""``check_cudnn_tensor_shapes``; 192 for queries with 128 for values, with cuDNN from 9.11."""
_CUDNN_BY_DEFAULT = (2, 10)
"""From this PyTorch on its wheels carry a cuDNN above 9.15, which ``check_prefer_cudnn_attention`` wants."""
_CUDNN_ROUNDS_DROPOUT = (2, 12)
"""``check_cudnn_dropout`` came with this PyTorch: only multiples of 1/16. Before it, cuDNN takes any dropout
(the wheels of 2.10 and 2.11 hold no such check; seen in the allocations of BERT on an H200 with 2.11)."""
_CUDNN_WIDE_HEADS = (2, 14)
"""From this PyTorch on, with the cuDNN of its wheels, heads of up to 256 on Hopper and Blackwell
(``kCuDNNFrontendSupportsD256``; ``check_cudnn_d256_bprop_head_dim``)."""


class Kernel(IntEnum):
    """``at::SDPBackend``."""

    MATH = 0
    FLASH = 1
    EFFICIENT = 2
    CUDNN = 3


class AttentionCall(NamedTuple):
    """What a call of attention gives: the GPU's compute capability, and the operator's arguments."""

    capability: tuple[int, int]
    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    mask: torch.Tensor | None
    dropout: float
    causal: bool
    gqa: bool


_torch_attention = torch.nn.functional.scaled_dot_product_attention


def choose(
    capability: tuple[int, int], query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
    attn_mask: torch.Tensor | None = None, dropout_p: float = 0.0, is_causal: bool = False,
    scale: float | None = None, enable_gqa: bool = False,
) -> Kernel:  # fmt: skip
    """``select_sdp_backend``: the first kernel in order of priority that takes the inputs."""
    if query.dim() != 4 or key.dim() != 4 or value.dim() != 4 or min(query.shape[2], key.shape[2]) == 0:
        return Kernel.MATH
    call = AttentionCall(capability, query, key, value, attn_mask, dropout_p, is_causal, enable_gqa)
    cuda = torch.backends.cuda
    order = [
        (Kernel.FLASH, cuda.flash_sdp_enabled(), _flash),
        (Kernel.EFFICIENT, cuda.mem_efficient_sdp_enabled(), _efficient),
        (Kernel.CUDNN, cuda.cudnn_sdp_enabled(), _cudnn),
    ]
    deprioritized = os.environ.get("TORCH_CUDNN_SDPA_DEPRIORITIZED") == "1"
    if capability[0] in (9, 10) and _torch_version() >= _CUDNN_BY_DEFAULT and not deprioritized:
        order.insert(0, order.pop())
    for kernel, enabled, accepts in order:
        if enabled and accepts(call):
            return kernel
    return Kernel.MATH


def _torch_version() -> tuple[int, ...]:
    return tuple(int(part) for part in torch.__version__.split(".")[:2])


def _dense(*tensors: torch.Tensor | None, singleton: bool) -> bool:
    """``check_last_dim_stride_equals_1_dense``: no gaps in the last dimension, of the mask neither."""
    return all(t is None or t.stride(-1) == 1 or (singleton and t.shape[-1] == 1) for t in tensors)


def _same_heads(call: AttentionCall, gqa: bool) -> bool:
    """``check_batch_size_and_num_heads_dense``."""
    query, key, value = call.query, call.key, call.value
    if key.shape[0] != query.shape[0] or value.shape[0] != query.shape[0]:
        return False
    if key.shape[1] == query.shape[1] == value.shape[1]:
        return True
    return gqa and query.shape[1] % key.shape[1] == 0 and query.shape[1] % value.shape[1] == 0


def _cudnn(call: AttentionCall) -> bool:
    capability, query, key, value, mask, dropout, *_ = call
    return (
        capability >= (8, 0)
        and query.dtype in _HALF
        and (mask is None or not mask.requires_grad)
        and (_torch_version() < _CUDNN_ROUNDS_DROPOUT or dropout * 16 == int(dropout * 16))
        and not torch.are_deterministic_algorithms_enabled()
        and _dense(query, key, value, mask, singleton=True)
        and _same_heads(call, call.gqa)
        and _cudnn_takes_heads(call)
        and key.shape[2] != 1
        and not (dropout and query.shape[2] == 1)
    )


def _cudnn_takes_heads(call: AttentionCall) -> bool:
    """The sizes of a head that cuDNN takes, forward and, where a gradient is wanted, backward."""
    dims = call.query.shape[-1], call.value.shape[-1]
    limit = _CUDNN_HEAD_DIM
    if call.capability in ((9, 0), (10, 0), (10, 3)):
        wants_gradient = any(tensor.requires_grad for tensor in (call.query, call.key, call.value))
        if _torch_version() >= _CUDNN_WIDE_HEADS and not wants_gradient:
            limit = 256
        elif dims == (192, 128):
            limit = 192
        elif _torch_version() >= _CUDNN_WIDE_HEADS and dims == (256, 256):
            limit = 256
    return max(dims) <= limit and all(dim % 8 == 0 for dim in dims)


def _flash(call: AttentionCall) -> bool:
    capability, query, key, value, mask, dropout, causal, _ = call
    dim = query.shape[-1]
    wants_gradient = any(tensor.requires_grad for tensor in (query, key, value))
    small = (8, 6) <= capability <= (8, 9) or (12, 0) <= capability <= (12, 1)
    return (
        mask is None
        and key.shape[-1] == dim == value.shape[-1]
        and dim <= FLASH_MAX_HEAD_DIM
        and capability >= (8, 0)
        and not (small and wants_gradient and not (dim <= 192 or (dropout == 0 and dim > 224)))
        and not (causal and query.shape[2] != key.shape[2])
        and query.dtype in _HALF
        and _same_heads(call, call.gqa)
        and _dense(query, key, value, singleton=True)
    )


def _efficient(call: AttentionCall) -> bool:
    capability, query, key, value, mask, *_ = call
    half = query.dtype in _HALF
    alignment = 4 if capability[0] >= 8 else 1
    if capability[0] >= 8 or (capability[0] >= 7 and half):  # minimum_gemm_alignment
        alignment = max(alignment, 8 if half else 4)
    dtypes = (
        (torch.float16, torch.float32, torch.bfloat16)
        if capability[0] >= 8
        else (torch.float16, torch.float32)
    )
    return (
        query.dtype in dtypes
        and query.shape[-1] == key.shape[-1]
        and query.shape[-1] % alignment == 0
        and value.shape[-1] % alignment == 0
        and _same_heads(call, gqa=False)
        and _dense(query, key, value, mask, singleton=False)
    )


def attention(machine: Machine) -> Callable[..., torch.Tensor]:
    """What stands for ``torch.nn.functional.scaled_dot_product_attention``: a plain function, as Dynamo takes
    no other callable into its graphs. Tensors of another device go to PyTorch's own."""

    def scaled_dot_product_attention(
        query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0, is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False,
    ) -> torch.Tensor:  # fmt: skip
        options: dict[str, Any] = {"scale": scale, "enable_gqa": enable_gqa}
        if query.device.type != "cuda":
            return _torch_attention(query, key, value, attn_mask, dropout_p, is_causal, **options)
        query, key, value, attn_mask = _autocast(query, key, value, attn_mask)
        _look_for_empty_rows(machine, attn_mask)
        arguments = query, key, value, attn_mask, dropout_p, is_causal
        kernel = choose(machine.gpu.capability, *arguments, **options)
        if kernel is Kernel.CUDNN and torch.is_grad_enabled():
            machine.attention_plans.see(query, key)
        if kernel is Kernel.MATH:
            with in_place_adds.math_attention():
                return _torch_attention(*arguments, **options)
        return _fused(kernel, *arguments, scale)

    return scaled_dot_product_attention


def _look_for_empty_rows(machine: Machine, mask: torch.Tensor | None) -> None:
    """A sample without one key to attend to gives NaN, and its step may be skipped for overflow."""
    if not isinstance(mask, FakeTensor) or mask.dtype != torch.bool or mask.dim() < 2:
        return
    values = twin(mask)
    if values is not None:
        empty = (~values.any(-1)).flatten(1).all(1)
        if bool(empty.any()):
            machine.warn(
                f"{int(empty.sum())} of {len(empty)} samples have no key to attend to: their loss is not a "
                "number, and a step with it may be skipped"
            )


def _autocast(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """``scaled_dot_product_attention`` is among the operators that autocast runs in the lower precision."""
    if not torch.is_autocast_enabled("cuda"):
        return query, key, value, mask
    dtype = torch.get_autocast_dtype("cuda")
    if mask is not None and mask.is_floating_point():
        mask = mask.to(dtype)
    return query.to(dtype), key.to(dtype), value.to(dtype), mask


def _aligned(mask: torch.Tensor) -> torch.Tensor:
    """``preprocess_mask``: rows of the mask begin at multiples of eight elements."""
    if mask.stride(-1) == 1 and all(mask.stride(dim) % 8 == 0 for dim in range(mask.dim() - 1)):
        return mask
    last = mask.shape[-1]
    return torch.nn.functional.pad(mask, (0, 8 - last % 8))[..., :last]


def _fused(
    kernel: Kernel, query: Any, key: Any, value: Any, mask: Any, dropout: float, causal: bool,
    scale: float | None,
) -> torch.Tensor:  # fmt: skip
    """``scaled_dot_product_attention`` (``native/transformers/attention.cpp``) after the choice."""
    if mask is not None and mask.dtype == torch.bool:
        # ``convert_boolean_attn_mask``: both values are tensors on the GPU for the moment of the choice.
        masked, kept = (
            torch.scalar_tensor(value, dtype=query.dtype, device=mask.device) for value in (-torch.inf, 0.0)
        )
        mask = torch.where(mask, kept, masked)
    aten = torch.ops.aten
    result: torch.Tensor
    tensors = (query, key, value) if mask is None else (query, key, value, mask)
    save = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)
    if kernel is Kernel.CUDNN:
        result = aten._scaled_dot_product_cudnn_attention(
            query, key, value, mask, save, dropout, causal, False, scale=scale
        )[0]
    elif kernel is Kernel.FLASH:
        dim = query.shape[-1]
        padding = -dim % 8
        if padding:
            query, key, value = (
                torch.nn.functional.pad(operand, (0, padding)) for operand in (query, key, value)
            )
            scale = dim**-0.5 if scale is None else scale
        result = aten._scaled_dot_product_flash_attention(
            query, key, value, dropout, causal, False, scale=scale
        )[0][..., :dim]
    else:
        if mask is not None:
            mask = _aligned(mask).expand(query.shape[0], query.shape[1], query.shape[2], key.shape[2])
        result = aten._scaled_dot_product_efficient_attention(
            query, key, value, mask, save, dropout, causal, scale=scale
        )[0]
    return result
