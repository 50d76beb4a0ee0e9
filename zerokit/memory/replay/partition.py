"""What of the flat buffer of parameters a data-parallel rank owns below ZeRO-3 (``stage_1_and_2.py``)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import accumulate, chain

from zerokit.domain.deepspeed_settings import DeepSpeedSettings
from zerokit.memory.components import Component, Ledger
from zerokit.memory.rank_model import ElementBytes, Overlay, RankModel
from zerokit.values import frozen_dataclass


@frozen_dataclass(eq=False)
class Share:
    """What of a group's flat parameter buffer one data-parallel rank owns.

    ``fragments[i]`` is how many elements of trainable parameter i lie in it; whole parameters that
    touch it are held (``get_partition_info``).
    """

    size: int
    fragments: Mapping[int, int]
    whole: int


@frozen_dataclass(eq=False)
class Partition:
    """What one data-parallel rank owns of the flat buffers, of which each of the optimizer's groups has one.
    ``size``, ``fragments``, ``whole``: as of one group, of all of them. ``placed``: of each trainable
    parameter, where it ends in its group's buffer, and the size of that one's partitions."""

    rank: int
    count: int
    groups: tuple[Share, ...]
    size: int
    fragments: Mapping[int, int]
    whole: int
    placed: Mapping[int, tuple[int, int]]

    def owners(self, index: int, size: int) -> tuple[int, int]:
        """The first and the last rank that own some of a parameter with so many elements."""
        end, share = self.placed[index]
        return (end - size) // share, (end - 1) // share


@lru_cache(maxsize=256)
def _buffers(
    model: RankModel, count: int, round_robin: bool
) -> tuple[tuple[Sequence[int], Sequence[int], int], ...]:
    """Of each group its parameters, where they end in its buffer, and the size of a partition: padded to
    2·count elements.

    ``round_robin``: parameters 0, count, 2·count, … come first, then 1, … (``_round_robin_reorder``).
    """
    buffers = []
    for group in model.trainable_groups:
        order = [i for first in range(count) for i in group[first::count]] if round_robin else group
        ends = list(accumulate(model.trainable_sizes[i] for i in order))
        alignment = 2 * count
        buffers.append((order, ends, -(-ends[-1] // alignment) * alignment // count))
    return tuple(buffers)


@lru_cache(maxsize=1024)
def partition(model: RankModel, rank: int, count: int, *, round_robin: bool = False) -> Partition:
    """The partition of data-parallel ``rank`` of ``count``; ``round_robin``: ``round_robin_gradients``."""
    sizes, buffers = model.trainable_sizes, _buffers(model, count, round_robin)
    groups = []
    for order, ends, size in buffers:
        low, high = rank * size, (rank + 1) * size
        fragments: dict[int, int] = {}
        position = bisect_right(ends, low)
        while position < len(order) and (start := ends[position] - sizes[order[position]]) < high:
            fragments[order[position]] = min(ends[position], high) - max(start, low)
            position += 1
        groups.append(Share(size=size, fragments=fragments, whole=sum(sizes[i] for i in fragments)))
    placed = {
        index: (end, size) for order, ends, size in buffers for index, end in zip(order, ends, strict=True)
    }
    return Partition(
        rank=rank,
        count=count,
        groups=tuple(groups),
        size=sum(group.size for group in groups),
        fragments={index: owned for group in groups for index, owned in group.fragments.items()},
        whole=sum(group.whole for group in groups),
        placed=placed,
    )


class GradientReduction(ABC):
    """One rank's gradients over the micro-steps of an optimizer step, and the step. Bytes go to the ledger.
    ``boundary``: the last micro-step before the optimizer's; ``first``: the first after it."""

    def __init__(
        self, model: RankModel, settings: DeepSpeedSettings, part: Partition, ledger: Ledger
    ) -> None:
        self.model = model
        self.settings = settings
        self.zero = settings.zero
        self.part = part
        self.ledger = ledger
        self.element_bytes = ElementBytes.of(settings)
        self.sizes = model.trainable_sizes

    def backward(self, boundary: bool, first: bool) -> Overlay:
        """Every gradient in the order of the backward pass."""
        return self._held(first)

    def gradient_ready(self, index: int, boundary: bool, first: bool) -> None:
        """Autograd has made the gradient of trainable parameter ``index``: it is kept, or added to what is
        there."""
        if first:
            self.ledger.adopt(Component.GRADIENTS, self.sizes[index] * self.element_bytes.gradient)

    @abstractmethod
    def end_of_backward(self, boundary: bool, first: bool) -> None:
        """What the engine does when the last gradient is there."""

    @abstractmethod
    def step(self) -> None:
        """The optimizer's step; the gradients are gone afterwards."""

    def _open_buckets(self) -> None:
        """Allocate the buckets at the first gradient. This base has none."""
        return

    def _held(self, first: bool) -> Overlay:
        """Gradients add up until the end of backward, or are added to those that are there."""
        ledger, marks = self.ledger, self.model.gradient_indexes
        start = ledger.total
        opening = next((i for i, index in enumerate(marks) if index >= 0), len(marks))
        if opening < len(marks):
            self._open_buckets()
        level = ledger.total
        if first:
            accumulated = self.model.accumulated_gradients(self.element_bytes.gradient)
            after = [level + size for size in accumulated]
            ledger.adopt(Component.GRADIENTS, accumulated[-1])
        else:
            after = [level] * len(marks)
        after[:opening] = [start] * opening
        during = [*after[:opening], *chain([level], after[opening:])][: len(marks)]
        return Overlay(start=start, during=tuple(during), after=tuple(after))
