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
    """Workspaces of the flash and the cuDNN kernel's backward, live together.

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
