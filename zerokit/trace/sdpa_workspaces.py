"""Facts of PyTorch's fused attention kernels on CUDA, shared by the trace and the rehearsal.

Pure arithmetic: no torch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

FLASH_MAX_HEAD_DIM = 256


def round_up(value: int, multiple: int) -> int:
    """The next multiple."""
    return -(-value // multiple) * multiple


@dataclass(frozen=True, slots=True)
class Workspace:
    """A tensor that a kernel takes while it runs: its shape; fp32, or else of the inputs' dtype."""

    shape: tuple[int, ...]
    is_fp32: bool

    def bytes(self, element_bytes: int) -> int:
        """With inputs of ``element_bytes`` an element."""
        return math.prod(self.shape) * (4 if self.is_fp32 else element_bytes)


def flash_backward(query: Sequence[int], key: Sequence[int], value: Sequence[int]) -> tuple[Workspace, ...]:
    """Workspaces of the flash kernel's backward, live together (cuDNN's: :func:`cudnn_backward_bytes`).

    fp32 softmax_d and an fp32 dq accumulator, rounded up to the kernels' tiles; with grouped-query heads
    dk and dv for every query head (``native/transformers/cuda/flash_attn/flash_api.cpp``, mha_bwd).

    Args:
        query: shape (batch, heads, sequence, dim); ``key`` and ``value`` likewise, with their own heads.
    """
    batch, heads, length, dim = query
    rows = round_up(length, 128)
    workspaces = [
        Workspace((batch, heads, rows), is_fp32=True),
        Workspace((batch, rows, heads, round_up(dim, 32)), is_fp32=True),
    ]
    if key[1] != heads:
        workspaces += [
            Workspace((batch, key[2], heads, dim), is_fp32=False),
            Workspace((batch, key[2], heads, value[-1]), is_fp32=False),
        ]
    return tuple(workspaces)


CUDNN_FORWARD_BYTES = 256
"""cuDNN's workspace in the forward, whatever the shapes (allocations of PyTorch 2.11 on an H200)."""


def cudnn_backward_bytes(
    query: Sequence[int], key: Sequence[int], value: Sequence[int], element_bytes: int
) -> int:
    """cuDNN's workspace in the backward: one block, of the flash kernel's parts without padded rows.

    As allocated by PyTorch 2.11 (cuDNN 9.19) on an H200, for heads of 64 and sequences of 3 to 1,024 tokens,
    with and without grouped heads: sum of each row, accumulator of dq, dk and dv for each query head.

    Args:
        query: shape (batch, heads, sequence, dim); ``key`` and ``value`` likewise, with their own heads.
        element_bytes: of the inputs.
    """
    batch, heads, length, dim = query
    size = 4 * batch * heads * length * (1 + round_up(dim, 32)) + 256
    if key[1] != heads:
        size += element_bytes * batch * heads * key[2] * (dim + value[-1])
    return size


def efficient_backward_tile(dim: int, element_bytes: int, has_large_shared_memory: bool) -> int:
    """Rows and columns of a tile of dq in the memory-efficient kernel's backward.
    ``mem_eff_attention/kernels/generate_kernels.py``: 128 where 16-bit results stay in registers."""
    return 128 if 64 < dim <= 128 and element_bytes == 2 and has_large_shared_memory else 64


def efficient_backward_bytes(query: Sequence[int], tile: int) -> int:
    """Accumulator of dq: fp32 tiles of the padded rows and columns, each with 16 bytes of its own.

    ``mem_eff_attention/kernel_backward.h``, workspace_elements_gq and GradQTempStorage; fp32 inputs take it
    too, since keys are split (3,148,800 bytes for 192 heads of 36 tokens on an H200).
    """
    batch, heads, length, dim = query
    tiles = -(-length // tile) * -(-dim // tile)
    return batch * heads * tiles * (4 * tile * tile + 16)
