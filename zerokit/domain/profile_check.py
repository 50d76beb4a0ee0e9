"""Whether JSON is a profile, down to every number: a damaged one must not become a wrong figure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from zerokit.domain.profile_json import FORMAT

_KINDS = ("fwd_pre", "fwd_post", "bwd_pre", "bwd_post", "grad", "kept", "end")
_TEXTS = ("name", "family", "head", "torch_version", "transformers_version")
_LARGEST = 1 << 60
_MOST_LAYERS = 1 << 20


def check(data: object) -> Mapping[str, Any]:
    """The data, where they hold as a profile.

    Raises:
        ValueError: names the part that does not.
    """
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
