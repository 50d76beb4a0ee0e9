"""Adapters that drop some of their input: what that adds to a trace without dropout, instant by instant.

peft 0.21 (tuners/lora/layer.py, ``Linear.forward``) computes ``lora_B(lora_A(dropout(x)))``, with ``x`` in
the dtype of ``lora_A``. Without dropout ``lora_A`` keeps ``x`` for the gradient of its weight, one tensor for
all modules that read the same; with it each keeps what is left of ``x``, and autograd a mask of one byte an
element (``aten::native_dropout``); ``x`` itself goes at the end of its module's forward pass unless another
operator keeps it. A trace marks every module, so all of this has its instant in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache

from zerokit.domain.activations import ActivationTrace, Mark, Polynomial, Run, evaluate
from zerokit.domain.profile import ModelProfile, Parameter, Variant
from zerokit.values import frozen_dataclass, replace

_ZERO: Polynomial = (0, 0, 0, 0, 0, 0)
_DROPOUT, _A, _WEIGHT = ".lora_dropout.default", ".lora_A.default", ".lora_A.default.weight"
_SAMPLE = (4, 1024)
"""A batch and length at which sizes are told apart."""


@frozen_dataclass
class _Input:
    """What one adapted module reads.

    Attributes:
        left: bytes of what dropout leaves of it, in the adapters' dtype; ``mask``: of the mask.
        needs_grad: whether backward goes on through it, and the mask is kept.
        sole: bytes of the input where for backward adapters alone keep it, and this module's last; else 0.
        is_cast: whether the input is a copy of the module's own.
        recomputed: whether forward keeps nothing, and backward runs it again.
    """

    left: Polynomial
    mask: Polynomial
    needs_grad: bool = False
    sole: Polynomial = _ZERO
    is_cast: bool = False
    recomputed: bool = False


@lru_cache(maxsize=256)
def with_dropout(profile: ModelProfile, variant: Variant, trace: ActivationTrace) -> ActivationTrace:
    """The trace of adapters without dropout as one with it. ``variant``: that of the trace."""
    inputs = _inputs(profile, variant, trace)
    segments: dict[tuple[Mark, ...], int] = {}
    rewritten: dict[tuple[int, bool, int], int] = {}

    again = _segments_of(trace.backward) if trace.gradients else {}

    def changed(runs: Iterable[Run], is_forward: bool) -> tuple[Run, ...]:
        changed_runs: list[Run] = []
        for run in runs:
            for position, layer in enumerate(run.layers()):
                at = (run.stack, layer if run.stack else 0)
                known = inputs.get(at, {})
                key = (run.segment, is_forward, id(known))
                if key not in rewritten:
                    with_modules = [trace.segments[number] for number in again.get(at, ())]
                    marks = tuple(_Marks(known, is_forward, with_modules).of(trace.segments[run.segment]))
                    rewritten[key] = segments.setdefault(marks, len(segments))
                if position and changed_runs[-1].segment == rewritten[key]:
                    changed_runs[-1] = replace(changed_runs[-1], count=changed_runs[-1].count + 1)
                else:
                    jump = 0 if position else run.jump
                    changed_runs.append(replace(run, segment=rewritten[key], start=layer, count=1, jump=jump))
        return tuple(changed_runs)

    forward = changed(trace.forward, True)
    backward, gradients = changed(trace.backward, False), changed(trace.gradients, False)
    return replace(trace, segments=tuple(segments), forward=forward, backward=backward, gradients=gradients)


def _segments_of(runs: Iterable[Run]) -> dict[tuple[str, int], tuple[int, ...]]:
    """(stack, layer) -> its segments; of what is in no stack ("", 0) -> all of them."""
    found: dict[tuple[str, int], tuple[int, ...]] = {}
    for run in runs:
        for layer in run.layers() if run.stack else (0,):
            found[run.stack, layer] = (*found.get((run.stack, layer), ()), run.segment)
    return found


def _inputs(
    profile: ModelProfile, variant: Variant, trace: ActivationTrace
) -> Mapping[tuple[str, int], Mapping[str, _Input]]:
    """What each adapted module reads, by (stack, layer) and its name in the marks there; equal layers share
    one mapping."""
    matrices = {p.name: p for p in profile.parameters_for(variant) if p.name.endswith(_WEIGHT)}
    element_bytes = 4 if variant.precision == "32" else 2
    forward, backward = _segments_of(trace.forward), _segments_of(trace.backward)
    shared: dict[tuple[tuple[int, ...], tuple[int, ...]], Mapping[str, _Input]] = {}
    found: dict[tuple[str, int], Mapping[str, _Input]] = {}
    for (stack, layer), numbers in forward.items():
        behind = backward.get((stack, layer), ())
        if (numbers, behind) not in shared:
            prefix = f"{stack}.{layer}" if stack else ""
            inputs: dict[str, _Input] = {}
            for number in numbers:
                inputs |= _read(trace.segments[number], matrices, prefix, element_bytes)
            for number in behind:
                inputs |= _after_backward(trace.segments[number], inputs)
            shared[numbers, behind] = inputs
        found[stack, layer] = shared[numbers, behind]
    return found


def _read(
    marks: tuple[Mark, ...], matrices: Mapping[str, Parameter], prefix: str, element_bytes: int
) -> Iterator[tuple[str, _Input]]:
    """What forward shows; ``element_bytes``: of the training dtype."""
    levels = {(mark.kind, mark.name): mark.level for mark in marks}
    for mark in marks:
        module = mark.name.removesuffix(_A)
        matrix = matrices.get(mark.name.replace("{0}", prefix) + ".weight")
        if mark.kind != "fwd_post" or module == mark.name or matrix is None:
            continue
        rank, width = matrix.shape
        left = _scaled(_sum(mark.level, levels["fwd_pre", mark.name], -1), width / rank)
        before, base = levels["fwd_pre", module + _DROPOUT], levels["fwd_post", module + ".base_layer"]
        yield (
            module,
            _Input(
                left=left,
                mask=_scaled(left, 1 / (matrix.element_bytes or element_bytes)),
                is_cast=_size(_sum(before, base, -1)) > _size(left) / 2,
            ),
        )


def _after_backward(marks: tuple[Mark, ...], inputs: Mapping[str, _Input]) -> Iterator[tuple[str, _Input]]:
    """What backward shows beside."""
    kinds = {(mark.kind, mark.name) for mark in marks}
    level = _ZERO
    for mark in marks:
        module = mark.name.removesuffix(_WEIGHT)
        if mark.kind in ("grad", "kept") and module != mark.name and module in inputs:
            one = inputs[module]
            needs_grad = ("bwd_post", module + _A) in kinds
            change = _size(_sum(mark.level, level, -1)) - needs_grad * _size(one.left)
            yield module, replace(
                one, needs_grad=needs_grad, recomputed=("fwd_post", module + _DROPOUT) in kinds,
                sole=one.left if change < -_size(one.left) / 2 else _ZERO,
            )  # fmt: skip
        level = mark.after


class _Marks:
    """One segment, mark by mark; ``more``: what dropout holds more than at its start. ``again``: the segments
    of the same layer that mark modules too, where this one may mark gradients alone."""

    def __init__(
        self, inputs: Mapping[str, _Input], is_forward: bool, again: Iterable[tuple[Mark, ...]] = ()
    ) -> None:
        self.inputs = inputs
        self.is_forward = is_forward
        self.again = again
        self.more = _ZERO
        self.leaving: list[tuple[str, Polynomial]] = []  # (module after whose forward it goes, bytes)
        self.next = _ZERO  # goes on the way to the next mark

    def of(self, marks: tuple[Mark, ...]) -> Iterator[Mark]:
        """The marks with what dropout adds."""
        self.with_modules = any(mark.kind == "bwd_post" and mark.name.endswith(_DROPOUT) for mark in marks)
        recomputed = {} if self.is_forward or self.with_modules else self._recomputed()
        last = _ZERO
        for mark in marks:
            start = (_sum(last, self.more),) if self.next != _ZERO else ()
            self.more, self.next = _sum(self.more, self.next), _ZERO
            before = self.more
            if (mark.kind, mark.name) in recomputed:
                kept, peaks = recomputed[mark.kind, mark.name]
                self.more = _sum(before, kept)
                start = (*start, *(_sum(_sum(mark.level, self.more), peak) for peak in peaks))
            within = self._on_the_way(mark)
            level = after = self.more
            self._after(mark)
            if mark is marks[-1]:
                after = _sum(self.more, self.next)
            peaks = (*start, *(_sum(peak, before) for peak in mark.peaks))
            if within != _ZERO:
                peaks = (*peaks, *(_sum(peak, within) for peak in mark.peaks))
            yield replace(
                mark, peaks=peaks, level=_sum(mark.level, level), after=_sum(mark.after, after),
                sums=tuple(replace(one, level=_sum(one.level, before)) for one in mark.sums),
            )  # fmt: skip
            last = mark.after

    def _recomputed(self) -> Mapping[tuple[str, str], tuple[Polynomial, tuple[Polynomial, ...]]]:
        """Map from the mark of the first gradient after a part of forward that backward runs again: what is
        kept of it more then, and the peaks on the way, relative to that mark. The marks of modules show
        it."""
        found: dict[tuple[str, str], tuple[Polynomial, tuple[Polynomial, ...]]] = {}
        for segment in self.again:
            kept, peaks = _ZERO, list[Polynomial]()
            for mark in _Marks(self.inputs, is_forward=False).of(segment):
                one = self.inputs.get(mark.name.removesuffix(_DROPOUT))
                if peaks or mark.kind == "fwd_pre":
                    peaks += mark.peaks
                if mark.kind == "fwd_post" and mark.name.endswith(_DROPOUT) and one is not None:
                    held = _sum(one.left, one.mask) if one.needs_grad else one.left
                    kept = _sum(_sum(kept, held), one.sole, -1)
                elif mark.kind in ("grad", "kept") and peaks:
                    relative = tuple(_sum(peak, mark.level, -1) for peak in peaks)
                    found[mark.kind, mark.name] = (kept, relative)
                    kept, peaks = _ZERO, []
        return found

    def _saves(self, one: _Input) -> bool:
        return not (self.is_forward and one.recomputed)

    def _on_the_way(self, mark: Mark) -> Polynomial:
        """Move on to the mark; the most that there is more on the way, where that is neither end."""
        if mark.kind in ("bwd_pre", "grad", "kept") and self.leaving:  # recomputing has stopped early
            for _, size in self.leaving:
                self.more = _sum(self.more, size, -1)
            self.leaving = []
        module = mark.name.removesuffix(_DROPOUT)
        one = self.inputs.get(module)
        if one is not None and module != mark.name:
            if mark.kind == "fwd_post":
                most = _sum(self.more, _sum(one.left, one.mask))
                self.more = most if one.needs_grad and self._saves(one) else _sum(self.more, one.left)
                if one.sole != _ZERO and self._saves(one):
                    self.leaving.append((self._holder(module, one), one.sole))
                return most
            if mark.kind == "bwd_post":  # the gradient of what is left, and that of the input
                most = _sum(self.more, one.left)
                self.more = _sum(self.more, one.mask, -1)
                return most
        one = self.inputs.get(mark.name)
        if one is not None and mark.kind == "fwd_post" and one.is_cast:
            self._leave(mark.name)
        one = self.inputs.get(mark.name.removesuffix(_WEIGHT))
        if one is not None and mark.kind in ("grad", "kept"):
            self.more = _sum(_sum(self.more, one.left, -1), one.sole)
            if one.needs_grad and not self.with_modules:
                self.next = _scaled(one.mask, -1)
        return _ZERO

    def _after(self, mark: Mark) -> None:
        """What goes between this mark and the next."""
        if mark.kind != "fwd_post":
            return
        one = self.inputs.get(mark.name.removesuffix(_A))
        if one is not None and mark.name.endswith(_A) and not self._saves(one):
            self.next = _sum(self.next, one.left, -1)
        here = [size for module, size in self.leaving if module == mark.name]
        self.leaving = [pair for pair in self.leaving if pair[0] != mark.name]
        for size in here:
            self.next = _sum(self.next, size, -1)

    def _leave(self, module: str) -> None:
        for _, size in (pair for pair in self.leaving if pair[0] == module):
            self.more = _sum(self.more, size, -1)
        self.leaving = [pair for pair in self.leaving if pair[0] != module]

    def _holder(self, module: str, one: _Input) -> str:
        """The module whose forward pass holds the input: this one, or that around it whose own input it is,
        which its first modules read."""
        around = module.rpartition(".")[0]
        beside = (other for name, other in self.inputs.items() if name.rpartition(".")[0] == around)
        return module if one.is_cast or not around or next(beside).left != one.left else around


def _sum(a: Polynomial, b: Polynomial, sign: int = 1) -> Polynomial:
    return tuple(x + sign * y for x, y in zip(a, b, strict=True))  # type: ignore[return-value]


def _scaled(a: Polynomial, factor: float) -> Polynomial:
    return tuple(x * factor for x in a)  # type: ignore[return-value]


def _size(a: Polynomial) -> float:
    return evaluate(a, *_SAMPLE)
