"""Facts of PyTorch's fused attention kernels on CUDA, shared by the trace and the rehearsal.

Pure arithmetic: no torch.
"""

from __future__ import annotations

FLASH_MAX_HEAD_DIM = 256


def round_up(value: int, multiple: int) -> int:
    """The next multiple."""
    return -(-value // multiple) * multiple


def flash_backward_bytes(
    *,
    batch: int,
    heads: int,
    length: int,
    dim: int,
    key_heads: int,
    key_length: int,
    value_dim: int,
    element_bytes: int,
) -> tuple[int, ...]:
    """Workspaces of the flash and the cuDNN kernel's backward, live together. Bytes of each.

    fp32 softmax_d and an fp32 dq accumulator, rounded up to the kernels' tiles; with grouped-query heads
    dk and dv for every query head (``native/transformers/cuda/flash_attn/flash_api.cpp``, mha_bwd).
    """
    rows = round_up(length, 128)
    sizes = [batch * heads * rows * 4, batch * rows * heads * round_up(dim, 32) * 4]
    if key_heads != heads:
        sizes += [
            batch * key_length * heads * dim * element_bytes,
            batch * key_length * heads * value_dim * element_bytes,
        ]
    return tuple(sizes)
