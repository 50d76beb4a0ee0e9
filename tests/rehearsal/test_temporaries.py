"""Temporaries of kernels, against the formulas of PyTorch's CUDA sources."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from zerokit.rehearsal.process.kernels import TEMPORARIES, in_order_of_allocation  # noqa: E402


@pytest.mark.parametrize(("dtype", "accumulated"), [("bfloat16", 128 * 128), ("float32", 0)])
def test_memory_efficient_attention_accumulates_the_gradient_of_16_bit_queries(
    dtype: str, accumulated: int
) -> None:
    query = torch.empty(2, 4, 100, 80, dtype=getattr(torch, dtype), device="meta")
    size = TEMPORARIES["_scaled_dot_product_efficient_attention_backward"]((None, query))
    assert size == 2 * 4 * 4 * (100 + accumulated)


def test_the_mask_of_a_dropout_is_allocated_before_its_output() -> None:
    """As an allocator's history of nanoGPT on an H200 has it: 2 MiB of mask, then 8 MiB of output."""
    assert in_order_of_allocation("native_dropout", ("output", "mask")) == ["mask", "output"]
    assert in_order_of_allocation("mm", "output") == ["output"]
