"""Reads a catalogue file strictly: every key known, every value of its kind, errors with file:line."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from zerokit.strictload import Document, load_yaml
from zerokit.suggest import alike
from zerokit.values import frozen_dataclass

_WANTED = {
    "text": "text",
    "texts": "a list of texts",
    "number": "a positive number",
    "whole": "a positive whole number",
    "flag": "true or false",
    "mapping": "a mapping",
}


@frozen_dataclass
class Field:
    """What one top-level key of a file may hold.

    Attributes:
        kind: ``text``, ``texts`` (a list), ``number`` (positive), ``whole`` (positive), ``flag``
            or ``mapping`` (anything below it).
        choices: the only texts allowed, when not empty.
    """

    kind: str
    required: bool = True
    choices: tuple[str, ...] = ()


def read(path: Path, fields: Mapping[str, Field]) -> Document:
    """The file, its top-level keys and values checked against ``fields``.

    Raises:
        FileInputError: not readable, not YAML, or a key or value that is unknown, missing,
            repeated or of the wrong kind; with the line.
    """
    document = load_yaml(path)
    if not isinstance(document.value, dict):
        raise document.error((), "expected a mapping of keys to values")
    for key, value in document.value.items():
        if key not in fields:
            raise document.error((key,), f"unknown key {key!r}{_closest(key, fields)}")
        _check(document, key, value, fields[key])
    missing = [key for key, field in fields.items() if field.required and key not in document.value]
    if missing:
        raise document.error((), f"missing: {', '.join(missing)}")
    return document


def _check(document: Document, key: str, value: Any, field: Field) -> None:
    fits = {
        "text": isinstance(value, str) and value.strip() != "",
        "texts": isinstance(value, list) and all(isinstance(item, str) and item for item in value),
        "number": type(value) in (int, float) and value > 0,
        "whole": type(value) is int and value > 0,
        "flag": isinstance(value, bool),
        "mapping": isinstance(value, dict) and bool(value),
    }
    if not fits[field.kind]:
        raise document.error((key,), f"{key}: expected {_WANTED[field.kind]}, got {value!r}")
    if field.choices and value not in field.choices:
        raise document.error((key,), f"{key}: {value!r} is not one of {', '.join(field.choices)}")


def _closest(key: str, fields: Mapping[str, Field]) -> str:
    close = alike(key, fields)
    return f"; did you mean {close[0]!r}?" if close else f"; use one of {', '.join(fields)}"
