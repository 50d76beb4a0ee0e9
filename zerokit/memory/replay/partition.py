"""What of the flat buffer of parameters a data-parallel rank owns below ZeRO-3 (``stage_1_and_2.py``)."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate

from zerokit.memory.rank_model import RankModel
from zerokit.values import frozen_dataclass


@frozen_dataclass(eq=False)
class Partition:
    """What of the flat parameter buffer one data-parallel rank owns.

    ``fragments[i]`` is how many elements of trainable parameter i lie in it; whole parameters that
    touch it are held (``get_partition_info``). ``ends[i]`` is where parameter i ends in the buffer.
    """

    rank: int
    count: int
    size: int
    fragments: dict[int, int]
    whole: int
    ends: Sequence[int]


@lru_cache(maxsize=1024)
def partition(model: RankModel, rank: int, count: int, *, round_robin: bool = False) -> Partition:
    """The partition of data-parallel ``rank`` of ``count``; padded to 2·count elements.

    ``round_robin``: parameters 0, count, 2·count, … come first, then 1, … (``_round_robin_reorder``).
    """
    sizes = model.trainable_sizes
    order: Sequence[int] = range(len(sizes))
    ends: Sequence[int] = model.trainable_ends
    if round_robin:
        order = [i for first in range(count) for i in range(first, len(sizes), count)]
        ends = list(accumulate(sizes[i] for i in order))
    alignment = 2 * count
    padded = -(-(ends[-1] if ends else 0) // alignment) * alignment
    size = padded // count
    low, high = rank * size, (rank + 1) * size
    fragments: dict[int, int] = {}
    position = bisect_right(ends, low)
    while position < len(sizes):
        index = order[position]
        start = ends[position] - sizes[index]
        if start >= high:
            break
        fragments[index] = min(ends[position], high) - max(start, low)
        position += 1
    if round_robin:
        placed = dict(zip(order, ends, strict=True))
        ends = [placed[index] for index in range(len(sizes))]
    return Partition(
        rank=rank,
        count=count,
        size=size,
        fragments=fragments,
        whole=sum(sizes[i] for i in fragments),
        ends=ends,
    )
