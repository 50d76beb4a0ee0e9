"""ZeRO stage 3: which parameters are gathered at every instant, what becomes of gradients, and the step.

A replay of ``deepspeed/runtime/zero/partitioned_param_coordinator.py`` (fetch, prefetch, release over the
recorded trace; 0.19.8), one event a module hook; gradients and step are of ``zero/stage3.py``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from zerokit.domain.deepspeed_settings import DeepSpeedSettings, ZeroSettings
from zerokit.memory.components import Component, Ledger
from zerokit.memory.rank_model import FP64, ElementBytes, Overlay, RankModel, layers_of
from zerokit.memory.replay.model_states import on_device, step_temporary_bytes, sub_groups
from zerokit.memory.replay.zero_3_fetch_order import modules_of
from zerokit.values import frozen_dataclass

ABSENT, FLYING, HERE = 0, 1, 2
_NONE: frozenset[int] = frozenset()


@dataclass(slots=True, eq=False)
class _Group:
    """One all-gather. Whoever waits for one parameter waits for all, of either precision; the flat buffers
    live until every one has been waited for (``MultipleAllGatherHandles``)."""

    parameters: list[int]
    flat_bytes: int
    waiting: int
    is_single: (
        bool  # one parameter by itself: the buffer is the parameter, but for one that travels converted
    )
    copied_bytes: int = 0  # of a share, offloaded or converted, until waited for
    arrived: bool = False


class Parameters:
    """One rank's gathered parameters. Components go into the ledger given. It looks at nothing of the
    settings but what :func:`settings_of_gathers` keeps."""

    def __init__(self, model: RankModel, settings: DeepSpeedSettings, ranks: int, ledger: Ledger) -> None:
        self.zero = settings.zero
        self.ranks = ranks
        self.ledger = ledger
        self.modules = modules = modules_of(model)
        self.element_bytes = model.element_bytes(settings.parameter_bytes)
        self.gathered_element_bytes = model.gathered_element_bytes(settings)
        self.offload_param = self.zero.offload_param.device != "none"
        self.persistent = self._persistent()
        self.status = [ABSENT] * len(modules.sizes)
        self.active: list[set[str]] = [set() for _ in modules.sizes]
        self.held = [0] * len(modules.sizes)
        # saved for backward: what is released then is kept, and lost only with its operator's backward
        self.saved: set[int] = set()
        self.kept = [0] * len(modules.sizes)
        self.group: list[_Group | None] = [None] * len(modules.sizes)
        self.released: dict[tuple[str, int], frozenset[int]] = {}
        self.backward_stack: dict[str, None] = {}
        self.recompute: dict[str, set[int]] = {}
        # modules whose backward cannot have begun where what they gather again is left to one that has
        self.recomputed = (
            tuple(f"{layer}." for layer in layers_of(model.parameters)) if model.keeps_recomputed else ()
        )
        self.recording = False
        self.available = 0
        self.step_id = 0
        self.queue: deque[tuple[int, int]] = deque()
        self.latest = [-1] * len(modules.sizes)  # step in which each is used next
        # a second pass goes through the policy's hooks (parameter_offload.py, _start_of_forward_hook): an
        # order of fetches is recorded in forward, and holds no longer than the base's pass meets an adapter
        self.knows_order = self.repeats_order = not model.passes_again

    def _persistent(self) -> list[bool]:
        """``mark_persistent_parameters``: small ones stay gathered, up to the model threshold."""
        result = []
        total = 0
        for size in self.modules.sizes:
            stays = (
                size <= self.zero.param_persistence_threshold
                and size + total <= self.zero.model_persistence_threshold
            )
            total += size if stays else 0
            result.append(stays)
        return result

    def reach_steady_state(self, model: RankModel, accumulates: bool) -> None:
        """Decide what is released when, as DeepSpeed does once, in the second forward and backward.

        The first, whose modules are recorded, releases everything. Small parameters are gathered for good
        after the optimizer's step: if that is yet to come, the second prefetches them like any other.
        """
        if accumulates and any(self.persistent):
            self.start_of_forward()
            for kind, name in model.trace.marks_forward:
                self.in_forward(kind, name)
            for kind, name in model.trace.marks_backward:
                self.in_backward(kind, name)
            self.end_of_backward()
            self.release_all()

    def start_of_forward(self) -> None:
        """``reset_step``."""
        for group in {id(g): g for g in self.group if g is not None}.values():
            for index in list(group.parameters):
                if self.status[index] == FLYING:
                    self._arrive(index)
                    self._release(index)
        self.queue = deque(self.modules.queue)
        self.latest = [-1] * len(self.status)
        self.step_id = 0
        self.available = 0

    def _gather(self, indexes: Sequence[int]) -> None:
        """``__all_gather_params_`` and ``all_gather_coalesced``: a flat buffer for each precision."""
        status = self.status
        absent = [i for i in indexes if status[i] == ABSENT]
        if not absent:
            return
        absent.sort()
        self.available += sum([self.modules.sizes[i] for i in absent])
        first = absent[0]
        is_single = len(absent) == 1 and self.gathered_element_bytes[first] == self.element_bytes[first]
        flat = self._flat_bytes(absent) if self.ranks > 1 else []
        group = _Group(absent, sum(flat), len(absent), is_single)
        for index in absent:
            self.status[index] = FLYING
            self.group[index] = group
            if self.ranks == 1 and self.offload_param:  # NoGatherHandle: copied whole, at once
                self._hold(index, self.modules.sizes[index] * self.element_bytes[index])
        for size, is_copied in zip(flat, self._copied_first(absent) if flat else (), strict=True):
            copied = size // self.ranks if is_copied else 0
            if len(absent) == 1:
                group.copied_bytes = copied
                self.ledger.add(
                    Component.GATHER_COPY, copied
                )  # the collective holds its input until waited for
            if is_single:
                self._hold(absent[0], size)
            else:
                self.ledger.add(Component.GATHER_BUFFERS, size)
            if len(absent) > 1:
                self.ledger.burst(Component.GATHER_COPY, copied)

    def _copied_first(self, indexes: list[int]) -> list[bool]:
        """For each flat buffer whether its shares are copied first: to the device, or into the precision in
        which they travel."""
        converted = {
            self.gathered_element_bytes[i]: self.gathered_element_bytes[i] != self.element_bytes[i]
            for i in indexes
        }
        return [self.offload_param or converted[element_bytes] for element_bytes in sorted(converted)]

    def _flat_bytes(self, indexes: list[int]) -> list[int]:
        """Shares side by side, a buffer for each precision."""
        sizes, element_bytes = self.modules.sizes, self.gathered_element_bytes
        elements: dict[int, int] = {}
        for index in indexes:
            share = -(-sizes[index] // self.ranks)
            elements[element_bytes[index]] = elements.get(element_bytes[index], 0) + share
        return [elements[element_bytes] * self.ranks * element_bytes for element_bytes in sorted(elements)]

    def _hold(self, index: int, size_bytes: int) -> None:
        self.held[index] = size_bytes
        self.ledger.add(Component.GATHERED_PARAMETERS, size_bytes)

    def _arrive(self, index: int) -> None:
        """``AllGatherCoalescedHandle.wait``: the first wait copies every parameter out of the flat buffer."""
        group = self.group[index]
        if group is None:
            return
        if not group.arrived:
            group.arrived = True
            for other in group.parameters:
                self.status[other] = HERE
                if self.ranks > 1 and not group.is_single:
                    # out of the flat buffer; then from the precision in which it travelled
                    coalesced = len(group.parameters) > 1
                    size = self.modules.sizes[other]
                    joined = size * self.gathered_element_bytes[other] if coalesced else 0
                    if self.gathered_element_bytes[other] == self.element_bytes[other]:
                        joined = 0
                    self.ledger.add(Component.GATHER_COPY, joined)
                    self._hold(other, size * self.element_bytes[other])
                    self.ledger.add(Component.GATHER_COPY, -joined)
            self.ledger.add(Component.GATHER_COPY, -group.copied_bytes)
        self.group[index] = None
        group.waiting -= 1
        if group.waiting == 0 and not group.is_single:
            self.ledger.add(Component.GATHER_BUFFERS, -group.flat_bytes)

    def _release(self, index: int) -> None:
        if self.status[index] == HERE and not self.active[index]:
            self.status[index] = ABSENT
            self.available -= self.modules.sizes[index]
            if index in self.saved:
                self.kept[index] += self.held[index]
            else:
                self.ledger.add(Component.GATHERED_PARAMETERS, -self.held[index])
            self.held[index] = 0

    def _forget(self, index: int) -> None:
        """The operator's backward is over: what it had saved goes."""
        self.saved.discard(index)
        self.ledger.add(Component.GATHERED_PARAMETERS, -self.kept[index])
        self.kept[index] = 0

    def fetch(self, module: str, recomputing: bool) -> None:
        """``fetch_sub_module``: gather what the module needs, wait for it, prefetch what follows."""
        needed = self.modules.of.get(module, ())
        if needed:
            self._gather(needed)
        for index in needed:
            self.active[index].add(module)
            if recomputing and self.backward_stack and not self.modules.trainable[index]:
                began = (
                    one for one in reversed(self.backward_stack) if not f"{one}.".startswith(self.recomputed)
                )
                if owner := next(began, None):
                    self.recompute.setdefault(owner, set()).add(index)
                    self.active[index].add(owner)
            if self.group[index] is not None:
                self._arrive(index)
        if self.queue and self.knows_order and not self.recording:
            self._prefetch(needed)
        self.step_id += 1

    def _prefetch(self, needed: tuple[int, ...]) -> None:
        queue, latest = self.queue, self.latest
        if needed:
            unseen = {i for i in needed if latest[i] < self.step_id}
            dropped: set[int] = set()
            while queue and len(dropped) < len(unseen):
                index, step = queue.popleft()
                latest[index] = step
                dropped.add(index)
        status, sizes = self.status, self.modules.sizes
        limit = min(self.zero.max_live_parameters - self.available, self.zero.prefetch_bucket_size)
        chosen: list[int] = []
        elements = 0
        while queue and elements < limit:
            index, step = queue.popleft()
            if step > latest[index]:
                latest[index] = step
            if status[index] == ABSENT and index not in chosen:
                chosen.append(index)
                elements += sizes[index]
        if chosen:
            self._gather(chosen)

    def _to_release(self, module: str, own_parameters: Collection[int]) -> frozenset[int]:
        """``__params_to_release``, which DeepSpeed caches by module and step; all while it records."""
        if self.recording:
            return frozenset(i for i in own_parameters if not self.persistent[i])
        key = (module, self.step_id)
        chosen = self.released.get(key)
        if chosen is None:
            step, latest = self.step_id, self.latest
            not_kept = [i for i in own_parameters if not self.persistent[i]]
            if self.repeats_order:
                until = self.modules.elements_until_used
                reach = self.zero.max_reuse_distance
                not_kept = [i for i in not_kept if latest[i] <= step and until(i, module, step) >= reach]
            chosen = self.released[key] = frozenset(not_kept)
        return chosen

    def release(self, module: str, backward: bool) -> None:
        """``release_sub_module``."""
        own_parameters: Collection[int] = self.modules.of.get(module, ())
        chosen = self._to_release(module, own_parameters) if own_parameters else _NONE
        if backward:
            if regathered := self.recompute.pop(module, None):
                chosen |= {i for i in regathered if not self.persistent[i]}
                own_parameters = {*own_parameters, *regathered}
            self.backward_stack.pop(module, None)
        for index in own_parameters:
            self.active[index].discard(module)
            if index in chosen:
                self._release(index)

    def before_backward(self, module: str) -> None:
        """``pre_sub_module_backward_function``."""
        self.backward_stack[module] = None
        self.fetch(module, recomputing=False)

    def in_forward(self, kind: str, name: str) -> None:
        """What the hooks do at a mark of the forward pass."""
        if kind == "fwd_pre":
            self.fetch(name, recomputing=False)
            self.saved.update(self.modules.saved_in_forward.get(name, ()))
        elif kind == "fwd_post":
            self.release(name, backward=False)

    def in_pass_of_base(self, kind: str, name: str) -> None:
        """What the hooks do at a mark of the pass without adapters, whose modules do not run."""
        if ".lora_" in name:
            self.knows_order = False
        elif kind == "fwd_pre":
            self.fetch(name, recomputing=False)
        elif kind == "fwd_post":
            self.release(name, backward=False)

    def pass_of_base(self, model: RankModel) -> Overlay | None:
        """The pass without adapters between forward and backward, where there is one."""
        if model.reference != "base":
            return None
        self.start_of_forward()
        self.knows_order = True
        return self.overlay(model.trace.marks_forward, self.in_pass_of_base)

    def in_backward(self, kind: str, name: str) -> None:
        """What the hooks do at a mark of the backward pass."""
        if kind in ("grad", "kept"):
            self._forget(self.modules.saved_by(name))
        elif kind == "bwd_pre":
            self.before_backward(name)
        elif kind == "bwd_post":
            for index in self.modules.saved_again.get(name, ()):
                self._forget(index)
            if name not in self.modules.never_released:
                self.release(name, backward=True)
        elif kind == "fwd_pre":
            self.fetch(name, recomputing=True)
            self.saved.update(self.modules.saved_again.get(name, ()))
        elif kind == "fwd_post":
            self.release(name, backward=False)

    def overlay(self, marks: Iterable[tuple[str, str]], handle: Callable[[str, str], None]) -> Overlay:
        """A pass, mark by mark."""
        ledger = self.ledger
        start = ledger.total
        during, after = [], []
        for kind, name in marks:
            ledger.mark()
            handle(kind, name)
            during.append(ledger.peak)
            after.append(ledger.total)
        return Overlay(start=start, during=tuple(during), after=tuple(after))

    def end_of_backward(self) -> None:
        """``independent_gradient_partition_epilogue``: leftovers are released."""
        while self.backward_stack:
            module, _ = self.backward_stack.popitem()
            for index in {*self.modules.of.get(module, ()), *self.recompute.pop(module, set())}:
                self.active[index].discard(module)
                if not self.persistent[index]:
                    self._release(index)

    def release_all(self) -> None:
        """``step``: all are released before the optimizer runs."""
        for index in range(len(self.status)):
            self.active[index].clear()
            if self.group[index] is not None:
                self._arrive(index)
            self._release(index)

    def gather_persistent(self) -> None:
        """``_post_step``: small parameters are gathered for good, each into a buffer that then is the
        parameter (``_allgather_params_coalesced``, partition_parameters.py:2046)."""
        for index, stays in enumerate(self.persistent):
            if stays and self.status[index] == ABSENT:
                self._gather([index])
                self._arrive(index)


@frozen_dataclass
class Gathers:
    """Bytes of gathered parameters over one step: gradients, buckets and states do not move them."""

    forward: Overlay
    base: Overlay | None
    backward: Overlay
    after: int  # at the end of backward
    peak_of_releasing: int  # at most while all are released before the optimizer runs
    peak_of_regathering: int  # at most while small parameters are gathered for good after the step


def settings_of_gathers(settings: DeepSpeedSettings) -> DeepSpeedSettings:
    """The settings with all that gathering parameters does not depend on made equal."""
    zero = settings.zero
    return DeepSpeedSettings(
        precision=settings.precision,
        torch_autocast=settings.torch_autocast,
        gradient_accumulation=min(settings.gradient_accumulation, 2),
        zero=ZeroSettings(
            stage=zero.stage,
            prefetch_bucket_size=zero.prefetch_bucket_size,
            param_persistence_threshold=zero.param_persistence_threshold,
            model_persistence_threshold=zero.model_persistence_threshold,
            max_live_parameters=zero.max_live_parameters,
            max_reuse_distance=zero.max_reuse_distance,
            offload_param=zero.offload_param,
        ),
    )


@lru_cache(maxsize=512)
def gathers(model: RankModel, settings: DeepSpeedSettings, ranks: int, *, recorded: bool) -> Gathers:
    """What is gathered over one step; ``settings`` from :func:`settings_of_gathers`, ``recorded``: over the
    first, in which the order of modules is recorded."""
    ledger = Ledger()
    parameters = Parameters(model, settings, ranks, ledger)
    parameters.recording = recorded
    peak_of_regathering = 0
    if not recorded:
        parameters.reach_steady_state(model, settings.gradient_accumulation > 1)
        ledger.mark()
        parameters.gather_persistent()
        peak_of_regathering = ledger.peak
    parameters.start_of_forward()
    forward = parameters.overlay(model.trace.marks_forward, parameters.in_forward)
    base = parameters.pass_of_base(model)
    backward = parameters.overlay(model.trace.marks_backward, parameters.in_backward)
    parameters.end_of_backward()
    after = ledger.total
    ledger.mark()
    parameters.release_all()
    return Gathers(
        forward=forward,
        base=base,
        backward=backward,
        after=after,
        peak_of_releasing=ledger.peak,
        peak_of_regathering=peak_of_regathering,
    )


_NORM_ELEMENTS = 250_000_000  # _constant_buffered_norm2


class Gradients:
    """One rank's gradients, and the optimizer's step. Components go into the ledger given."""

    def __init__(self, model: RankModel, settings: DeepSpeedSettings, ranks: int, ledger: Ledger) -> None:
        self.model = model
        self.settings = settings
        self.zero = settings.zero
        self.ranks = ranks
        self.ledger = ledger
        self.element_bytes = ElementBytes.of(settings)
        self.modules = modules_of(model)
        parameter_bytes = model.element_bytes(self.element_bytes.parameter)
        self.trained_bytes = max(
            (w for w, t in zip(parameter_bytes, self.modules.trainable, strict=True) if t),
            default=self.element_bytes.parameter,
        )
        self.offload_optimizer = self.zero.offload_optimizer.device != "none"
        self.reduced_bytes = model.reduced_element_bytes(settings)
        self.buckets: dict[int, list[int]] = {
            comm_bytes: [] for comm_bytes in model.bucket_element_bytes(settings)
        }
        self.elements = dict.fromkeys(self.buckets, 0)
        self.unbuffered_bytes = dict.fromkeys(self.buckets, 0)  # bytes of gradients that are in no buffer

    def gradient_ready(self, index: int, boundary: bool) -> None:
        """``reduce_independent_p_g_buckets_and_remove_grads`` and ``__add_grad_to_ipg_bucket``."""
        size, comm_bytes = self.modules.sizes[index], self.reduced_bytes[index]
        if self.elements[comm_bytes] + size > self.zero.reduce_bucket_size and self.elements[comm_bytes]:
            self._reduce(comm_bytes, boundary)
        fits = (
            self.zero.contiguous_gradients
            and self.elements[comm_bytes] + size <= self.zero.reduce_bucket_size
        )
        if not fits:
            self.ledger.adopt(Component.GRADIENTS, size * self.trained_bytes)
            self.unbuffered_bytes[comm_bytes] += size * self.trained_bytes
        self.buckets[comm_bytes].append(index)
        self.elements[comm_bytes] += size

    def flush(self, boundary: bool) -> None:
        """What is left in the buckets at the end of backward."""
        for comm_bytes in self.buckets:
            self._reduce(comm_bytes, boundary)

    def _reduce(self, comm_bytes: int, boundary: bool) -> None:
        """``__reduce_and_partition_ipg_grads``: reduce-scatter, then into the partition."""
        bucket = self.buckets[comm_bytes]
        if not bucket:
            return
        sizes = [self.modules.sizes[i] for i in bucket]
        shares = [-(-size // self.ranks) for size in sizes]
        converted = interleaved = 0
        is_unbuffered = not self.zero.contiguous_gradients or sum(sizes) > self.zero.reduce_bucket_size
        if is_unbuffered and comm_bytes != self.trained_bytes:  # the bucket's precision is this already
            converted = sum(sizes) * comm_bytes
        if len(sizes) > 1 or sizes[0] % self.ranks:  # reduce_scatter_coalesced interleaves
            interleaved = sum(shares) * self.ranks * comm_bytes
        self.ledger.add(Component.REDUCE_COPY, converted + interleaved)
        if self.element_bytes.accumulation != comm_bytes:
            kept_bytes = sum(shares) * self.element_bytes.accumulation
            self.ledger.add(Component.REDUCE_COPY, kept_bytes)
        else:  # the shares are views
            kept_bytes = interleaved or converted
        self.ledger.set(
            Component.REDUCE_COPY, kept_bytes
        )  # __avg_scatter_grads has returned (stage3.py:1678)
        if self.offload_optimizer and boundary:
            # .to(device); of it the norm, piece by piece, then the fp32 copy
            share = max(shares)
            norm = FP64 * min(share, _NORM_ELEMENTS)
            self.ledger.add(Component.OFFLOAD_COPY, share * self.element_bytes.accumulation)
            self.ledger.burst(Component.OFFLOAD_COPY, max(norm, share * self.element_bytes.master))
            self.ledger.add(Component.OFFLOAD_COPY, -share * self.element_bytes.accumulation)
        self.ledger.set(Component.REDUCE_COPY, 0)
        self.ledger.add(Component.GRADIENTS, -self.unbuffered_bytes[comm_bytes])
        self.unbuffered_bytes[comm_bytes] = self.elements[comm_bytes] = 0
        bucket.clear()

    def step(self) -> None:
        """``step``: one sub-group at a time."""
        trainable = [s for s, t in zip(self.modules.sizes, self.modules.trainable, strict=True) if t]
        shares = [-(-size // self.ranks) for size in trainable]
        if self.offload_optimizer:
            for elements in on_device(self.model, self.zero, self.ranks):  # torch's AdamW (stage3.py:317)
                self.ledger.burst(Component.OPTIMIZER_TEMPORARIES, elements * self.element_bytes.master)
        else:
            self.ledger.burst(Component.GRADIENT_NORM, FP64 * max(shares, default=0))
            for elements in sub_groups(self.model, self.zero, self.ranks):
                flat = elements * self.element_bytes.accumulation if len(trainable) > 1 else 0
                self.ledger.add(Component.FLAT_GRADIENT, flat)
                if self.element_bytes.accumulation != self.element_bytes.master:
                    self.ledger.add(Component.FP32_GRADIENT, elements * self.element_bytes.master)
                    self.ledger.add(Component.FLAT_GRADIENT, -flat)
                    flat = 0
                master = elements * self.element_bytes.master
                temporaries = step_temporary_bytes(self.settings, [elements], master)
                self.ledger.burst(Component.OPTIMIZER_TEMPORARIES, temporaries)
                self.ledger.add(Component.FLAT_GRADIENT, -flat)
                self.ledger.set(Component.FP32_GRADIENT, 0)
