"""What CUDA kernels take of the allocator beside their inputs and outputs.

Sizes are bytes at the moment of the call. The facts of fused attention are shared with the trace
(:mod:`zerokit.trace.sdpa_workspaces`).
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from zerokit.rehearsal.process.ledger import GpuMemory
from zerokit.trace.sdpa_workspaces import flash_backward, round_up

Arguments = tuple[Any, ...]
MIB = 1 << 20

PRODUCTS = frozenset(
    {"mm", "bmm", "addmm", "baddbmm", "_scaled_mm", "_grouped_mm", "linear", "addmm_", "baddbmm_"}
)
"""Operators that run in cuBLAS."""

_HOPPER_WORKSPACE_BYTES = 32 * MIB
_WORKSPACE_BYTES = 4096 * 2 * 1024 + 16 * 8 * 1024
"""``getChosenWorkspaceSize`` (``aten/src/ATen/cuda/CublasHandlePool.cpp``): ``:4096:2:16:8``."""
_LT_WORKSPACE_KIB = 1024
"""``_getWorkspaceSize`` of cublasLt (``aten/src/ATen/cuda/CUDABlas.cpp``), CUBLASLT_WORKSPACE_SIZE."""
_TILE = 128
_EMBEDDING_BY_SORT = 3072
"""Indices from which ``embedding_dense_backward`` sorts (``native/cuda/Embedding.cu``)."""


def _bytes(tensor: torch.Tensor) -> int:
    return int(tensor.numel() * tensor.element_size())


def _attention_backward(args: Arguments) -> int:
    query, key, value = args[1:4]
    spaces = flash_backward(query.shape, key.shape, value.shape)
    return sum(space.bytes(query.element_size()) for space in spaces)


def _flash_backward(args: Arguments) -> int:
    """Of (batch, sequence, heads, dim), or of (tokens, heads, dim) with cumulated lengths, where each
    sequence has a tile to spare (``mha_varlen_bwd``)."""
    shapes = [tuple(tensor.shape) for tensor in args[1:4]]
    cumulated = args[6]
    if cumulated is not None:
        padding = _TILE * (cumulated.shape[0] - 1)
        shapes = [(1, shapes[0][0] + padding, *shapes[0][1:]), *((1, *tensor) for tensor in shapes[1:])]
    query, key, value = ((batch, heads, length, dim) for batch, length, heads, dim in shapes)
    return sum(space.bytes(args[1].element_size()) for space in flash_backward(query, key, value))


def _efficient_backward(args: Arguments) -> int:
    """fp32 sums over the output's rows, and of 16-bit inputs an fp32 accumulator of the query's gradient in
    tiles of 64 (``attention_backward.cu``; ``kernel_backward.h``, workspace_elements_gq)."""
    query: torch.Tensor = args[1]
    batch, heads, length, dim = query.shape
    size: int = 4 * batch * heads * length
    if query.element_size() == 2:
        size += 4 * batch * heads * round_up(length, 64) * round_up(dim, 64)
    return size


def _embedding_backward(args: Arguments) -> int:
    """Sorted indices and their origins, twice each (``native/cuda/Embedding.cu``, radix_sort_pairs)."""
    count = int(args[1].numel())
    return count * 8 * 4 if count > _EMBEDDING_BY_SORT else 0


TEMPORARIES: dict[str, Callable[[Arguments], int]] = {
    # grad × output (aten/src/ATen/native/cuda/SoftMax.cu)
    "_softmax_backward_data": lambda args: _bytes(args[0]),
    "_scaled_dot_product_cudnn_attention_backward": _attention_backward,
    "_scaled_dot_product_flash_attention_backward": _attention_backward,
    "_scaled_dot_product_efficient_attention_backward": _efficient_backward,
    "_flash_attention_backward": _flash_backward,
    "embedding_dense_backward": _embedding_backward,
}


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


_ALLOCATED = {"native_dropout": (1, 0)}
"""Results in the order in which a kernel allocates them, where it is not theirs: the mask of a dropout comes
first (``native/cuda/Dropout.cu``, dropout_cuda; recorded on an H200)."""


def in_order_of_allocation(name: str, result: Any) -> list[Any]:
    """The tensors of an operator's result."""
    leaves = tree_leaves(result)
    return [leaves[index] for index in _ALLOCATED[name]] if name in _ALLOCATED else leaves


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
        self._bytes = _configured(_HOPPER_WORKSPACE_BYTES if capability[0] >= 9 else _WORKSPACE_BYTES)
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
