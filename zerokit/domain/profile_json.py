"""A model's profile as JSON, and back, checked down to every number: damage must not become a wrong figure.
Traces and parameter sets are unpacked when first asked for."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from zerokit.domain.activations import ActivationTrace, ColumnSum, Mark, Polynomial, Run
from zerokit.domain.profile import ModelProfile, Parameter

FORMAT = "zerokit.profile/2"
"""Raised with the layout of the file, and with whatever makes a trace of the same model another."""


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


def _pack_sum(one: ColumnSum, number: Callable[[Polynomial], int]) -> list[int]:
    return [number(one.level), number(one.rows), one.columns, one.element_bytes]


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
                    [
                        m.kind, m.name, [number(p) for p in m.peaks], number(m.level), number(m.after),
                        *([[_pack_sum(one, number) for one in m.sums]] if m.sums else []),
                    ]
                    for m in marks
                ]
            )  # fmt: skip
        return segments[marks]

    traces: dict[str, list[Any]] = {}
    for key, variants in profile.traces.items():
        traces[key] = [
            {
                "max_seq_len": trace.max_seq_len,
                **({"min_seq_len": trace.min_seq_len} if trace.min_seq_len else {}),
                **({"of_one_sequence": True} if trace.of_one_sequence else {}),
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
        **({"views": list(profile.views)} if profile.views else {}),
        **({"leaves": list(profile.leaves)} if profile.leaves else {}),
        "segments": packed_segments,
        "polynomials": [[int(c) if c == int(c) else c for c in p] for p in table],
        "traces": traces,
    }


def from_json(data: Mapping[str, Any]) -> ModelProfile:
    """Read what :func:`to_json` wrote. Traces are unpacked when first asked for. Raises ValueError: another
    format."""
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
        views=tuple(data.get("views", ())),
        leaves=tuple(data.get("leaves", ())),
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
                    sums=tuple(
                        ColumnSum(level=table[a], rows=table[b], columns=c, element_bytes=d)
                        for rows in sums
                        for a, b, c, d in rows
                    ),
                )
                for kind, name, peaks, level, after, *sums in self._data["segments"][index]
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
                    min_seq_len=row.get("min_seq_len", 0),
                    of_one_sequence=row.get("of_one_sequence", False),
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


_KINDS = ("fwd_pre", "fwd_post", "bwd_pre", "bwd_post", "grad", "kept", "host", "end")
_TEXTS = ("name", "family", "head", "torch_version", "transformers_version")
_LARGEST = 1 << 60
_MOST_LAYERS = 1 << 20


def check(data: object) -> Mapping[str, Any]:
    """The data, where they hold as a profile. Raises ValueError: names the part that does not."""
    body = _mapping(data, "the profile")
    if body.get("format") != FORMAT:
        raise ValueError(f"profile format {str(body.get('format'))[:40]!r}; this zerokit reads {FORMAT}")
    for name in _TEXTS:
        _require(isinstance(body.get(name), str), name)
    _mapping(body.get("hf_config"), "hf_config")
    _check_integer(body.get("buffer_bytes", 0), "buffer_bytes")
    names = set(_parameters(body.get("parameters"), "parameters"))
    for key, rows in _mapping(body.get("parameter_sets"), "parameter_sets").items():
        names |= _parameters(rows, f"parameter_sets.{key}")
    for name, tied in _mapping(body.get("ties"), "ties").items():
        _require(isinstance(tied, str) and tied in names, f"ties.{name}")
    for part in ("views", "leaves"):
        _require(all(isinstance(name, str) for name in _list(body.get(part, []), part)), part)
    _traces(body)
    return body


def _parameters(value: object, key: str) -> frozenset[str]:
    rows = _list(value, key)
    _require(bool(rows), key)
    for row in rows:
        fields = _list(row, key)
        _require(2 <= len(fields) <= 6 and isinstance(fields[0], str), key)
        for size in [*_list(fields[1], key), *fields[2:]]:
            _check_integer(size, key)
    names = frozenset(row[0] for row in rows)
    _require(len(names) == len(rows), key)
    return names


def _traces(body: Mapping[str, Any]) -> None:
    polynomials = _list(body.get("polynomials"), "polynomials")
    for polynomial in polynomials:
        terms = _list(polynomial, "polynomials")
        good = all(not isinstance(c, bool) and isinstance(c, int | float) and math.isfinite(c) for c in terms)
        _require(len(terms) == 6 and good, "polynomials")
    segments = _list(body.get("segments"), "segments")
    for segment in segments:
        for mark in _list(segment, "segments"):
            _mark(mark, len(polynomials))
    traces = _mapping(body.get("traces"), "traces")
    _require(bool(traces), "traces")
    for key, variants in traces.items():
        trace_key = f"traces.{key}"
        _require(bool(_list(variants, trace_key)), trace_key)
        for trace in variants:
            _trace(_mapping(trace, trace_key), len(segments), trace_key)


def _mark(mark: object, polynomials: int) -> None:
    fields = _list(mark, "segments")
    _require(len(fields) in (5, 6) and fields[0] in _KINDS and isinstance(fields[1], str), "segments")
    for number in [*_list(fields[2], "segments"), *fields[3:5]]:
        _check_integer(number, "segments", below=polynomials)
    for one in _list(fields[5], "segments") if len(fields) == 6 else []:
        sizes = _list(one, "segments")
        _require(len(sizes) == 4, "segments")
        for number in sizes[:2]:
            _check_integer(number, "segments", below=polynomials)
        for size in sizes[2:]:
            _check_integer(size, "segments")
            _require(size > 0, "segments")


def _trace(trace: Mapping[str, Any], segments: int, key: str) -> None:
    limit = trace.get("max_seq_len")
    if limit is not None:
        _check_integer(limit, f"{key}.max_seq_len")
    _check_integer(trace.get("min_seq_len", 0), f"{key}.min_seq_len")
    if not isinstance(trace.get("of_one_sequence", False), bool):
        raise ValueError(f"{key}.of_one_sequence is neither true nor false")
    segment_list = _list(trace.get("segments"), key)
    for number in segment_list:
        _check_integer(number, key, below=segments)
    for name in ("forward", "backward", "cache", "gradients"):
        runs = _list(trace.get(name, [] if name in ("cache", "gradients") else None), f"{key}.{name}")
        for run in runs:
            fields = _list(run, f"{key}.{name}")
            _require(len(fields) == 5 and isinstance(fields[1], str), f"{key}.{name}")
            _check_integer(fields[0], f"{key}.{name}", below=len(segment_list))
            _check_integer(fields[2], f"{key}.{name}", below=_MOST_LAYERS)
            _check_integer(fields[3], f"{key}.{name}", below=_MOST_LAYERS)
            _require(type(fields[4]) is int and abs(fields[4]) <= 1, f"{key}.{name}")
    _require(bool(trace["forward"]), f"{key}.forward")


def _mapping(value: object, key: str) -> Mapping[str, Any]:
    _require(isinstance(value, dict), key)
    return value  # type: ignore[return-value]


def _list(value: object, key: str) -> list[Any]:
    _require(isinstance(value, list), key)
    return value  # type: ignore[return-value]


def _check_integer(value: object, key: str, below: int = _LARGEST) -> None:
    good = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < below
    _require(good, key)


def _require(holds: bool, what: str) -> None:
    if not holds:
        raise ValueError(f"{what} is malformed")
