"""What an operator's CUDA code takes of the allocator beside its inputs and results, and in which order.

Blocks are bytes as they are requested. Their order matters as much as their size: it decides which free block
each one takes, and so what is reserved. Where no source is named, histories of an H200's allocator show it
(PyTorch 2.11). The facts of fused attention are shared with the trace (:mod:`zerokit.trace.sdpa_workspaces`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from zerokit.domain.partial_sums import INDEX_LIMIT, Reduction, partial_sums
from zerokit.rehearsal.order import FakeGpu
from zerokit.trace.sdpa_workspaces import (
    CUDNN_FORWARD_BYTES,
    cudnn_backward_bytes,
    efficient_backward_bytes,
    efficient_backward_tile,
    flash_backward,
)

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


def _sums(tensor: torch.Tensor) -> int:
    return 8 if tensor.dtype in (torch.float64, torch.int64) else 4


_ACCUMULATORS: dict[str, tuple[int, Callable[[torch.Tensor], int]]] = {
    # the position of the dimensions among the arguments, and the size of a partial result
    "sum": (1, _sums),
    "mean": (1, _sums),
    "linalg_vector_norm": (2, _sums),
    "norm": (2, _sums),
    "amax": (1, lambda tensor: tensor.element_size()),
    "amin": (1, lambda tensor: tensor.element_size()),
    "argmax": (1, lambda tensor: 16),
    "argmin": (1, lambda tensor: 16),
    "var": (1, lambda tensor: 16),
    "std": (1, lambda tensor: 16),
    "var_mean": (1, lambda tensor: 16),
}


def of_operator(name: str, args: tuple[Any, ...], gpu: FakeGpu) -> tuple[int, ...]:
    """:func:`temporary_blocks` of an operator; empty for one that is no reduction."""
    accumulator_of = _ACCUMULATORS.get(name)
    if accumulator_of is None:
        return ()
    position, accumulator = accumulator_of
    tensor = args[0]
    dimensions = args[position] if len(args) > position else None
    if isinstance(dimensions, int) and not isinstance(dimensions, bool):
        dimensions = [dimensions]
    if not isinstance(dimensions, list | tuple):
        dimensions = []
    return temporary_blocks(tensor, dimensions, accumulator(tensor), gpu)


Arguments = tuple[Any, ...]
Blocks = tuple[int, ...]
"""Live together: taken in this order, given back in the reverse one."""

_TILE = 128
_EMBEDDING_BY_SORT = 3072
"""Indices from which ``embedding_dense_backward`` sorts (``native/cuda/Embedding.cu``)."""
_LARGE_SHARED_MEMORY = ((8, 0), (9, 0), (10, 0), (10, 3))


def _bytes(tensor: torch.Tensor) -> int:
    return int(tensor.numel() * tensor.element_size())


# -------------------------------------------------------------------- before the results


def _rolled(args: Arguments) -> Blocks:
    """One dimension after the other: all but the last one's result (``roll_common``)."""
    dimensions = args[2] if len(args) > 2 else ()
    return (_bytes(args[0]),) if len(dimensions) > 1 else ()


def _dense_copies(args: Arguments) -> Blocks:
    """Of inputs that have gaps or another order (``expect_contiguous``)."""
    return tuple(
        _bytes(tensor) for tensor in args if isinstance(tensor, torch.Tensor) and not tensor.is_contiguous()
    )


_FIRST: dict[str, Callable[[Arguments], Blocks]] = {
    "roll": _rolled,
    "native_layer_norm": _dense_copies,
    "native_layer_norm_backward": _dense_copies,
    "embedding_dense_backward": _dense_copies,  # positions are expanded over a batch as a rule
}


def first(name: str, args: Arguments) -> Blocks:
    """Blocks that an operator takes before its results, and keeps until it has them."""
    blocks_of = _FIRST.get(name)
    return blocks_of(args) if blocks_of is not None else ()


# -------------------------------------------------------------------- after the results


def _flash_backward(args: Arguments, gpu: FakeGpu) -> tuple[Blocks, ...]:
    query, key, value = args[1:4]
    spaces = flash_backward(query.shape, key.shape, value.shape)
    return (tuple(space.bytes(query.element_size()) for space in spaces),)


def _flash_package_backward(args: Arguments, gpu: FakeGpu) -> tuple[Blocks, ...]:
    """Of (batch, sequence, heads, dim), or of (tokens, heads, dim) with cumulated lengths, where each
    sequence has a tile to spare (``mha_varlen_bwd``)."""
    shapes = [tuple(tensor.shape) for tensor in args[1:4]]
    cumulated = args[6]
    if cumulated is not None:
        padding = _TILE * (cumulated.shape[0] - 1)
        shapes = [(1, shapes[0][0] + padding, *shapes[0][1:]), *((1, *tensor) for tensor in shapes[1:])]
    query, key, value = ((batch, heads, length, dim) for batch, length, heads, dim in shapes)
    return (tuple(space.bytes(args[1].element_size()) for space in flash_backward(query, key, value)),)


def _cudnn_backward(args: Arguments, gpu: FakeGpu) -> tuple[Blocks, ...]:
    query, key, value = args[1:4]
    return ((cudnn_backward_bytes(query.shape, key.shape, value.shape, query.element_size()),),)


def _efficient_backward(args: Arguments, gpu: FakeGpu) -> tuple[Blocks, ...]:
    """Sums over the output's rows, then the accumulator of dq (``attention_backward.cu``).

    The kernel makes the sums of 16-bit inputs; those of fp32 are ``(grad_out * out).sum(-1)``, then dense.
    """
    query: torch.Tensor = args[1]
    element = query.element_size()
    batch, heads, length, dim = query.shape
    sums = 4 * batch * heads * length
    tile = efficient_backward_tile(dim, element, gpu.capability in _LARGE_SHARED_MEMORY)
    workspace = efficient_backward_bytes(query.shape, tile)
    if element == 2:
        return ((sums, workspace),)
    return ((_bytes(args[0]), sums, sums), (sums, workspace))


def _embedding_backward(args: Arguments, gpu: FakeGpu) -> tuple[Blocks, ...]:
    """Sorted indices and their origins, twice each (``native/cuda/Embedding.cu``, radix_sort_pairs)."""
    count = int(args[1].numel())
    return ((count * 8 * 4,),) if count > _EMBEDDING_BY_SORT else ()


def _softmax(args: Arguments, gpu: FakeGpu) -> tuple[Blocks, ...]:
    """``input.contiguous()`` (``native/cuda/SoftMax.cu``, host_softmax)."""
    copies = _dense_copies(args[:1])
    return (copies,) if copies else ()


def _log_softmax_backward(args: Arguments, gpu: FakeGpu) -> tuple[Blocks, ...]:
    """``grad.contiguous()`` and ``output.contiguous()`` (host_softmax_backward)."""
    copies = _dense_copies(args[:2])
    return (copies,) if copies else ()


def _softmax_backward(args: Arguments, gpu: FakeGpu) -> tuple[Blocks, ...]:
    """``grad * output``, dense if one of them is, then ``output.contiguous()``."""
    return ((_bytes(args[0]), *_dense_copies(args[1:2])),)


_AFTERWARDS: dict[str, Callable[[Arguments, FakeGpu], tuple[Blocks, ...]]] = {
    "_log_softmax": _softmax,
    "_log_softmax_backward_data": _log_softmax_backward,
    "_softmax": _softmax,
    "_softmax_backward_data": _softmax_backward,
    "_scaled_dot_product_cudnn_attention": lambda args, gpu: ((CUDNN_FORWARD_BYTES,),),
    "_scaled_dot_product_cudnn_attention_backward": _cudnn_backward,
    "_scaled_dot_product_flash_attention_backward": _flash_backward,
    "_scaled_dot_product_efficient_attention_backward": _efficient_backward,
    "_flash_attention_backward": _flash_package_backward,
    "embedding_dense_backward": _embedding_backward,
}


def afterwards(name: str, args: Arguments, gpu: FakeGpu) -> tuple[Blocks, ...]:
    """Blocks that an operator takes once it has its results: some live together, then others."""
    blocks_of = _AFTERWARDS.get(name)
    if blocks_of is not None:
        return blocks_of(args, gpu)
    partial = of_operator(name, args, gpu)
    return (partial,) if partial else ()


# -------------------------------------------------------------------- the results

_ORDER = {
    # the mask of a dropout comes first (``native/cuda/Dropout.cu``, dropout_cuda)
    "native_dropout": (1, 0),
    # seed and offset of the dropout, there without one too (``_scaled_dot_product_cudnn_attention_cuda``)
    "_scaled_dot_product_cudnn_attention": (6, 7, 0, 1),
}
_EFFICIENT = "_scaled_dot_product_efficient_attention"
_EFFICIENT_DROPOUT = 5


def in_order_of_allocation(name: str, args: Arguments, result: Any) -> list[Any]:
    """The tensors of an operator's result that it allocates, in that order."""
    leaves: list[Any] = tree_leaves(result)
    if name in _ORDER:
        return [leaves[index] for index in _ORDER[name]]
    if name == _EFFICIENT and not (len(args) > _EFFICIENT_DROPOUT and args[_EFFICIENT_DROPOUT]):
        return leaves[:2]  # seed and offset are on the host where nothing is drawn
    return leaves
