"""Reads a catalogue file strictly: every key known, every value of its kind, errors with file:line."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from zerokit.errors import FileInputError

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_TAG = "tag:yaml.org,2002:"
# YAML 1.1 reads 1e-5 as text; a model built from it would fail much later
_NUMBER_AS_TEXT = re.compile(r"[+-]?\d[\d_]*(\.\d*)?[eE][+-]?\d+")


@dataclass(frozen=True, slots=True, kw_only=True)
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


def read(path: Path, fields: Mapping[str, Field], *, until: str | None = None) -> dict[str, Any]:
    """The file's keys and values, checked against ``fields``.

    Args:
        until: read only the keys above this top-level one, without parsing what follows;
            it and whatever comes after it are then neither required nor checked.

    Raises:
        FileInputError: not readable, not YAML, or a key or value that is unknown, missing,
            repeated or of the wrong kind; with the line.
    """
    text = _text(path)
    if until is not None:
        text = re.split(rf"^{until}:", text, maxsplit=1, flags=re.MULTILINE)[0]
    root = _compose(path, text)
    if not isinstance(root, yaml.MappingNode):
        raise FileInputError(path, "expected a mapping of keys to values", 1)
    _refuse_aliases(path, root, set())
    values: dict[str, Any] = {}
    for key_node, node in root.value:
        key = str(key_node.value)
        if key not in fields:
            raise _at(path, key_node, f"unknown key {key!r}{_closest(key, fields)}")
        if key in values:
            raise _at(path, key_node, f"{key!r} is given twice")
        values[key] = _checked(path, key, node, fields[key])
    if until is None:
        missing = [key for key, field in fields.items() if field.required and key not in values]
        if missing:
            raise FileInputError(path, f"missing: {', '.join(missing)}", 1)
    return values


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise FileInputError(path, f"cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise FileInputError(path, "is not UTF-8 text") from error


def _compose(path: Path, text: str) -> yaml.Node | None:
    try:
        node: yaml.Node | None = yaml.compose(text, Loader=_LOADER)
        return node
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = (mark.line + 1, mark.column + 1) if mark else (None, None)
        raise FileInputError(path, f"not YAML: {error.problem}", *place) from error
    except (yaml.YAMLError, RecursionError) as error:
        raise FileInputError(path, "not YAML") from error


def _at(path: Path, node: yaml.Node, message: str) -> FileInputError:
    return FileInputError(path, message, node.start_mark.line + 1)


def _closest(key: str, known: Mapping[str, Field]) -> str:
    import difflib

    close = difflib.get_close_matches(key, known, n=1)
    return f"; did you mean {close[0]!r}?" if close else f"; use one of {', '.join(known)}"


def _refuse_aliases(path: Path, node: yaml.Node, seen: set[int]) -> None:
    if id(node) in seen:
        raise _at(path, node, "anchors and aliases are not used in the catalogue; write the value out")
    seen.add(id(node))
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            _refuse_aliases(path, key, seen)
            _refuse_aliases(path, value, seen)
    elif isinstance(node, yaml.SequenceNode):
        for item in node.value:
            _refuse_aliases(path, item, seen)


def _checked(path: Path, key: str, node: yaml.Node, field: Field) -> Any:
    value = _plain(path, node)
    ok, wanted = {
        "text": (isinstance(value, str) and value.strip() != "", "text"),
        "texts": (
            isinstance(value, list) and all(isinstance(item, str) and item for item in value),
            "a list of texts",
        ),
        "number": (type(value) in (int, float) and math.isfinite(value) and value > 0, "a positive number"),
        "whole": (type(value) is int and value > 0, "a positive whole number"),
        "flag": (isinstance(value, bool), "true or false"),
        "mapping": (isinstance(value, dict) and bool(value), "a mapping"),
    }[field.kind]
    if not ok:
        raise _at(path, node, f"{key}: expected {wanted}, got {value!r}")
    if field.choices and value not in field.choices:
        raise _at(path, node, f"{key}: {value!r} is not one of {', '.join(field.choices)}")
    return value


def _plain(path: Path, node: yaml.Node) -> Any:
    """The node as dict, list, text, number, flag or None."""
    if isinstance(node, yaml.MappingNode):
        result: dict[Any, Any] = {}
        for key_node, value_node in node.value:
            key = _plain(path, key_node)
            if not isinstance(key, str):
                raise _at(path, key_node, f"keys must be text; write {key!r} in quotes")
            if key in result:
                raise _at(path, key_node, f"{key!r} is given twice")
            result[key] = _plain(path, value_node)
        return result
    if isinstance(node, yaml.SequenceNode):
        return [_plain(path, item) for item in node.value]
    return _scalar(path, node)


def _scalar(path: Path, node: yaml.Node) -> Any:
    text: str = node.value
    tag = str(node.tag).removeprefix(_TAG)
    if tag == "null":
        return None
    if tag == "bool":
        return text.lower() in ("true", "yes", "on")
    try:
        if tag == "int":
            return int(text.replace("_", ""), 10)
        if tag == "float":
            return float(text.replace("_", "").replace(".inf", "inf").replace(".nan", "nan"))
    except ValueError:
        raise _at(path, node, f"cannot read the number {text!r}; write it in decimal") from None
    if tag != "str":
        raise _at(path, node, f"a value of type {tag!r} is not used in the catalogue")
    if not getattr(node, "style", None) and _NUMBER_AS_TEXT.fullmatch(text):
        raise _at(path, node, f"YAML reads {text!r} as text; write a decimal point, such as 1.0e-05")
    return text
