"""Autocast as CUDA has it, on the CPU tensors of a trace.

The two devices cast other operators: CUDA computes normalisation, softmax, powers and losses in fp32
(``AT_FORALL_FP32``, ``AT_FORALL_FP32_SET_OPT_DTYPE``, aten/src/ATen/autocast_mode.h), the CPU leaves them as
they come. What is cast to 16 bits, and the cache of cast weights, is the same code on both.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

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
