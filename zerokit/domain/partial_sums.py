"""What CUDA's reductions take beside their result: partial sums of thread blocks that share an output.

Follows ``aten/src/ATen/native/cuda/Reduce.cuh`` (PyTorch 2.11 to 2.13: ``setReduceConfig``,
``global_memory_size``, ``semaphore_size``). Large where columns are summed over many rows: the gradient of a
bias or of a norm's weight over 8,192 tokens takes about 130 MiB.
"""

from __future__ import annotations

from zerokit.values import frozen_dataclass

_MOST_THREADS = 512  # ReduceConfig::MAX_NUM_THREADS, of all types but complex doubles
_WARP = 32
_FEWEST_VALUES, _MOST_VALUES = 16, 256  # per thread
_ACCUMULATOR = 4  # bytes of a sum of 16-bit or fp32 values
_BLOCK = 512  # PyTorch's allocator rounds up to it
INDEX_LIMIT = 2**31 - 1
"""Bytes, and elements, that a kernel's 32-bit offsets reach."""


@frozen_dataclass
class Processors:
    """Of a GPU: its multiprocessors, and the threads that are resident on each at most."""

    count: int
    threads: int


@frozen_dataclass
class Reduction:
    """How a kernel sees a reduction.

    Attributes:
        outputs: results; ``inputs``: values that each is made of.
        width: extent along which neighbouring values lie, in loads; ``height``: the other one's.
        vector: outputs that one load covers.
        along: whether neighbouring values belong to one output.
        accumulator: bytes of a partial result.
    """

    outputs: int
    inputs: int
    width: int
    height: int
    vector: int
    along: bool
    accumulator: int


def _power_below(value: int) -> int:
    return 1 << max(0, value.bit_length() - 1)


def partial_sums(reduction: Reduction, processors: Processors) -> tuple[int, ...]:
    """Bytes of the partial results and of the semaphores; empty where blocks share no output."""
    outputs, inputs, vector = reduction.outputs, reduction.inputs, reduction.vector
    most = _MOST_THREADS // vector
    wide, high = (
        _power_below(extent) if extent < most else most for extent in (reduction.width, reduction.height)
    )
    block_width = min(wide, _WARP)
    block_height = min(high, most // block_width)
    block_width = min(wide, most // block_height)
    step_input, step_output = (block_width, 1) if reduction.along else (1, block_width)
    if -(-inputs // step_input) < min(block_height * 16, _MOST_VALUES):
        return ()  # each warp has an output of its own: nothing is shared
    step_input *= block_height
    values = -(-inputs // step_input)
    grid = -(-(outputs // vector) // step_output)
    target = processors.count * (processors.threads // (block_width * block_height))
    if values < _MOST_VALUES or grid > target:
        return ()
    blocks = max(min(-(-target // grid), -(-values // _FEWEST_VALUES)), -(-values // _MOST_VALUES))
    if blocks < 2:
        return ()
    shared = 1 if reduction.along else block_width * vector
    return reduction.accumulator * outputs * blocks * shared, 4 * grid


def partial_column_sums(columns: int, rows: int, element_bytes: int, processors: Processors) -> int:
    """Bytes that the sums of a dense matrix's columns take, as the allocator rounds them."""
    while max(rows * columns * element_bytes, rows * columns) > INDEX_LIMIT and rows > 1:
        rows -= rows // 2  # ``with_32bit_indexing``: one half after the other
    vector = 4
    while columns % vector:
        vector //= 2
    reduction = Reduction(
        outputs=columns, inputs=rows, width=columns // vector, height=rows, vector=vector, along=False,
        accumulator=_ACCUMULATOR,
    )  # fmt: skip
    return sum(-(-size // _BLOCK) * _BLOCK for size in partial_sums(reduction, processors))
