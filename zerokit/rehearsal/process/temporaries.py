"""What operators' CUDA code takes of the allocator beside its inputs and results, and in which order.

Blocks are bytes as they are requested. Their order matters as much as their size: it decides which free block
each one takes, and so what is reserved. Where no source is named, histories of an H200's allocator show it
(PyTorch 2.11). The facts of fused attention are shared with the trace (:mod:`zerokit.trace.sdpa_workspaces`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from zerokit.domain.hardware import INDEX_LIMIT, Reduction, partial_sums
from zerokit.rehearsal.order import FakeGpu
from zerokit.trace.sdpa_workspaces import (
    cudnn_backward_bytes,
    efficient_backward_bytes,
    efficient_backward_tile,
)
from zerokit.trace.sdpa_workspaces import (
    flash_backward as flash_spaces,
)

Arguments = tuple[Any, ...]
Blocks = tuple[int, ...]
"""Live together: taken in this order, given back in the reverse one."""

_VALUES = 4  # vt0 and input_vec_size

_Dimension = tuple[int, int]  # size, stride of the input in elements


def _joined(dimensions: Sequence[_Dimension]) -> list[_Dimension]:
    """Sorted by stride and joined where one continues the other (``coalesce_dimensions``)."""
    ordered = sorted(
        ((size, stride) for size, stride in dimensions if size != 1), key=lambda dimension: dimension[1]
    )
    joined: list[_Dimension] = []
    for size, stride in ordered:
        if joined and joined[-1][0] * joined[-1][1] == stride:
            joined[-1] = (joined[-1][0] * size, joined[-1][1])
        else:
            joined.append((size, stride))
    return joined


def _halved(reduced: list[_Dimension], kept_dimensions: list[_Dimension], element: int) -> None:
    """Until 32-bit offsets reach (``with_32bit_indexing``): the dimension with the largest extent in half."""
    while True:
        both = [*reduced, *kept_dimensions]
        extent = 1 + sum((size - 1) * stride * element for size, stride in both)
        if extent <= INDEX_LIMIT and math.prod(size for size, _ in both) <= INDEX_LIMIT:
            return
        largest = max(both, key=lambda dimension: (dimension[0] - 1) * dimension[1])
        group = reduced if largest in reduced else kept_dimensions
        group[group.index(largest)] = (largest[0] - largest[0] // 2, largest[1])


def _output_vector(reduced: list[_Dimension], kept_dimensions: list[_Dimension], offset: int) -> int:
    """``get_output_vec_size``: outputs that one load covers."""
    vector = 4
    for number in (
        offset,
        kept_dimensions[0][0],
        *(stride for _, stride in (*reduced, *kept_dimensions[1:])),
    ):
        while number % vector:
            vector //= 2
    return vector


def temporary_blocks(
    tensor: torch.Tensor, dimensions: Sequence[int], accumulator: int, gpu: FakeGpu
) -> tuple[int, ...]:
    """Bytes of the partial results and of the semaphores of a reduction of ``tensor`` over ``dimensions``;
    empty where blocks share no output. ``accumulator``: bytes of a partial result."""
    element = tensor.element_size()
    reduced_indexes = {dimension % max(1, tensor.dim()) for dimension in dimensions} or set(
        range(tensor.dim())
    )
    shape = list(zip(tensor.shape, tensor.stride(), strict=True))
    reduced = _joined([extent for number, extent in enumerate(shape) if number in reduced_indexes])
    kept_dimensions = _joined(
        [extent for number, extent in enumerate(shape) if number not in reduced_indexes]
    )
    if not tensor.numel():
        return ()
    _halved(reduced, kept_dimensions, element)
    outputs = math.prod(size for size, _ in kept_dimensions)
    inputs = math.prod(size for size, _ in reduced)
    if not reduced:
        return ()
    along = not kept_dimensions or reduced[0][1] < kept_dimensions[0][1]
    width, height, vector = (inputs, outputs, 1) if along else (outputs, inputs, 1)
    if (reduced if along else kept_dimensions)[0][1] == 1:
        if along and width >= 128 and len(reduced) == 1:
            width //= _VALUES
        elif not along:
            vector = _output_vector(reduced, kept_dimensions, int(tensor.storage_offset()))
            width //= vector
    reduction = Reduction(
        outputs=outputs, inputs=inputs, width=width, height=height, vector=vector, along=along,
        accumulator=accumulator,
    )  # fmt: skip
    return partial_sums(reduction, gpu.processors)


def reduction_blocks(args: Arguments, position: int, accumulator: int, gpu: FakeGpu) -> Blocks:
    """:func:`temporary_blocks` of an operator whose dimensions stand at ``position`` among its arguments."""
    tensor = args[0]
    dimensions = args[position] if len(args) > position else None
    if isinstance(dimensions, int) and not isinstance(dimensions, bool):
        dimensions = [dimensions]
    if not isinstance(dimensions, list | tuple):
        dimensions = []
    return temporary_blocks(tensor, dimensions, accumulator, gpu)


_TILE = 128
_EMBEDDING_BY_SORT = 3072
"""Indices from which ``embedding_dense_backward`` sorts (``native/cuda/Embedding.cu``)."""
_LARGE_SHARED_MEMORY = ((8, 0), (9, 0), (10, 0), (10, 3))


def _bytes(tensor: torch.Tensor) -> int:
    return int(tensor.numel() * tensor.element_size())


# -------------------------------------------------------------------- before the results


def rolled(args: Arguments) -> Blocks:
    """One dimension after the other: all but the last one's result (``roll_common``)."""
    dimensions = args[2] if len(args) > 2 else ()
    return (_bytes(args[0]),) if len(dimensions) > 1 else ()


def dense_copies(args: Arguments) -> Blocks:
    """Of inputs that have gaps or another order (``expect_contiguous``)."""
    return tuple(
        _bytes(tensor) for tensor in args if isinstance(tensor, torch.Tensor) and not tensor.is_contiguous()
    )


# -------------------------------------------------------------------- after the results


def flash_backward(args: Arguments, gpu: FakeGpu) -> tuple[Blocks, ...]:
    """Spaces of PyTorch's fused attention."""
    query, key, value = args[1:4]
    spaces = flash_spaces(query.shape, key.shape, value.shape)
    return (tuple(space.bytes(query.element_size()) for space in spaces),)


def flash_package_backward(args: Arguments, gpu: FakeGpu) -> tuple[Blocks, ...]:
    """Of (batch, sequence, heads, dim), or of (tokens, heads, dim) with cumulated lengths, where each
    sequence has a tile to spare (``mha_varlen_bwd``)."""
    shapes = [tuple(tensor.shape) for tensor in args[1:4]]
    cumulated = args[6]
    if cumulated is not None:
        padding = _TILE * (cumulated.shape[0] - 1)
        shapes = [(1, shapes[0][0] + padding, *shapes[0][1:]), *((1, *tensor) for tensor in shapes[1:])]
    query, key, value = ((batch, heads, length, dim) for batch, length, heads, dim in shapes)
    return (tuple(space.bytes(args[1].element_size()) for space in flash_spaces(query, key, value)),)


def cudnn_backward(args: Arguments, gpu: FakeGpu) -> tuple[Blocks, ...]:
    """The workspace of cuDNN's attention."""
    query, key, value = args[1:4]
    return ((cudnn_backward_bytes(query.shape, key.shape, value.shape, query.element_size()),),)


def efficient_backward(args: Arguments, gpu: FakeGpu) -> tuple[Blocks, ...]:
    """Sums over the output's rows, then the accumulator of dq (``attention_backward.cu``). The kernel makes
    the sums of 16-bit inputs; those of fp32 are ``(grad_out * out).sum(-1)``, then dense."""
    query: torch.Tensor = args[1]
    element = query.element_size()
    batch, heads, length, dim = query.shape
    sums = 4 * batch * heads * length
    tile = efficient_backward_tile(dim, element, gpu.capability in _LARGE_SHARED_MEMORY)
    workspace = efficient_backward_bytes(query.shape, tile)
    if element == 2:
        return ((sums, workspace),)
    return ((_bytes(args[0]), sums, sums), (sums, workspace))


def embedding_backward(args: Arguments, gpu: FakeGpu) -> tuple[Blocks, ...]:
    """Sorted indices and their origins, twice each (``native/cuda/Embedding.cu``, radix_sort_pairs)."""
    count = int(args[1].numel())
    return ((count * 8 * 4,),) if count > _EMBEDDING_BY_SORT else ()


def dense_inputs(count: int) -> Callable[[Arguments, FakeGpu], tuple[Blocks, ...]]:
    """Dense copies of the first inputs, of those that have gaps or another order."""

    def after(args: Arguments, gpu: FakeGpu) -> tuple[Blocks, ...]:
        copies = dense_copies(args[:count])
        return (copies,) if copies else ()

    return after


def softmax_backward(args: Arguments, gpu: FakeGpu) -> tuple[Blocks, ...]:
    """``grad * output``, dense if one of them is, then ``output.contiguous()``."""
    return ((_bytes(args[0]), *dense_copies(args[1:2])),)
