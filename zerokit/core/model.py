"""A model as the memory model sees it: parameters in order, and activations instant by instant.

A :class:`ModelProfile` comes from a trace of the real model (``zerokit.trace``) or from the
catalogue, where such traces are stored. It holds no tensors and needs no torch.

Sizes are polynomials in micro-batch ``b`` and sequence length ``s`` over the basis
(1, b, s, b·s, s², b·s²), in bytes: exact for a given model, attention kind, precision and
checkpointing mode, because every tensor's shape is a product of those and constants.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from math import prod
from typing import Any

Polynomial = tuple[float, float, float, float, float, float]
"""Bytes as coefficients of (1, b, s, b·s, s², b·s²)."""

FORMAT = "zerokit.profile/2"
"""Raised with the layout of the file, and with whatever makes a trace of the same model another."""


def evaluate(polynomial: Sequence[float], micro_batch: int, seq_len: int) -> float:
    """The polynomial's value in bytes."""
    one, b, s, bs, ss, bss = polynomial
    return (
        one + b * micro_batch + s * seq_len + seq_len * micro_batch * bs
        + seq_len * seq_len * (ss + bss * micro_batch)
    )  # fmt: skip


def variant_key(
    *,
    attention: str,
    precision: str,
    checkpointing: str,
    padding: bool = False,
    lora: tuple[int, tuple[str, ...]] | None = None,
    tensor_parallel: int = 1,
    zero3_linear: bool = False,
    quantized: bool = False,
    phase: str = "train",
    quantization: str = "none",
    autocast: bool = False,
) -> str:
    """The name of what changes a model's activations apart from batch and sequence.

    ``precision`` is ``16`` or ``32``; ``checkpointing`` ``none``, ``full``, ``reentrant`` or ``selective``;
    ``lora`` (rank, target modules); ``zero3_linear``: ZeRO-3's linear layers, which keep the inputs of
    frozen layers too; ``quantized``: linear layers in NF4 (QLoRA); ``phase``: of inference ``prefill`` or
    ``decode``, with its ``quantization`` (``int8``, ``int4``); ``autocast``: weights in fp32 under
    ``torch.autocast``. FlashAttention-2 allocates as the flash kernel of SDPA does.
    """
    attention = "sdpa" if attention == "flash_attention_2" else attention
    parts = [attention, precision, checkpointing]
    if padding:
        parts.append("padding")
    if lora:
        parts.append(f"lora{lora[0]}:{','.join(sorted(lora[1]))}")
    if tensor_parallel > 1:
        parts.append(f"tp{tensor_parallel}")
    if zero3_linear:
        parts.append("zero3")
    if quantized:
        parts.append("nf4")
    if autocast:
        parts.append("autocast")
    if phase != "train":
        parts.append(phase)
    if quantization != "none":
        parts.append(quantization)
    return "/".join(parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """One parameter tensor of the full model.

    ``element_bytes``: where its dtype is another than the training dtype; ``stored_bytes``: what it takes
    with its block constants where it is quantised; ``communication_bytes``: of an element in which its
    gradient travels, where DeepSpeed's ``torch_autocast`` decides that. 0: none of these.
    """

    name: str
    shape: tuple[int, ...]
    trainable: bool = True
    stored_bytes: int = 0
    element_bytes: int = 0
    communication_bytes: int = 0

    @property
    def numel(self) -> int:
        """Elements."""
        return prod(self.shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """An event of the trace, with what was live on the way to it.

    Attributes:
        kind: ``fwd_pre``, ``fwd_post``, ``bwd_pre``, ``bwd_post`` (a module), ``grad`` (a parameter's
            gradient is complete) or ``end`` (of the segment).
        name: the module or parameter; ``{n}`` stands for the path of the layer n after this one.
        peaks: live bytes at the instants since the mark before that can be the largest, relative
            to the start of the segment.
        level: live bytes at the mark, the gradient included; relative likewise.
        after: live bytes after the mark, a gradient that is handed over left out.
    """

    kind: str
    name: str
    peaks: tuple[Polynomial, ...]
    level: Polynomial
    after: Polynomial


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """``count`` segments alike, for the layers ``start``, ``start + step``, … of ``stack``.

    ``jump`` like segments were left out before it: only what they leave alive counts.
    """

    segment: int
    stack: str = ""
    start: int = 0
    count: int = 1
    step: int = 1
    jump: int = 0

    def layers(self) -> Iterator[int]:
        """The layer indexes in order of execution."""
        return iter(range(self.start, self.start + self.step * self.count, self.step))


@dataclass(frozen=True, kw_only=True)
class ActivationTrace:
    """One variant's forward and backward, as runs of segments.

    Of inference there is no backward. In ``decode`` the sequence length is that of the key-value cache
    after the step, and bytes are those above the cache before it; ``cache`` has the marks of ``forward``
    with nothing counted but the cache that the pass leaves behind.

    ``gradients`` is the backward pass below ZeRO-3, one mark a gradient: the autograd functions that ZeRO-3
    puts around every module (runtime/zero/parameter_offload.py:501) keep gradients of inputs longer. Where
    it is empty, the marks of ``backward`` at gradients stand for it.
    """

    segments: tuple[tuple[Mark, ...], ...]
    forward: tuple[Run, ...]
    backward: tuple[Run, ...]
    max_seq_len: int | None = None  # beyond it (a sliding window) another trace holds
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

    def _names(self, runs: Iterable[Run]) -> Iterator[tuple[str, str]]:
        for run in runs:
            for layer in run.layers():
                for mark in self.segments[run.segment]:
                    yield mark.kind, _absolute(mark.name, run.stack, layer)

    def timeline(self, micro_batch: int, seq_len: int) -> Timeline:
        """Live activation bytes at every mark for this micro-batch and sequence length."""
        return _timeline(self, micro_batch, seq_len)

    def cached(self, micro_batch: int, seq_len: int) -> Pass:
        """Bytes of key-value cache made so far, at every mark of the forward pass."""
        return _cached(self, micro_batch, seq_len)

    def shortened(self, keep: int) -> ActivationTrace:
        """The same with the inside of long runs of layers left out, ``keep`` layers left at either end.

        What happens at a time then still has its right level, for far fewer marks.
        """
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


def _shorten(runs: Iterable[Run], keep: int) -> Iterator[Run]:
    for run in runs:
        if not run.stack or run.count <= 2 * keep:
            yield run
            continue
        yield replace(run, count=keep)
        tail = run.start + run.step * (run.count - keep)
        yield replace(run, start=tail, count=keep, jump=run.count - 2 * keep)


def _absolute(name: str, stack: str, layer: int) -> str:
    if not name.startswith("{"):
        return name
    offset, _, rest = name[1:].partition("}")
    return f"{stack}.{layer + int(offset)}{rest}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """Live activation bytes over one pass: one entry a mark.

    ``peaks[i]`` is the largest since mark i−1, ``levels[i]`` at mark i, ``afters[i]`` after it.
    """

    peaks: tuple[float, ...]
    levels: tuple[float, ...]
    afters: tuple[float, ...]
    highest: dict[tuple[int, int], float] = field(default_factory=dict, init=False, repr=False, compare=False)
    """Of ``peaks`` from one mark to before another, where that was asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """Activations of one micro-step: bytes above what was there before the forward pass."""

    forward: Pass
    backward: Pass
    forward_peak: float
    gradients: Pass  # the backward pass below ZeRO-3, one entry a gradient

    def __hash__(self) -> int:  # of the tuples it would cost more than what is looked up by it
        return id(self)

    @property
    def after_forward(self) -> float:
        """Live bytes between forward and backward."""
        return self.forward.afters[-1]

    def raised(self, extra: float) -> Timeline:
        """The same with so many bytes more at every instant."""
        return _raised(self, extra)


@lru_cache(maxsize=512)
def _raised(timeline: Timeline, extra: float) -> Timeline:
    def raised(one: Pass) -> Pass:
        return Pass(
            peaks=tuple(v + extra for v in one.peaks),
            levels=tuple(v + extra for v in one.levels),
            afters=tuple(v + extra for v in one.afters),
        )

    return Timeline(
        forward=raised(timeline.forward),
        backward=raised(timeline.backward),
        forward_peak=timeline.forward_peak + extra,
        gradients=raised(timeline.gradients),
    )


def _run_pass(
    trace: ActivationTrace, runs: Iterable[Run], micro_batch: int, seq_len: int, level: float
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
                [max(map(size.of, mark.peaks)) for mark in marks],
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
def _timeline(trace: ActivationTrace, micro_batch: int, seq_len: int) -> Timeline:
    forward = _run_pass(trace, trace.forward, micro_batch, seq_len, 0.0)
    backward = _run_pass(trace, trace.backward, micro_batch, seq_len, forward.afters[-1])
    if trace.gradients:
        gradients = _run_pass(trace, trace.gradients, micro_batch, seq_len, forward.afters[-1])
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


@dataclass(frozen=True, kw_only=True)
class ModelProfile:
    """Everything the memory model knows of a model.

    Attributes:
        parameters: in ``model.parameters()`` order, tied ones once.
        traces: variant key (see :class:`zerokit.trace.record.Variant`) -> traces by rising
            ``max_seq_len``.
        parameter_sets: variant key of a LoRA or tensor-parallel trace -> the parameters as one rank holds
            them then, in their order.
        ties: another name of a parameter -> the name under which ``parameters`` lists it.
        buffer_bytes: of all buffers (causal masks, position tables): on the GPU always.
        basis: ``traced``; or ``scaled`` when the traces are another size's, scaled.
    """

    name: str
    family: str
    head: str
    hf_config: Mapping[str, Any]
    parameters: tuple[Parameter, ...]
    traces: Mapping[str, tuple[ActivationTrace, ...]]
    parameter_sets: Mapping[str, tuple[Parameter, ...]] = field(default_factory=dict)
    ties: Mapping[str, str] = field(default_factory=dict)
    buffer_bytes: int = 0
    basis: str = "traced"
    torch_version: str = ""
    transformers_version: str = ""

    @cached_property
    def parameter_count(self) -> int:
        """Elements of all parameters."""
        return sum(p.numel for p in self.parameters)

    def parameters_for(self, variant: str) -> tuple[Parameter, ...]:
        """The parameters as DeepSpeed sees them under this variant (adapters, shards)."""
        return self.parameter_sets.get(variant, self.parameters)

    def trace(self, variant: str, seq_len: int) -> ActivationTrace | None:
        """The trace that holds for this variant and sequence length, if there is one."""
        for trace in self.traces.get(variant, ()):
            if trace.max_seq_len is None or seq_len <= trace.max_seq_len:
                return trace
        return None

    def versions_note(self) -> str:
        """What the model was traced with: another version may run other kernels."""
        return f"transformers {self.transformers_version}, torch {self.torch_version}"

    def __hash__(self) -> int:
        return id(self)

    def __eq__(self, other: object) -> bool:
        return self is other


# ------------------------------------------------------------------ storage as JSON


def _pack_parameters(parameters: Sequence[Parameter]) -> list[Any]:
    """One row a parameter: name, shape, and what is not as usual."""
    rows: list[Any] = []
    for p in parameters:
        more: list[int] = []
        if p.element_bytes or p.stored_bytes or p.communication_bytes or not p.trainable:
            more = [int(p.trainable), p.stored_bytes, p.element_bytes, p.communication_bytes]
            while len(more) > 1 and not more[-1]:
                more.pop()
        rows.append([p.name, list(p.shape), *more])
    return rows


def _unpack_parameters(rows: Iterable[Sequence[Any]]) -> tuple[Parameter, ...]:
    return tuple(_unpack_parameter(*row) for row in rows)


def _unpack_parameter(
    name: str,
    shape: Sequence[int],
    trainable: int = 1,
    stored_bytes: int = 0,
    element_bytes: int = 0,
    communication_bytes: int = 0,
) -> Parameter:
    return Parameter(
        name=name,
        shape=tuple(shape),
        trainable=bool(trainable),
        stored_bytes=stored_bytes,
        element_bytes=element_bytes,
        communication_bytes=communication_bytes,
    )


def _pack_runs(runs: Iterable[Run]) -> list[list[Any]]:
    return [[r.segment, r.stack, r.start, r.count, r.step] for r in runs]


def _unpack_runs(rows: Iterable[Sequence[Any]]) -> tuple[Run, ...]:
    return tuple(Run(segment=a, stack=b, start=c, count=d, step=e) for a, b, c, d, e in rows)


def to_json(profile: ModelProfile) -> dict[str, Any]:
    """A JSON-able form; :func:`from_json` is its inverse. Polynomials are stored once each."""
    table: dict[Polynomial, int] = {}

    def number(polynomial: Polynomial) -> int:
        return table.setdefault(polynomial, len(table))

    segments: dict[tuple[Mark, ...], int] = {}
    packed_segments: list[list[Any]] = []

    def segment(marks: tuple[Mark, ...]) -> int:
        if marks not in segments:
            segments[marks] = len(packed_segments)
            packed_segments.append(
                [
                    [m.kind, m.name, [number(p) for p in m.peaks], number(m.level), number(m.after)]
                    for m in marks
                ]
            )
        return segments[marks]

    traces: dict[str, list[Any]] = {}
    for key, variants in profile.traces.items():
        traces[key] = [
            {
                "max_seq_len": trace.max_seq_len,
                "segments": [segment(marks) for marks in trace.segments],
                "forward": _pack_runs(trace.forward),
                "backward": _pack_runs(trace.backward),
                **({"cache": _pack_runs(trace.cache)} if trace.cache else {}),
                **({"gradients": _pack_runs(trace.gradients)} if trace.gradients else {}),
            }
            for trace in variants
        ]
    return {
        "format": FORMAT,
        "name": profile.name,
        "family": profile.family,
        "head": profile.head,
        "hf_config": dict(profile.hf_config),
        "torch_version": profile.torch_version,
        "transformers_version": profile.transformers_version,
        "buffer_bytes": profile.buffer_bytes,
        "parameters": _pack_parameters(profile.parameters),
        "parameter_sets": {key: _pack_parameters(value) for key, value in profile.parameter_sets.items()},
        "ties": dict(profile.ties),
        "segments": packed_segments,
        "polynomials": [[int(c) if c == int(c) else c for c in p] for p in table],
        "traces": traces,
    }


def from_json(data: Mapping[str, Any]) -> ModelProfile:
    """Read what :func:`to_json` wrote. Traces are unpacked when first asked for.

    Raises:
        ValueError: another format.
    """
    if data.get("format") != FORMAT:
        raise ValueError(f"profile format {data.get('format')!r}; this zerokit reads {FORMAT}")
    return ModelProfile(
        name=data["name"],
        family=data["family"],
        head=data["head"],
        hf_config=data["hf_config"],
        parameters=_unpack_parameters(data["parameters"]),
        parameter_sets=_LazyParameters(data["parameter_sets"]),
        ties=data["ties"],
        traces=_LazyTraces(data),
        buffer_bytes=data.get("buffer_bytes", 0),
        torch_version=data["torch_version"],
        transformers_version=data["transformers_version"],
    )


class _LazyParameters(Mapping[str, tuple[Parameter, ...]]):
    """The parameter sets of a stored profile, unpacked one at a time."""

    def __init__(self, rows: Mapping[str, Any]) -> None:
        self._rows = rows
        self._done: dict[str, tuple[Parameter, ...]] = {}

    def __getitem__(self, key: str) -> tuple[Parameter, ...]:
        if key not in self._done:
            self._done[key] = _unpack_parameters(self._rows[key])
        return self._done[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)


class _LazyTraces(Mapping[str, tuple[ActivationTrace, ...]]):
    """The traces of a stored profile, unpacked one variant at a time: a plan needs few of them."""

    def __init__(self, data: Mapping[str, Any]) -> None:
        self._data = data
        self._done: dict[str, tuple[ActivationTrace, ...]] = {}
        self._segments: dict[int, tuple[Mark, ...]] = {}
        self._polynomials = [tuple(p) for p in data["polynomials"]]

    def _segment(self, index: int) -> tuple[Mark, ...]:
        if index not in self._segments:
            table = self._polynomials
            self._segments[index] = tuple(
                Mark(
                    kind=kind,
                    name=name,
                    peaks=tuple(table[p] for p in peaks),
                    level=table[level],
                    after=table[after],
                )
                for kind, name, peaks, level, after in self._data["segments"][index]
            )
        return self._segments[index]

    def __getitem__(self, key: str) -> tuple[ActivationTrace, ...]:
        if key not in self._done:
            self._done[key] = tuple(
                ActivationTrace(
                    segments=tuple(self._segment(i) for i in row["segments"]),
                    forward=_unpack_runs(row["forward"]),
                    backward=_unpack_runs(row["backward"]),
                    max_seq_len=row["max_seq_len"],
                    cache=_unpack_runs(row.get("cache", ())),
                    gradients=_unpack_runs(row.get("gradients", ())),
                )
                for row in self._data["traces"][key]
            )
        return self._done[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._data["traces"])

    def __len__(self) -> int:
        return len(self._data["traces"])
