"""What CUDA's reductions take beside their result: partial sums of thread blocks that share an output.

Follows ``aten/src/ATen/native/cuda/Reduce.cuh`` (PyTorch 2.11 to 2.13: ``setReduceConfig``,
``global_memory_size``, ``semaphore_size``) and how ``TensorIterator`` orders and joins dimensions. Large
where columns are summed over many rows: the gradient of a bias or of a norm's weight over 8,192 tokens takes
about 130 MiB.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from zerokit.rehearsal.gpu import FakeGpu

_MOST_THREADS = 512  # ReduceConfig::MAX_NUM_THREADS, of all types but complex doubles
_WARP = 32
_VALUES = 4  # vt0 and input_vec_size
_FEWEST_VALUES, _MOST_VALUES = 16, 256  # per thread
_INDEX_LIMIT = 2**31 - 1  # bytes that a kernel's 32-bit offsets reach

_Dimension = tuple[int, int]  # size, stride of the input in elements


def _power_below(value: int) -> int:
    return 1 << max(0, value.bit_length() - 1)


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
        if extent <= _INDEX_LIMIT and math.prod(size for size, _ in both) <= _INDEX_LIMIT:
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
    return _of_launch(gpu, outputs, inputs, width, height, vector, along, accumulator)


def _of_launch(
    gpu: FakeGpu,
    outputs: int,
    inputs: int,
    width: int,
    height: int,
    vector: int,
    along: bool,
    accumulator: int,
) -> tuple[int, ...]:
    most = _MOST_THREADS // vector
    wide, high = (_power_below(extent) if extent < most else most for extent in (width, height))
    block_width = min(wide, _WARP)
    block_height = min(high, most // block_width)
    block_width = min(wide, most // block_height)
    step_input, step_output = (block_width, 1) if along else (1, block_width)
    if -(-inputs // step_input) < min(block_height * 16, _MOST_VALUES):
        return ()  # each warp has an output of its own: nothing is shared
    step_input *= block_height
    values = -(-inputs // step_input)
    grid = -(-(outputs // vector) // step_output)
    target = gpu.multiprocessors * (gpu.threads_per_multiprocessor // (block_width * block_height))
    if values < _MOST_VALUES or grid > target:
        return ()
    blocks = max(min(-(-target // grid), -(-values // _FEWEST_VALUES)), -(-values // _MOST_VALUES))
    if blocks < 2:
        return ()
    return accumulator * outputs * blocks * (1 if along else block_width * vector), 4 * grid


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
