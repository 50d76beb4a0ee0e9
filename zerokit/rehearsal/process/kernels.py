"""Operators that CUDA runs as others, and the workspaces that cuBLAS keeps. Sizes are bytes."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

import torch

from zerokit.domain.hardware import cublas_workspace_bytes
from zerokit.rehearsal.process.ledger import GpuMemory

Arguments = tuple[Any, ...]
MIB = 1 << 20

SCALED_PRODUCTS = ("_scaled_mm", "_scaled_mm_v2")
"""Of FP8 factors with their scales (``native/cuda/ScaledBlas.cpp``)."""
PRODUCTS = frozenset(
    {"mm", "bmm", "addmm", "baddbmm", *SCALED_PRODUCTS, "_grouped_mm", "linear", "addmm_", "baddbmm_"}
)
"""Operators that run in cuBLAS."""

_LT_WORKSPACE_KIB = 1024
"""``_getWorkspaceSize`` of cublasLt (``aten/src/ATen/cuda/CUDABlas.cpp``), CUBLASLT_WORKSPACE_SIZE."""


_FP8_CAPABILITY = (8, 9)


def refuse_unknown_to(capability: tuple[int, int], name: str) -> None:
    """Raise what PyTorch raises of products in FP8 on a GPU without them (``ScaledBlas.cpp``,
    _scaled_mm_allowed_device)."""
    if name in SCALED_PRODUCTS and capability < _FP8_CAPABILITY:
        raise RuntimeError(
            "torch._scaled_mm is only supported on CUDA devices with compute capability >= 9.0 or 8.9, or "
            "ROCm MI300+"
        )


def _safe_softmax(scores: torch.Tensor, dim: int, dtype: torch.dtype | None = None) -> torch.Tensor:
    """Rows that are masked whole become zeros (``native/transformers/attention.cpp``), in place, as the
    allocations of PyTorch 2.11 on an H200 show."""
    out = torch.softmax(scores, dim, dtype=dtype)
    masked = scores.eq(-torch.inf)
    masked_rows = masked.all(dim, keepdim=True)
    zero = torch.zeros((), dtype=out.dtype, device=out.device)
    return out.masked_fill_(masked_rows, zero)


OF_OPERATORS: dict[str, Callable[..., Any]] = {"aten::_safe_softmax": _safe_softmax}
"""Operators that a GPU runs as others."""


class Workspaces:
    """cuBLAS's and cublasLt's workspaces: kept for each thread that ever multiplied.

    A handle is kept for each thread, device and stream; autograd's backward runs in a thread of its own
    (``aten/src/ATen/cuda/CublasHandlePool.cpp``). ``addmm`` with a bias of one dimension runs in cublasLt
    (``native/cuda/Blas.cpp``, addmm_out_cuda_impl), whose handle is cuBLAS's with its workspace
    (``getCurrentCUDABlasLtHandle``): a thread of such products has both.
    """

    def __init__(self, ledger: GpuMemory, capability: tuple[int, int]) -> None:
        self._ledger = ledger
        self._have: set[tuple[int, bool]] = set()
        self._bytes = _configured(cublas_workspace_bytes(capability))
        self._lt_bytes = int(os.environ.get("CUBLASLT_WORKSPACE_SIZE", _LT_WORKSPACE_KIB)) << 10

    def product(self, name: str, args: Arguments, kwargs: dict[str, Any]) -> None:
        """A product is about to run in this thread."""
        self._keep(False, self._bytes)
        if name == "addmm" and _through_lt(args, kwargs):
            self._keep(True, self._lt_bytes)

    def _keep(self, is_lt: bool, size: int) -> None:
        key = threading.get_ident(), is_lt
        if key not in self._have:
            self._have.add(key)
            self._ledger.reserve(size, "cuBLAS workspace")


def _through_lt(args: Arguments, kwargs: dict[str, Any]) -> bool:
    bias, _, right = args[:3]
    return (
        bias.dim() == 1
        and bias.dtype in (torch.bfloat16, torch.float16, torch.float32)
        and min(right.shape) > 1
        and kwargs.get("beta", 1) == 1
        and kwargs.get("alpha", 1) == 1
    )


def _configured(default: int) -> int:
    """``CUBLAS_WORKSPACE_CONFIG``: ``:KIB:COUNT`` pairs (``parseChosenWorkspaceSize``)."""
    text = os.environ.get("CUBLAS_WORKSPACE_CONFIG", "")
    numbers = [part for part in text.split(":") if part]
    if len(numbers) < 2 or len(numbers) % 2 or not all(part.isdigit() for part in numbers):
        return default
    return sum(int(size) * int(count) for size, count in zip(numbers[::2], numbers[1::2], strict=True)) << 10
