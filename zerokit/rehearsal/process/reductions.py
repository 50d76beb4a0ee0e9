"""How CUDA's reductions see an operator's tensor, as ``TensorIterator`` orders and joins its dimensions.

What they take beside their result: :mod:`zerokit.domain.partial_sums`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from zerokit.domain.partial_sums import INDEX_LIMIT, Reduction, partial_sums
from zerokit.rehearsal.gpu import FakeGpu

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
