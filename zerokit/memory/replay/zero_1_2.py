"""ZeRO stages 1 and 2: gradients through buckets into partitions, and the optimizer's step.

A parameter-by-parameter replay of ``deepspeed/runtime/zero/stage_1_and_2.py`` (0.19.8). Function names of
the source are given where they are followed.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from itertools import chain

from zerokit.domain.deepspeed_settings import DeepSpeedSettings
from zerokit.memory.components import Component, Ledger
from zerokit.memory.rank_model import FP64, Overlay, RankModel
from zerokit.memory.replay.model_states import GradientReduction, Partition, Share, step_temporary_bytes


class BucketedGradients(GradientReduction):
    """What stages 1 and 2 share: a bucket for each precision, reduced when it is full.

    Attributes:
        contiguous: gradients are copied into a buffer for the bucket; otherwise the bucket is a list of them.
        compact: gradients of this rank's partition are added up in fp32, in one buffer of their own.
        accumulates_apart: every gradient is held in fp32 beside the 16-bit model (stage 1 only).
    """

    def __init__(
        self, model: RankModel, settings: DeepSpeedSettings, part: Partition, ledger: Ledger
    ) -> None:
        super().__init__(model, settings, part, ledger)
        self.offload = self.zero.offload_optimizer.device != "none"
        self.contiguous = self.zero.contiguous_gradients or self.offload
        # get_flat_partition keeps an fp32 partition when accumulation is wider than the model
        self.compact = self.element_bytes.compact
        self.accumulates_apart = self._accumulates_apart()
        self.gradient = (
            self.element_bytes.accumulation if self.accumulates_apart else self.element_bytes.gradient
        )
        # torch_autocast: a bucket for each precision in which gradients travel (ipg_buckets), of the
        # gradients' own precision (setup_buckets)
        self.comm_bytes = (self.element_bytes.gradient,) * len(model.trainable)
        if settings.torch_autocast is not None:
            gradient_bytes = self.element_bytes.gradient
            self.comm_bytes = tuple(p.communication_bytes or gradient_bytes for p in model.trainable)
        self.buckets: dict[int, list[int]] = {key: [] for key in sorted(set(self.comm_bytes))}
        self.elements = dict.fromkeys(self.buckets, 0)
        self.copied = False
        self.opened = frozenset[Share]()  # groups whose gradients are added up
        self.reduced = 0  # bytes of others' gradients that the next reduction releases

    def _accumulates_apart(self) -> bool:
        """``use_grad_accum_attribute``."""
        return False

    @abstractmethod
    def _in_hook(self, boundary: bool) -> bool:
        """Whether a gradient goes into a bucket as soon as it is there."""

    @abstractmethod
    def _only_fills_buckets(self, first: bool) -> bool:
        """Whether a gradient that has room in its bucket changes nothing else."""

    @abstractmethod
    def _release(self, size: int) -> None:
        """A gradient of ``size`` bytes that another rank owns has been reduced outside the buffers."""

    # ---------------------------------------------------------------- gradients

    def backward(self, boundary: bool, first: bool) -> Overlay:
        """Every gradient in the order of the backward pass."""
        if not self.accumulates_apart and not self._in_hook(boundary):
            return self._held(first)
        ledger, sizes, buckets, elements = self.ledger, self.sizes, self.buckets, self.elements
        start, room = ledger.total, self.zero.reduce_bucket_size
        during, after = [], []
        simple = False  # nothing but the bucket changes where a gradient has room in it
        for index in self.model.gradient_indexes:
            if index >= 0:
                size, key = sizes[index], self.comm_bytes[index]
                if simple and elements[key] + size <= room:
                    buckets[key].append(index)
                    elements[key] += size
                else:
                    ledger.mark()
                    self.gradient_ready(index, boundary, first)
                    during.append(ledger.peak)
                    after.append(ledger.total)
                    simple = self._only_fills_buckets(first)
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
        self._open_buckets()
        if self._in_hook(boundary):
            self._into_bucket(index, boundary, is_kept=False)
        elif first:
            self.ledger.adopt(Component.GRADIENTS, self.sizes[index] * self.gradient)

    def _into_bucket(self, index: int, boundary: bool, is_kept: bool) -> None:
        """``reduce_independent_p_g_buckets_and_remove_grads``; ``is_kept``: the gradient was held since."""
        size, comm_bytes = self.sizes[index], self.comm_bytes[index]
        if self.elements[comm_bytes] + size > self.zero.reduce_bucket_size:
            self.flush(boundary, comm_bytes)
        has_own_buffer = not self.contiguous or size > self.zero.reduce_bucket_size
        if has_own_buffer and self.contiguous and self.offload:
            # cloned, for a storage of its own while the host copies it (stage_1_and_2.py:1446)
            self.ledger.burst(Component.GRADIENT_COPY, size * self.gradient)
        if has_own_buffer and not is_kept:
            self.ledger.adopt(Component.GRADIENTS, size * self.gradient)
        elif is_kept and not has_own_buffer:
            self.ledger.add(Component.GRADIENTS, -size * self.gradient)
        self.buckets[comm_bytes].append(index)
        self.elements[comm_bytes] += size

    def flush(self, boundary: bool, comm_bytes: int | None = None) -> None:
        """``reduce_ipg_grads``: average, reduce, and copy this rank's share out of the bucket, or of all."""
        chosen = tuple(self.buckets) if comm_bytes is None else (comm_bytes,)
        for kind in chosen:
            self._reduce(kind)
        fragments, room = self.part.fragments, self.zero.reduce_bucket_size
        for kind in chosen:
            for index in self.buckets[kind]:
                if index in fragments or not self.contiguous or self.sizes[index] > room:
                    self._after_reduction(index, boundary)
            self.buckets[kind] = []
            self.elements[kind] = 0

    def _reduce(self, comm_bytes: int) -> None:
        bucket = self.buckets[comm_bytes]
        if not bucket:
            return
        # `_clear_previous_reduced_grads`
        self.ledger.add(Component.GRADIENTS, -self.reduced)
        self.reduced = 0
        communication = (
            self.element_bytes.communication if comm_bytes == self.element_bytes.gradient else comm_bytes
        )
        together, flattened = self._at_a_time(bucket, self.elements[comm_bytes])
        copy = flat = together * self.gradient if flattened else 0
        converted = together * communication if communication != self.gradient else 0
        copy += converted
        if self.compact:
            own_fragments = [self.part.fragments[index] for index in bucket if index in self.part.fragments]
            if own_fragments:
                self.opened |= {group for group in self.part.groups if group.fragments.keys() & bucket}
                self.ledger.set(Component.GRADIENT_PARTITION, 4 * sum(group.size for group in self.opened))
                if communication != 4:  # _add_to_grad_partition_buffer converts piece by piece
                    copy = max(copy, (converted or flat) + max(own_fragments) * 4)
        self.ledger.burst(Component.REDUCE_COPY, copy)

    def _at_a_time(self, bucket: list[int], elements: int) -> tuple[int, bool]:
        """Elements reduced at a time at most, and whether they are flattened: copied if several pieces."""
        if not self.contiguous:  # buffered_reduce_fallback: piece by piece into one
            return elements, len(bucket) > 1
        if not self.zero.reduce_scatter:
            return elements, False
        if elements <= self.zero.reduce_bucket_size:
            return elements, self._divided(bucket)
        # `allreduce_and_scatter` of one gradient larger than a bucket: its owners' pieces go together until
        # they are more than a bucket (stage_1_and_2.py:1533)
        index = bucket[0]
        (end, share), room = self.part.placed[index], self.zero.reduce_bucket_size
        start = end - self.sizes[index]
        most, flattened, together, pieces = 0, False, 0, 0
        while start < end:
            border = min(end, (start // share + 1) * share)
            together, pieces, start = together + border - start, pieces + 1, border
            if together > room or start == end:
                most, flattened = max((most, flattened), (together, pieces > 1))
                together = pieces = 0
        return most, flattened

    def _divided(self, indexes: Sequence[int]) -> bool:
        """Whether pieces in a bucket have different owners: one piece alone is reduced without a copy.
        Pieces of this rank that are added into an fp32 partition stay apart (stage_1_and_2.py:1629)."""
        owners = {owner for index in indexes for owner in self.part.owners(index, self.sizes[index])}
        return len(owners) > 1 or (self.compact and self.part.rank in owners and len(indexes) > 1)

    def _after_reduction(self, index: int, boundary: bool) -> None:
        size = self.sizes[index] * self.gradient
        has_own_buffer = not self.contiguous or self.sizes[index] > self.zero.reduce_bucket_size
        fragment = self.part.fragments.get(index)
        if fragment is None:
            if has_own_buffer:
                self._release(size)
            return
        if self.offload:
            if not boundary:
                return  # copied to the host, released at the end of backward
            # set_norm_for_param_grad_in_gpu, then async_inplace_copy_grad_to_fp32_buffer
            self.ledger.burst(Component.OFFLOAD_COPY, fragment * FP64)
            if not self.compact:
                self.ledger.burst(Component.OFFLOAD_COPY, fragment * self.element_bytes.master)
        elif (self.compact and not self.accumulates_apart) or not self.contiguous:
            return  # held until the end of backward at least
        elif not self.compact and not self.copied:  # copy_grads_in_partition: whole parameters
            self.ledger.add(Component.GRADIENT_PARTITION, self.part.whole * self.gradient)
            self.copied = True
        if has_own_buffer:
            self.ledger.add(Component.GRADIENTS, -size)

    # ---------------------------------------------------------------- end of backward

    def _reduce_rest(self, boundary: bool) -> None:
        """``independent_gradient_partition_epilogue``: what is left in the buckets."""
        self.flush(boundary)
        self.reduced = 0
        if self.accumulates_apart:
            return
        # all_grad_tensors: this rank's gradients are held as they came unless they were copied; those of
        # later micro-steps are added into them
        self.ledger.set(Component.GRADIENTS, self._held_bytes(self.part.groups))
        self.ledger.set(Component.GRADIENT_BUCKET, 0)

    def _held_bytes(self, groups: Sequence[Share]) -> int:
        """Gradients of some groups between backward and step, outside of the buffer."""
        if self.compact or self.offload:
            return 0
        if not self.contiguous:
            return sum(group.whole for group in groups) * self.gradient
        # get_all_grad_tensors: zeros for parameters without a gradient
        zeros = (
            self.sizes[index] for group in groups for index in self.model.unused & group.fragments.keys()
        )
        return sum(zeros) * self.gradient

    # ---------------------------------------------------------------- optimizer step

    def step(self) -> None:
        """``step``: norm, then group by group flat gradient, fp32 copy, update; the gradients are gone
        afterwards. Those of all groups are in one buffer, or in one for each group where they are added up in
        fp32."""
        if self.offload:
            return
        ledger, part = self.ledger, self.part
        largest = max(part.fragments.values(), default=0)
        ledger.burst(Component.GRADIENT_NORM, largest * FP64)
        if self.accumulates_apart:  # free_grad_in_param_list
            ledger.set(Component.GRADIENTS, 0)
            ledger.set(Component.GRADIENT_BUCKET, 0)
        if self.compact:
            ledger.set(Component.GRADIENT_PARTITION, part.size * 4)
        for number, group in enumerate(part.groups, 1):
            master, later = group.size * self.element_bytes.master, part.groups[number:]
            if not self.compact:
                copies = len(group.fragments) > 1 or group.whole != group.size
                flat = group.size * self.element_bytes.gradient if copies else 0
                ledger.add(Component.FLAT_GRADIENT, flat)
                if self.element_bytes.gradient != self.element_bytes.master:
                    ledger.add(Component.FP32_GRADIENT, master)
                    ledger.add(Component.FLAT_GRADIENT, -flat)
                if not any(other.fragments for other in later):
                    ledger.set(Component.GRADIENT_PARTITION, 0)
            ledger.set(Component.GRADIENTS, self._held_bytes(later))
            temporaries = step_temporary_bytes(self.settings, [group.size], master)
            ledger.burst(Component.OPTIMIZER_TEMPORARIES, temporaries)
            if self.compact:
                ledger.add(Component.GRADIENT_PARTITION, -group.size * 4)
            ledger.set(Component.FLAT_GRADIENT, 0)
            ledger.set(Component.FP32_GRADIENT, 0)
        self.opened = frozenset()


class Stage1Gradients(BucketedGradients):
    """Gradients stay whole until the last micro-step of a step, and go through the buckets there."""

    def _accumulates_apart(self) -> bool:
        """Stage 1 holds gradients in fp32 beside a 16-bit model, each made of the gradient that comes and
        go with the step (stage_1_and_2.py:1234)."""
        return self.compact

    def _in_hook(self, boundary: bool) -> bool:
        return bool(self.zero.overlap_comm) and boundary

    def _only_fills_buckets(self, first: bool) -> bool:
        return self.contiguous and first and not self.accumulates_apart

    def _release(self, size: int) -> None:
        """They are cleared at the end of backward."""

    def gradient_ready(self, index: int, boundary: bool, first: bool) -> None:
        """``process_gradients``; what was accumulated so far goes into the bucket at the boundary."""
        size = self.sizes[index] * self.gradient
        if self.accumulates_apart:
            self._open_buckets()
            if first:
                self.ledger.add(Component.GRADIENTS, size)
            else:
                self.ledger.burst(Component.GRADIENT_COPY, size)
            if self._in_hook(boundary):
                self._into_bucket(index, boundary, is_kept=True)
            return
        if self._in_hook(boundary) and not first:
            self._open_buckets()
            self.ledger.add(Component.GRADIENTS, -size)
        super().gradient_ready(index, boundary, first)

    def end_of_backward(self, boundary: bool, first: bool) -> None:
        """``reduce_gradients``; the epilogue runs at the boundary only: an open bucket stays until then."""
        if not boundary:
            return
        second = self._second_bucket_bytes()
        self.ledger.add(Component.GRADIENT_BUCKET, second)
        if not self.zero.overlap_comm:
            self._kept_into_buckets(boundary)
        self._reduce_rest(boundary)
        if self.accumulates_apart:  # others' gradients stay: those in a bucket keep it
            self.ledger.add(Component.GRADIENT_BUCKET, -second)
            room = self.zero.reduce_bucket_size
            if all(i in self.part.fragments or size > room for i, size in enumerate(self.sizes)):
                self.ledger.set(Component.GRADIENT_BUCKET, 0)
            return
        self.copied = False

    def _second_bucket_bytes(self) -> int:
        """What ``reduce_gradients`` adds to the buckets of a pipeline's stage (stage_1_and_2.py:962)."""
        if not (self.model.is_stage and self.contiguous):
            return 0
        return self.zero.reduce_bucket_size * sum(self.buckets)

    def _kept_into_buckets(self, boundary: bool) -> None:
        room, gradient = self.zero.reduce_bucket_size, self.gradient
        moved_bytes = 0  # bytes whose gradients are in a bucket now; the level counts when one is reduced
        for index in chain(*self.model.trainable_groups):
            size, comm_bytes = self.sizes[index], self.comm_bytes[index]
            if self.contiguous and self.elements[comm_bytes] + size <= room:
                self.buckets[comm_bytes].append(index)
                self.elements[comm_bytes] += size
                moved_bytes += size * gradient
                continue
            self.ledger.add(Component.GRADIENTS, -moved_bytes)
            moved_bytes = 0
            self._into_bucket(index, boundary, is_kept=True)
        self.ledger.add(Component.GRADIENTS, -moved_bytes)


class Stage2Gradients(BucketedGradients):
    """Every gradient goes into a bucket as soon as it is there, in every micro-step."""

    def _in_hook(self, boundary: bool) -> bool:
        return True

    def _only_fills_buckets(self, first: bool) -> bool:
        return self.contiguous

    def _release(self, size: int) -> None:
        if self.zero.overlap_comm and not self.contiguous:
            self.reduced += size  # stage_1_and_2.py:2243: the reduction may still read them
        else:
            self.ledger.add(Component.GRADIENTS, -size)

    def end_of_backward(self, boundary: bool, first: bool) -> None:
        """The epilogue; of a later micro-step the copy is added to the partition's."""
        self._reduce_rest(boundary)
        if self.copied and not first:
            self.ledger.add(Component.GRADIENT_PARTITION, -self.part.whole * self.gradient)
        self.copied = False
