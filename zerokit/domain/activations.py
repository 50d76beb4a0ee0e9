"""Activations instant by instant: what a trace of the real model found, and its bytes at one size.

Sizes are polynomials in micro-batch ``b`` and sequence length ``s`` over the basis
(1, b, s, b·s, s², b·s²), in bytes: exact for a given model, attention kind, precision and
checkpointing mode, because every tensor's shape is a product of those and constants.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from functools import cached_property, lru_cache

from zerokit.domain.hardware import Processors, partial_column_sums
from zerokit.values import frozen_dataclass, replace

Polynomial = tuple[float, float, float, float, float, float]
"""Bytes as coefficients of (1, b, s, b·s, s², b·s²)."""


def evaluate(polynomial: Sequence[float], micro_batch: int, seq_len: int) -> float:
    """The polynomial's value in bytes."""
    one, b, s, bs, ss, bss = polynomial
    return (
        one + b * micro_batch + s * seq_len + seq_len * micro_batch * bs
        + seq_len * seq_len * (ss + bss * micro_batch)
    )  # fmt: skip


@frozen_dataclass
class ColumnSum:
    """A sum over a matrix's rows, whose CUDA kernel takes memory that is no polynomial: the gradient of a
    bias, or of a norm's weight.

    Attributes:
        level: live bytes beside that memory, the result included, relative to the start of the segment.
        rows, columns: of the matrix; ``element_bytes``: of one of its values.
    """

    level: Polynomial
    rows: Polynomial
    columns: int
    element_bytes: int


@frozen_dataclass
class Mark:
    """An event of the trace, with what was live on the way to it.

    Attributes:
        kind: ``fwd_pre``, ``fwd_post``, ``bwd_pre``, ``bwd_post`` (a module), ``grad`` (a parameter's
            gradient is complete and handed over), ``kept`` (it is complete, and handed over when the leaf
            module around it is done), ``host`` (an activation was copied to the host) or ``end``
            (of the segment).
        name: the module or parameter; ``{n}`` stands for the path of the layer n after this one.
        peaks: live bytes at the instants since the mark before that can be the largest, relative
            to the start of the segment.
        level: live bytes at the mark, the gradient included; relative likewise.
        after: live bytes after the mark, a gradient that is handed over left out.
        sums: over rows, since the mark before.
    """

    kind: str
    name: str
    peaks: tuple[Polynomial, ...]
    level: Polynomial
    after: Polynomial
    sums: tuple[ColumnSum, ...] = ()


@frozen_dataclass
class Run:
    """``count`` segments alike, for the layers ``start``, ``start + step``, … of ``stack``. ``jump`` like
    segments were left out before it: only what they leave alive counts."""

    segment: int
    stack: str = ""
    start: int = 0
    count: int = 1
    step: int = 1
    jump: int = 0

    def layers(self) -> Iterator[int]:
        """The layer indexes in order of execution."""
        return iter(range(self.start, self.start + self.step * self.count, self.step))


@frozen_dataclass(slots=False)
class ActivationTrace:
    """One variant's forward and backward, as runs of segments.

    Of inference there is no backward. In ``decode`` the sequence length is that of the key-value cache
    after the step, and bytes are those above the cache before it; ``cache`` has the marks of ``forward``
    with nothing counted but the cache that the pass leaves behind. Where activations go to the host, it is
    their copies there, with a mark ``host`` after each.

    ``gradients`` is the backward pass below ZeRO-3, one mark a gradient: the autograd functions that ZeRO-3
    puts around every module (runtime/zero/parameter_offload.py:501) keep gradients of inputs longer. Where
    it is empty, the marks of ``backward`` at gradients stand for it.

    It holds for sequences of ``min_seq_len`` to ``max_seq_len`` tokens; where the model runs more operators
    the longer the sequence is, these are one length. ``of_one_sequence``: it holds for a micro-batch of one
    alone, which runs other operators than a larger one.
    """

    segments: tuple[tuple[Mark, ...], ...]
    forward: tuple[Run, ...]
    backward: tuple[Run, ...]
    max_seq_len: int | None = None  # beyond it (a sliding window) another trace holds
    min_seq_len: int = 0
    of_one_sequence: bool = False
    cache: tuple[Run, ...] = ()
    gradients: tuple[Run, ...] = ()

    @cached_property
    def marks_forward(self) -> tuple[tuple[str, str], ...]:
        """(kind, absolute name) of every mark of the forward pass."""
        return tuple(self._names(self.forward))

    @cached_property
    def marks_backward(self) -> tuple[tuple[str, str], ...]:
        """(kind, absolute name) of every mark of the backward pass."""
        return tuple(self._names(self.backward))

    @cached_property
    def marks_gradients(self) -> tuple[tuple[str, str], ...]:
        """(kind, absolute name) of every mark of the backward pass below ZeRO-3."""
        if self.gradients:
            return tuple(self._names(self.gradients))
        return tuple(self.marks_backward[i] for i in self.gradient_positions)

    @cached_property
    def gradient_positions(self) -> tuple[int, ...]:
        """Backward marks at which a gradient is complete, and the last mark."""
        marks = self.marks_backward
        last = len(marks) - 1
        return tuple(i for i, (kind, _) in enumerate(marks) if kind == "grad" or i == last)

    def events(self, with_gradients: bool) -> ActivationTrace:
        """The same marks without bytes: one and the same trace for all whose events are the same.
        ``with_gradients``: else without the backward pass below ZeRO-3."""
        if with_gradients not in self._events:
            passes = (self.forward, self.backward, self.gradients if with_gradients else ())
            forward, backward, gradients = (tuple(self._runs_by_names(runs)) for runs in passes)
            self._events[with_gradients] = _trace_of_events(forward, backward, gradients)
        return self._events[with_gradients]

    @cached_property
    def _events(self) -> dict[bool, ActivationTrace]:
        return {}

    def _runs_by_names(self, runs: Iterable[Run]) -> Iterator[_NamedRun]:
        for run in runs:
            marks = tuple((mark.kind, mark.name) for mark in self.segments[run.segment])
            yield marks, replace(run, segment=0, jump=0)

    def _names(self, runs: Iterable[Run]) -> Iterator[tuple[str, str]]:
        for run in runs:
            marks = [(mark.kind, *_parts(mark.name)) for mark in self.segments[run.segment]]
            for layer in run.layers():
                for kind, name, offset in marks:
                    yield kind, name if offset is None else f"{run.stack}.{layer + offset}{name}"

    def timeline(self, micro_batch: int, seq_len: int, processors: Processors | None = None) -> Timeline:
        """Live activation bytes at every mark for this micro-batch and sequence length. ``processors``: of
        the GPU, on which the memory of sums over rows depends; None: it is left out."""
        return _timeline(self, micro_batch, seq_len, processors)

    def cached(self, micro_batch: int, seq_len: int) -> Pass:
        """Bytes of key-value cache made so far, at every mark of the forward pass."""
        return _cached(self, micro_batch, seq_len)

    def shortened(self, keep: int) -> ActivationTrace:
        """The same with the inside of long runs of layers left out, ``keep`` layers left at either end. What
        happens at a time then still has its right level, for far fewer marks."""
        if keep not in self._shortened:
            self._shortened[keep] = ActivationTrace(
                segments=self.segments,
                forward=tuple(_shorten(self.forward, keep)),
                backward=tuple(_shorten(self.backward, keep)),
                max_seq_len=self.max_seq_len,
                gradients=tuple(_shorten(self.gradients, keep)),
            )
        return self._shortened[keep]

    @cached_property
    def _shortened(self) -> dict[int, ActivationTrace]:
        return {}

    def __hash__(self) -> int:
        return id(self)

    def __eq__(self, other: object) -> bool:
        return self is other


_NamedRun = tuple[tuple[tuple[str, str], ...], Run]
"""(kind, name) of each mark of a run's segment, and the run without what only moves its bytes."""
_NO_BYTES: Polynomial = (0, 0, 0, 0, 0, 0)


@lru_cache(maxsize=256)
def _trace_of_events(
    forward: tuple[_NamedRun, ...], backward: tuple[_NamedRun, ...], gradients: tuple[_NamedRun, ...]
) -> ActivationTrace:
    numbers: dict[tuple[tuple[str, str], ...], int] = {}

    def numbered(runs: Iterable[_NamedRun]) -> tuple[Run, ...]:
        return tuple(replace(run, segment=numbers.setdefault(marks, len(numbers))) for marks, run in runs)

    passes = (numbered(forward), numbered(backward), numbered(gradients))
    segments = tuple(
        tuple(
            Mark(kind=kind, name=name, peaks=(_NO_BYTES,), level=_NO_BYTES, after=_NO_BYTES)
            for kind, name in marks
        )
        for marks in numbers
    )
    return ActivationTrace(segments=segments, forward=passes[0], backward=passes[1], gradients=passes[2])


def _shorten(runs: Iterable[Run], keep: int) -> Iterator[Run]:
    for run in runs:
        if not run.stack or run.count <= 2 * keep:
            yield run
            continue
        yield replace(run, count=keep)
        tail = run.start + run.step * (run.count - keep)
        yield replace(run, start=tail, count=keep, jump=run.count - 2 * keep)


def _parts(name: str) -> tuple[str, int | None]:
    """A mark's name, or what follows its layer in it, whose number the offset is added to."""
    if not name.startswith("{"):
        return name, None
    offset, _, rest = name[1:].partition("}")
    return rest, int(offset)


@frozen_dataclass
class Pass:
    """Live activation bytes over one pass: one entry a mark.

    ``peaks[i]`` is the largest since mark i−1, ``levels[i]`` at mark i, ``afters[i]`` after it. ``in_flight``
    of each are other micro-batches', gone when the last one of an optimizer step ends.
    """

    peaks: tuple[float, ...]
    levels: tuple[float, ...]
    afters: tuple[float, ...]
    in_flight: float = 0
    highest: dict[tuple[int, int], float] = field(default_factory=dict, init=False, repr=False, compare=False)
    """Of ``peaks`` from one mark to before another, where that was asked for."""


@frozen_dataclass
class Timeline:
    """Activations of one micro-step: bytes above what was there before the forward pass."""

    forward: Pass
    backward: Pass
    forward_peak: float
    gradients: Pass  # the backward pass below ZeRO-3, one entry a gradient
    reference: Pass | None = None
    """A pass through a reference model after ``forward``, what that left included; it has the same marks."""
    evaluation: Pass | None = None
    """A pass without a graph between steps; it has the marks of ``forward``."""
    generation: Mapping[str, float] = field(default_factory=dict)
    """What is live at the most while sequences are generated between steps, beside the states, by the key of
    a component; empty: none are."""

    def __hash__(self) -> int:  # of the tuples it would cost more than what is looked up by it
        return id(self)

    @property
    def after_forward(self) -> float:
        """Live bytes between forward and backward."""
        return self.forward.afters[-1]

    def raised(self, extra: float, in_flight: float = 0) -> Timeline:
        """The same with so many bytes more at every instant, ``in_flight`` of them other micro-batches'."""
        return _raised(self, extra, in_flight)


@lru_cache(maxsize=512)
def _raised(timeline: Timeline, extra: float, in_flight: float) -> Timeline:
    def raised(one: Pass) -> Pass:
        return Pass(
            peaks=tuple(v + extra for v in one.peaks),
            levels=tuple(v + extra for v in one.levels),
            afters=tuple(v + extra for v in one.afters),
            in_flight=in_flight,
        )

    return Timeline(
        forward=raised(timeline.forward),
        backward=raised(timeline.backward),
        forward_peak=timeline.forward_peak + extra,
        gradients=raised(timeline.gradients),
        reference=None if timeline.reference is None else raised(timeline.reference),
    )


def _run_pass(
    trace: ActivationTrace,
    runs: Iterable[Run],
    micro_batch: int,
    seq_len: int,
    level: float,
    processors: Processors | None = None,
) -> Pass:
    size = _Sizer(micro_batch, seq_len)
    values: dict[int, tuple[list[float], list[float], list[float]]] = {}
    peaks: list[float] = []
    levels: list[float] = []
    afters: list[float] = []
    for run in runs:
        if run.segment not in values:
            marks = trace.segments[run.segment]
            values[run.segment] = (
                [_peak(mark, size, processors) for mark in marks],
                [size.of(mark.level) for mark in marks],
                [size.of(mark.after) for mark in marks],
            )
        segment_peaks, segment_levels, segment_afters = values[run.segment]
        level += run.jump * segment_afters[-1]
        for _ in range(run.count):
            peaks += [level + value for value in segment_peaks]
            levels += [level + value for value in segment_levels]
            afters += [level + value for value in segment_afters]
            level += segment_afters[-1]
    return Pass(peaks=tuple(peaks), levels=tuple(levels), afters=tuple(afters))


def _peak(mark: Mark, size: _Sizer, processors: Processors | None) -> float:
    peak = max(map(size.of, mark.peaks))
    if processors is None:
        return peak
    for one in mark.sums:
        rows = round(size.of(one.rows))
        taken = partial_column_sums(one.columns, rows, one.element_bytes, processors)
        peak = max(peak, size.of(one.level) + taken)
    return peak


class _Sizer:
    """Polynomials at one (micro-batch, sequence length); many marks share theirs."""

    def __init__(self, micro_batch: int, seq_len: int) -> None:
        self.point = (micro_batch, seq_len)
        self.known: dict[Polynomial, float] = {}

    def of(self, polynomial: Polynomial) -> float:
        value = self.known.get(polynomial)
        if value is None:
            value = self.known[polynomial] = evaluate(polynomial, *self.point)
        return value


@lru_cache(maxsize=512)
def _timeline(
    trace: ActivationTrace, micro_batch: int, seq_len: int, processors: Processors | None
) -> Timeline:
    forward = _run_pass(trace, trace.forward, micro_batch, seq_len, 0.0, processors)
    start = forward.afters[-1]
    backward = _run_pass(trace, trace.backward, micro_batch, seq_len, start, processors)
    if trace.gradients:
        gradients = _run_pass(trace, trace.gradients, micro_batch, seq_len, start, processors)
    else:
        gradients = _merged(backward, trace.gradient_positions)
    return Timeline(
        forward=forward,
        backward=backward,
        forward_peak=max(forward.peaks),
        gradients=gradients,
    )


@lru_cache(maxsize=512)
def _cached(trace: ActivationTrace, micro_batch: int, seq_len: int) -> Pass:
    return _run_pass(trace, trace.cache, micro_batch, seq_len, 0.0)


def _merged(backward: Pass, positions: Sequence[int]) -> Pass:
    """Entries at the positions given, each with the highest peak since the one before."""
    peaks, levels, afters = [], [], []
    start = 0
    for position in positions:
        peaks.append(max(backward.peaks[start : position + 1]))
        levels.append(backward.levels[position])
        afters.append(backward.afters[position])
        start = position + 1
    return Pass(peaks=tuple(peaks), levels=tuple(levels), afters=tuple(afters))
