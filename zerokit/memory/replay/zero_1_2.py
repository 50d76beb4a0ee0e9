"""ZeRO stages 0, 1 and 2: gradients through buckets into partitions, and the optimizer's step.

A parameter-by-parameter replay of ``deepspeed/runtime/zero/stage_1_and_2.py`` (0.19.8), and for
stage 0 of ``runtime/fp16/fused_optimizer.py``. Function names of the source are given where they
are followed.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, chain

from zerokit.domain.deepspeed_settings import DeepSpeedSettings
from zerokit.memory.components import Component
from zerokit.memory.ledger import Ledger
from zerokit.memory.rank_model import FP64, Layout, Overlay, Precision
from zerokit.memory.replay.optimizers import optimizer_temporaries

STAGE0_REDUCE_ELEMENTS = 500_000_000  # engine.py MEMORY_OPT_ALLREDUCE_SIZE


@dataclass(frozen=True, slots=True, eq=False)
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
def partition(layout: Layout, rank: int, count: int, *, round_robin: bool = False) -> Partition:
    """The partition of data-parallel ``rank`` of ``count``; padded to 2·count elements.

    ``round_robin``: parameters 0, count, 2·count, … come first, then 1, … (``_round_robin_reorder``).
    """
    sizes = layout.trainable_sizes
    order: Sequence[int] = range(len(sizes))
    ends: Sequence[int] = layout.trainable_ends
    if round_robin:
        order = [i for first in range(count) for i in range(first, len(sizes), count)]
        ends = list(accumulate(sizes[i] for i in order))
    alignment = 2 * count
    padded = -(-(ends[-1] if ends else 0) // alignment) * alignment
    size = padded // count
    low, high = rank * size, (rank + 1) * size
    fragments: dict[int, int] = {}
    place = bisect_right(ends, low)
    while place < len(sizes):
        index = order[place]
        start = ends[place] - sizes[index]
        if start >= high:
            break
        fragments[index] = min(ends[place], high) - max(start, low)
        place += 1
    if round_robin:
        placed = dict(zip(order, ends, strict=True))
        ends = [placed[index] for index in range(len(sizes))]
    return Partition(rank, count, size, fragments, sum(sizes[i] for i in fragments), ends)


class Stage12:
    """One rank's gradients over micro-steps. Components are added to the ledger it is given."""

    def __init__(
        self,
        layout: Layout,
        settings: DeepSpeedSettings,
        part: Partition,
        ledger: Ledger,
    ) -> None:
        self.layout = layout
        self.settings = settings
        self.zero = settings.zero
        self.part = part
        self.ledger = ledger
        self.bytes = Precision.of(settings)
        self.sizes = layout.trainable_sizes
        self.offload = self.zero.offload_optimizer.device != "none"
        self.contiguous = self.zero.contiguous_gradients or self.offload
        # get_flat_partition keeps an fp32 partition when accumulation is wider than the model
        self.compact = self.bytes.compact
        self.wide = self._accumulates_apart()
        self.gradient = self.bytes.accumulation if self.wide else self.bytes.gradient  # held, in buckets
        # torch_autocast: a bucket for each precision in which gradients travel (ipg_buckets), of the
        # gradients' own precision (setup_buckets)
        autocast = settings.torch_autocast is not None
        self.widths = tuple(
            (p.communication_bytes or self.bytes.gradient) if autocast else self.bytes.gradient
            for p in layout.trainable
        )
        self.buckets: dict[int, list[int]] = {width: [] for width in sorted(set(self.widths))}
        self.elements = dict.fromkeys(self.buckets, 0)
        self.copied = False
        self.reduced = 0  # bytes of others' gradients that the next reduction lets go

    def _accumulates_apart(self) -> bool:
        """``use_grad_accum_attribute``: stage 1 holds gradients in fp32 beside a 16-bit model, each made
        of the gradient that comes and let go with the step (stage_1_and_2.py:1234)."""
        return self.zero.stage == 1 and self.compact

    # ---------------------------------------------------------------- gradients

    def backward(self, boundary: bool, first: bool) -> Overlay:
        """Every gradient in the order of the backward pass."""
        indexes = self.layout.gradient_indexes
        if self.wide or self._in_hook(boundary):
            return self._as_they_come(indexes, boundary, first)
        return self._held(first)

    def _in_hook(self, boundary: bool) -> bool:
        """Whether a gradient goes into a bucket as soon as it is there."""
        return self.zero.stage == 2 or (self.zero.stage == 1 and bool(self.zero.overlap_comm) and boundary)

    def _held(self, first: bool) -> Overlay:
        """Gradients pile up until the end of backward, or add to those that are there."""
        ledger, marks = self.ledger, self.layout.gradient_indexes
        start = ledger.total
        opening = next((i for i, index in enumerate(marks) if index >= 0), len(marks))
        if self.zero.stage and opening < len(marks):
            self._open_buckets()
        level = ledger.total
        if first:
            piled = self.layout.gradients_piled(self.bytes.gradient)
            after = [level + size for size in piled]
            ledger.adopt(Component.GRADIENTS, piled[-1])
        else:
            after = [level] * len(marks)
        after[:opening] = [start] * opening
        during = [*after[:opening], *chain([level], after[opening:])][: len(marks)]
        return Overlay(start=start, during=tuple(during), after=tuple(after))

    def _as_they_come(self, indexes: Sequence[int], boundary: bool, first: bool) -> Overlay:
        ledger, sizes, widths, buckets, elements = (
            self.ledger, self.sizes, self.widths, self.buckets, self.elements
        )  # fmt: skip
        start, room = ledger.total, self.zero.reduce_bucket_size
        during, after = [], []
        simple = False  # nothing but the bucket changes where a gradient has room in it
        for index in indexes:
            if index >= 0:
                size, width = sizes[index], widths[index]
                if simple and elements[width] + size <= room:
                    buckets[width].append(index)
                    elements[width] += size
                else:
                    ledger.mark()
                    self.gradient_ready(index, boundary, first)
                    during.append(ledger.peak)
                    after.append(ledger.total)
                    simple = self.contiguous and (first or self.zero.stage == 2) and not self.wide
                    continue
            during.append(ledger.total)
            after.append(ledger.total)
        return Overlay(start=start, during=tuple(during), after=tuple(after))

    def _open_buckets(self) -> None:
        """``setup_buckets``: full size at the first gradient, twice when reductions overlap."""
        if self.contiguous:
            count = 2 if self.zero.overlap_comm else 1
            size = self.zero.reduce_bucket_size * self.gradient * count * len(self.buckets)
            self.ledger.set(Component.GRADIENT_BUCKET, size)

    def gradient_ready(self, index: int, boundary: bool, first: bool) -> None:
        """``process_gradients`` for one parameter: its gradient was made by autograd."""
        size = self.sizes[index] * self.gradient
        if self.zero.stage == 0:
            if first:
                self.ledger.adopt(Component.GRADIENTS, size)
            return
        self._open_buckets()
        if self.wide:
            if first:
                self.ledger.add(Component.GRADIENTS, size)
            else:
                self.ledger.burst(Component.GRADIENT_COPY, size)
            if self._in_hook(boundary):
                self._into_bucket(index, boundary, kept=True)
            return
        if not self._in_hook(boundary):
            if first:
                self.ledger.adopt(Component.GRADIENTS, size)
            return
        if self.zero.stage == 1 and not first:
            self.ledger.add(Component.GRADIENTS, -size)  # accumulated so far; goes into the bucket now
        self._into_bucket(index, boundary, kept=False)

    def _into_bucket(self, index: int, boundary: bool, kept: bool) -> None:
        """``reduce_independent_p_g_buckets_and_remove_grads``; ``kept``: the gradient was held since."""
        size, width = self.sizes[index], self.widths[index]
        if self.elements[width] + size > self.zero.reduce_bucket_size:
            self.flush(boundary, width)
        own = not self.contiguous or size > self.zero.reduce_bucket_size
        if own and self.contiguous and self.offload:
            # cloned, for a storage of its own while the host copies it (stage_1_and_2.py:1446)
            self.ledger.burst(Component.GRADIENT_COPY, size * self.gradient)
        if own and not kept:
            self.ledger.adopt(Component.GRADIENTS, size * self.gradient)
        elif kept and not own:
            self.ledger.add(Component.GRADIENTS, -size * self.gradient)
        self.buckets[width].append(index)
        self.elements[width] += size

    def flush(self, boundary: bool, width: int | None = None) -> None:
        """``reduce_ipg_grads``: average, reduce, and copy this rank's share out of the bucket, or of all."""
        chosen = tuple(self.buckets) if width is None else (width,)
        for kind in chosen:
            self._reduce(kind)
        fragments, room = self.part.fragments, self.zero.reduce_bucket_size
        for kind in chosen:
            for index in self.buckets[kind]:
                if index in fragments or not self.contiguous or self.sizes[index] > room:
                    self._after_reduction(index, boundary)
            self.buckets[kind] = []
            self.elements[kind] = 0

    def _reduce(self, width: int) -> None:
        bucket = self.buckets[width]
        if not bucket:
            return
        self._let_go_of_reduced()
        communication = self.bytes.communication if width == self.bytes.gradient else width
        together, flattened = self._at_a_time(bucket, self.elements[width])
        copy = flat = together * self.gradient if flattened else 0
        converted = together * communication if communication != self.gradient else 0
        copy += converted
        if self.compact:
            mine = [self.part.fragments[index] for index in bucket if index in self.part.fragments]
            if mine:
                self.ledger.set(Component.GRADIENT_PARTITION, self.part.size * 4)
                if communication != 4:  # _add_to_grad_partition_buffer converts piece by piece
                    copy = max(copy, (converted or flat) + max(mine) * 4)
        self.ledger.burst(Component.REDUCE_COPY, copy)

    def _let_go_of_reduced(self) -> None:
        """``_clear_previous_reduced_grads``."""
        self.ledger.add(Component.GRADIENTS, -self.reduced)
        self.reduced = 0

    def _at_a_time(self, bucket: list[int], elements: int) -> tuple[int, bool]:
        """Elements reduced at a time at most, and whether they are flattened: copied if several pieces."""
        if not self.contiguous:  # buffered_reduce_fallback: piece by piece into one
            return elements, len(bucket) > 1
        if not self.zero.reduce_scatter:
            return elements, False
        if elements <= self.zero.reduce_bucket_size:
            return elements, self._divided(bucket)
        return self._scattered(bucket[0])

    def _divided(self, indexes: Sequence[int]) -> bool:
        """Whether pieces in a bucket have different owners: one piece alone is reduced without a copy.
        Pieces of this rank that are added into an fp32 partition stay apart (stage_1_and_2.py:1629)."""
        ends, sizes, share = self.part.ends, self.sizes, self.part.size
        owner = (ends[indexes[0]] - 1) // share
        if self.compact and owner == self.part.rank and len(indexes) > 1:
            return True
        return any(
            (ends[index] - 1) // share != owner or (ends[index] - sizes[index]) // share != owner
            for index in indexes
        )

    def _scattered(self, index: int) -> tuple[int, bool]:
        """``allreduce_and_scatter`` of one gradient larger than a bucket: its owners' pieces go together
        until they are more than a bucket (stage_1_and_2.py:1533)."""
        end, share, room = self.part.ends[index], self.part.size, self.zero.reduce_bucket_size
        place = end - self.sizes[index]
        most, flattened, together, pieces = 0, False, 0, 0
        while place < end:
            border = min(end, (place // share + 1) * share)
            together, pieces, place = together + border - place, pieces + 1, border
            if together > room or place == end:
                most, flattened = max((most, flattened), (together, pieces > 1))
                together = pieces = 0
        return most, flattened

    def _after_reduction(self, index: int, boundary: bool) -> None:
        size = self.sizes[index] * self.gradient
        own = not self.contiguous or self.sizes[index] > self.zero.reduce_bucket_size
        fragment = self.part.fragments.get(index)
        if fragment is None:
            if own and self.zero.stage == 2:  # stage 1 clears them at the end of backward
                if self.zero.overlap_comm and not self.contiguous:
                    self.reduced += size  # stage_1_and_2.py:2243: the reduction may still read them
                else:
                    self.ledger.add(Component.GRADIENTS, -size)
            return
        if self.offload:
            if not boundary:
                return  # copied to the host, let go at the end of backward
            # set_norm_for_param_grad_in_gpu, then async_inplace_copy_grad_to_fp32_buffer
            self.ledger.burst(Component.OFFLOAD_COPY, fragment * FP64)
            if not self.compact:
                self.ledger.burst(Component.OFFLOAD_COPY, fragment * self.bytes.master)
        elif (self.compact and not self.wide) or not self.contiguous:
            return  # held until the end of backward at least
        elif not self.compact and not self.copied:  # copy_grads_in_partition: whole parameters
            self.ledger.add(Component.GRADIENT_PARTITION, self.part.whole * self.gradient)
            self.copied = True
        if own:
            self.ledger.add(Component.GRADIENTS, -size)

    # ---------------------------------------------------------------- end of backward

    def end_of_backward(self, boundary: bool, first: bool) -> None:
        """``reduce_gradients`` (stage 1) and ``independent_gradient_partition_epilogue``."""
        if self.zero.stage == 0:
            if boundary:
                elements = min(sum(self.sizes), STAGE0_REDUCE_ELEMENTS + max(self.sizes, default=0))
                communication = self.bytes.communication
                converted = communication if communication != self.gradient else 0  # engine.py:3801
                self.ledger.burst(Component.REDUCE_COPY, elements * (self.gradient + converted))
            return
        if self.zero.stage == 1 and not boundary:
            return  # the epilogue runs at the boundary only: an open bucket stays until then
        if self.zero.stage == 1 and not self.zero.overlap_comm:
            self._kept_into_buckets(boundary)
        self.flush(boundary)
        self.reduced = 0
        if self.wide:  # others' gradients stay: those in a bucket keep it
            room = self.zero.reduce_bucket_size
            if all(i in self.part.fragments or size > room for i, size in enumerate(self.sizes)):
                self.ledger.set(Component.GRADIENT_BUCKET, 0)
            return
        # all_grad_tensors: this rank's gradients are held as they came unless they were copied; those of
        # later micro-steps are added into them
        held = not self.contiguous and not self.compact
        self.ledger.set(Component.GRADIENTS, self.part.whole * self.gradient if held else 0)
        self.ledger.set(Component.GRADIENT_BUCKET, 0)
        if self.copied and not first and self.zero.stage == 2:
            self.ledger.add(Component.GRADIENT_PARTITION, -self.part.whole * self.gradient)
        self.copied = False

    def _kept_into_buckets(self, boundary: bool) -> None:
        room, gradient = self.zero.reduce_bucket_size, self.gradient
        moved = 0  # bytes whose gradients are in a bucket now; the level counts when one is reduced
        for index, (size, width) in enumerate(zip(self.sizes, self.widths, strict=True)):
            if self.contiguous and self.elements[width] + size <= room:
                self.buckets[width].append(index)
                self.elements[width] += size
                moved += size * gradient
                continue
            self.ledger.add(Component.GRADIENTS, -moved)
            moved = 0
            self._into_bucket(index, boundary, kept=True)
        self.ledger.add(Component.GRADIENTS, -moved)

    # ---------------------------------------------------------------- optimizer step

    def step(self) -> None:
        """``step``: norm, flat gradient, fp32 copy, update; the gradients are gone afterwards."""
        if self.offload:
            return
        ledger, part = self.ledger, self.part
        largest = max(part.fragments.values(), default=0)
        ledger.burst(Component.GRADIENT_NORM, largest * FP64)
        if self.wide:  # free_grad_in_param_list
            ledger.set(Component.GRADIENTS, 0)
            ledger.set(Component.GRADIENT_BUCKET, 0)
        if not self.compact:
            copies = len(part.fragments) > 1 or part.whole != part.size
            flat = part.size * self.bytes.gradient if copies else 0
            ledger.add(Component.FLAT_GRADIENT, flat)
            if self.bytes.gradient != self.bytes.master:
                ledger.add(Component.FP32_GRADIENT, part.size * self.bytes.master)
                ledger.add(Component.FLAT_GRADIENT, -flat)
        ledger.set(Component.GRADIENT_PARTITION, 0 if not self.compact else part.size * 4)
        ledger.set(Component.GRADIENTS, 0)
        temporaries = optimizer_temporaries(self.settings)
        ledger.burst(Component.OPTIMIZER_TEMPORARIES, part.size * self.bytes.master * temporaries)
        for name in (Component.FLAT_GRADIENT, Component.FP32_GRADIENT, Component.GRADIENT_PARTITION):
            ledger.set(name, 0)


def stage0_step(layout: Layout, settings: DeepSpeedSettings, ledger: Ledger) -> None:
    """``FP16_Optimizer.step``: every gradient in fp32, then one flat copy of them.

    With fp32 weights DeepSpeed hands the step to the optimizer itself: nothing is copied.
    """
    total = layout.trainable_numel
    if Precision.of(settings).parameter == 2:
        ledger.add(Component.FP32_GRADIENT, 4 * total)
        ledger.add(Component.FLAT_GRADIENT, 4 * total)
        ledger.set(Component.FP32_GRADIENT, 0)
        ledger.set(Component.GRADIENTS, 0)
        ledger.set(Component.FLAT_GRADIENT, 0)
    else:
        ledger.burst(Component.OPTIMIZER_TEMPORARIES, 4 * total * optimizer_temporaries(settings))
    ledger.set(Component.GRADIENTS, 0)
