"""YAML, strictly: one document, plain values, no surprises; and written so that PyYAML reads the same.

Read from the parser's event stream rather than through ``safe_load``, for four reasons: locations of
keys, duplicate keys, numbers as YAML 1.2 has them (``5e8`` is a number; PyYAML reads text), and
documents made to exhaust memory (aliases are counted before anything is expanded).
"""

from __future__ import annotations

import math
import pathlib
import re
from dataclasses import dataclass, field
from typing import Any

import yaml

from zerokit.errors import FileInputError, InputError
from zerokit.strictload.document import (
    MAX_DEPTH,
    MAX_NODES,
    Document,
    Lines,
    Location,
    Path,
    Problem,
    read_text,
)

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_MAX_DIGITS = 400

_NULL = frozenset({"", "~", "null", "Null", "NULL"})
_TRUE = frozenset({"true", "True", "TRUE", "yes", "Yes", "YES", "on", "On", "ON"})
_FALSE = frozenset({"false", "False", "FALSE", "no", "No", "NO", "off", "Off", "OFF"})
_INT = re.compile(r"[-+]?(0|[1-9][0-9_]*)")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9][0-9_]*(\.[0-9_]*)?)([eE][-+]?[0-9]+)?")
_RADIX = re.compile(r"0(x[0-9a-fA-F]+|o[0-7]+)")
_LEADING_ZERO = re.compile(r"[-+]?0[0-9_]+")
_NOT_FINITE = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")

_YAML_1_1_FLOAT = re.compile(
    r"[-+]?(?:[0-9][0-9_]*\.[0-9_]*(?:[eE][-+][0-9]+)?|\.[0-9][0-9_]*(?:[eE][-+][0-9]+)?)"
)

_PLAIN_TAGS = frozenset({None, "!", *(f"tag:yaml.org,2002:{name}" for name in ("str", "map", "seq"))})


_QUOTED = ("while scanning a simple key", "while scanning a quoted scalar")
_OPENED = (*_QUOTED, "while parsing a flow sequence", "while parsing a flow mapping")
"""What PyYAML was at when it found the end missing: the location to look is where that began.

A list that the file ends in is missing its end there."""


@dataclass(slots=True, eq=False)
class _Open:
    """A mapping or list that is being read."""

    value: Any
    path: Path
    anchor: str | None
    merges: list[dict[str, Any]] = field(default_factory=list)
    key: str | None = None
    merging: bool = False
    nodes: int = 1


def load_yaml(path: str | pathlib.Path) -> Document:
    """Read a YAML file. Raises FileInputError: with line and column: bad syntax, a duplicate key, a tag, NaN
    or infinity, an alias bomb, nesting beyond 100 levels, several documents, an empty file."""
    return parse_yaml(read_text(path), str(path))


def parse_yaml(text: str, path: str = "<text>", *, strict: bool = True) -> Document:
    """Read YAML text (see :func:`load_yaml`); with ``strict=False`` a duplicate key is noted, and its last
    value counts, as PyYAML has it."""
    return _Reader(text, path, strict=strict).read()


class _Reader:
    def __init__(self, text: str, path: str, *, strict: bool) -> None:
        self.document = Document(path=path, text=text)
        self.strict = strict
        self.stack: list[_Open] = []
        self.anchors: dict[str, tuple[Any, int]] = {}
        self.nodes = 0
        self.documents = 0

    def read(self) -> Document:
        try:
            for event in yaml.parse(self.document.text, Loader=_LOADER):
                self.take(event)
        except yaml.YAMLError as error:
            raise self.syntax_error(error) from None
        if self.documents == 0:
            raise FileInputError(self.document.path, "is empty", 1, 1)
        return self.document

    def take(self, event: Any) -> None:
        """Handle one parser event."""
        if isinstance(event, yaml.DocumentStartEvent):
            self.documents += 1
            if self.documents > 1:
                raise self.error(event, "a second document starts here; keep one per file")
        elif isinstance(event, yaml.ScalarEvent):
            self.scalar(event)
        elif isinstance(event, yaml.AliasEvent):
            self.alias(event)
        elif isinstance(event, yaml.MappingStartEvent | yaml.SequenceStartEvent):
            self.open(event)
        elif isinstance(event, yaml.MappingEndEvent | yaml.SequenceEndEvent):
            self.close()

    def error(self, event: Any, message: str) -> FileInputError:
        mark = event.start_mark
        return FileInputError(self.document.path, message, mark.line + 1, mark.column + 1)

    def syntax_error(self, error: yaml.YAMLError) -> FileInputError:
        mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
        at_end = mark is not None and not self.document.text[mark.index :].strip()
        if getattr(error, "context", None) in (_QUOTED if at_end else _OPENED):
            mark = getattr(error, "context_mark", None) or mark
        if mark is not None:
            message = getattr(error, "problem", None) or "cannot be read as YAML"
            if "\t" in self.document.text and "cannot start any token" in message:
                message += " (a tab? YAML is indented with spaces)"
            return FileInputError(self.document.path, message, mark.line + 1, mark.column + 1)
        position = getattr(error, "position", None)
        location = Lines(self.document.text).location(position if isinstance(position, int) else 0)
        return FileInputError(
            self.document.path, f"holds a character YAML forbids: {getattr(error, 'reason', '')}", *location
        )

    def count(self, event: Any, nodes: int) -> None:
        self.nodes += nodes
        if self.nodes > MAX_NODES:
            raise self.error(event, f"has more than {MAX_NODES} values (aliases expanded)")
        for open_ in self.stack:
            open_.nodes += nodes

    def expects_key(self) -> bool:
        return bool(self.stack) and isinstance(self.stack[-1].value, dict) and self.stack[-1].key is None

    def scalar(self, event: Any) -> None:
        if event.tag not in _PLAIN_TAGS:
            raise self.error(event, f"tag {event.tag} is not allowed; write the plain value")
        if self.expects_key():
            self.key(event)
            return
        quoted = event.style not in (None, "") or event.tag not in (None, "!")
        value = event.value if quoted else self.plain(event)
        self.count(event, 1)
        self.add(value, event)
        if event.anchor:
            self.anchors[event.anchor] = (value, 1)

    def key(self, event: Any) -> None:
        top, name = self.stack[-1], event.value
        key_path = (*top.path, name)
        merging = name == "<<" and event.style in (None, "")
        if name in top.value or (merging and top.merges):
            first = self.document.keys[key_path].line
            if self.strict or merging:
                raise self.error(event, f"duplicate key {name!r} (first in line {first}); keep one")
            self.replaced(key_path)
            message = f"duplicate key {name!r}: this value counts, not that of line {first}"
            self.note(event, "duplicate-key", message, "keep one")
        top.key, top.merging = name, merging
        if not merging:
            # reserve the key so that a duplicate is seen, whatever its value
            top.value[name] = None
        self.document.keys[key_path] = Location(event.start_mark.line + 1, event.start_mark.column + 1)

    def alias(self, event: Any) -> None:
        if self.expects_key():
            raise self.error(event, "an alias as a key is not allowed")
        if any(open_.anchor == event.anchor for open_ in self.stack):
            raise self.error(event, f"*{event.anchor} contains itself")
        if event.anchor not in self.anchors:
            raise self.error(event, f"*{event.anchor} is not defined before this line")
        value, nodes = self.anchors[event.anchor]
        self.count(event, nodes)
        self.add(value, event)

    def open(self, event: Any) -> None:
        if event.tag not in _PLAIN_TAGS:
            raise self.error(event, f"tag {event.tag} is not allowed; write the plain value")
        if self.expects_key():
            raise self.error(event, "a list or mapping as a key is not allowed")
        if len(self.stack) >= MAX_DEPTH:
            raise self.error(event, f"is nested deeper than {MAX_DEPTH} levels")
        self.count(event, 1)
        value: Any = {} if isinstance(event, yaml.MappingStartEvent) else []
        path = self.add(value, event)
        self.stack.append(_Open(value, path, event.anchor))

    def close(self) -> None:
        done = self.stack.pop()
        for merged in done.merges:
            for key, value in merged.items():
                done.value.setdefault(key, value)
        if done.anchor:
            self.anchors[done.anchor] = (done.value, done.nodes)
        if self.stack:
            self.stack[-1].key = None if isinstance(self.stack[-1].value, dict) else self.stack[-1].key

    def add(self, value: Any, event: Any) -> Path:
        """Put a value under the key or in the list that is open; returns its path."""
        location = Location(event.start_mark.line + 1, event.start_mark.column + 1)
        is_leaf = not isinstance(event, yaml.MappingStartEvent | yaml.SequenceStartEvent)
        if not self.stack:
            self.document.value = value
            path: Path = ()
        elif isinstance(self.stack[-1].value, list):
            top = self.stack[-1]
            path = (*top.path, len(top.value))
            top.value.append(value)
            self.document.keys[path] = location
        else:
            top = self.stack[-1]
            assert top.key is not None
            path = (*top.path, top.key)
            self.put(top, value, event)
            if is_leaf:
                top.key = None
        self.document.values[path] = location
        if hasattr(event, "end_mark"):
            self.document.spans[path] = (event.start_mark.index, event.end_mark.index)
        return path

    def put(self, top: _Open, value: Any, event: Any) -> None:
        assert top.key is not None
        if not top.merging:
            top.value[top.key] = value
            return
        merges = value if isinstance(value, list) else [value]
        if not merges or not all(isinstance(merged, dict) for merged in merges):
            raise self.error(event, "<< must name a mapping (an alias to one)")
        top.merges += merges

    def note_text_elsewhere(self, event: Any, number: float) -> None:
        """Note a number that PyYAML, and so Accelerate, reads as text."""
        rounded = int(number) if number == int(number) and abs(number) < 1e15 else number
        self.note(
            event, "yaml-number-as-text",
            f"{event.value}: without a point and a signed exponent, Accelerate reads text",
            f"write {rounded}",
        )  # fmt: skip

    def note(self, event: Any, rule: str, message: str, fix: str) -> None:
        mark = event.start_mark
        location = Location(mark.line + 1, mark.column + 1)
        self.document.problems.append(Problem(rule=rule, location=location, message=message, fix=fix))

    def replaced(self, path: Path) -> None:
        """Forget the locations of what was below a key."""
        for known in (self.document.keys, self.document.values, self.document.spans):
            for below in [other for other in known if len(other) > len(path) and other[: len(path)] == path]:
                del known[below]

    def plain(self, event: Any) -> Any:
        """Value of a scalar without quotes."""
        text = event.value
        if text in _NULL:
            return None
        if text in _TRUE or text in _FALSE:
            return text in _TRUE
        if _NOT_FINITE.fullmatch(text):
            raise self.error(event, f"{text} is not a finite number")
        if len(text) > _MAX_DIGITS and any(kind.fullmatch(text) for kind in (_INT, _FLOAT, _RADIX)):
            raise self.error(event, f"a number of {len(text)} digits is too long")
        if _INT.fullmatch(text):
            return int(text.replace("_", ""))
        if _RADIX.fullmatch(text):
            return int(text, 0)
        if _LEADING_ZERO.fullmatch(text):
            raise self.error(event, f"{text}: a leading zero may mean octal; drop it, or quote the text")
        if _FLOAT.fullmatch(text):
            number = float(text.replace("_", ""))
            if not math.isfinite(number):
                raise self.error(event, f"{text} is too large for a number")
            if not _YAML_1_1_FLOAT.fullmatch(text):
                self.note_text_elsewhere(event, number)
            return number
        return text


class _PythonDumper(yaml.SafeDumper):
    """Safe dumper that quotes text which YAML 1.2 would read as a number, and never writes aliases."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


_LONGEST_KEY = 100
_DUMPERS: list[Any] = [_PythonDumper]
if hasattr(yaml, "CSafeDumper"):

    class _CDumper(yaml.CSafeDumper):
        """The same through libyaml: a tenth of the time."""

        def ignore_aliases(self, data: Any) -> bool:
            return True

    _DUMPERS.append(_CDumper)


def _text(dumper: Any, text: str) -> yaml.ScalarNode:
    style = None
    if len(text) > 8 and text[0].isalpha() and text.isprintable():
        pass  # longer than any word that means something in YAML: what is to be quoted, PyYAML quotes
    elif not text.isprintable():
        style = '"'  # line breaks of every kind, written as escapes
    else:
        try:
            if not isinstance(parse_yaml(f"- {text}").value[0], str):
                style = "'"
        except FileInputError:
            pass  # PyYAML quotes what is not plain text
    node: yaml.ScalarNode = dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)
    return node


def _float(dumper: Any, number: float) -> yaml.ScalarNode:
    if not math.isfinite(number):
        raise InputError(f"{number} cannot be written: only finite numbers can")
    text = repr(number)
    if "e" in text and "." not in text:
        text = text.replace("e", ".0e")  # 1e-05 is text to PyYAML
    node: yaml.ScalarNode = dumper.represent_scalar("tag:yaml.org,2002:float", text)
    return node


for _dumper in _DUMPERS:
    _dumper.add_representer(str, _text)
    _dumper.add_representer(float, _float)


def _alike(value: Any) -> bool:
    """Whether both dumpers write ``value`` to the letter alike. They differ in escapes, in characters beyond
    U+FFFF, and in when a key is too long for one line."""
    if isinstance(value, str):
        return value.isprintable() and (not value or max(value) <= "\uffff")
    if isinstance(value, dict):
        keys = all(isinstance(key, str) and 0 < len(key) < _LONGEST_KEY and _alike(key) for key in value)
        return keys and all(map(_alike, value.values()))
    return not isinstance(value, list) or all(map(_alike, value))


def dump_yaml(value: Any, *, header: str = "") -> str:
    """YAML text of plain data, keys in their order, below ``header`` as comment lines. Raises InputError:
    NaN, infinity, or an object that is not plain data."""
    dumper = _DUMPERS[-1] if isinstance(value, dict | list) and _alike(value) else _PythonDumper
    comment = "".join(f"# {line}".rstrip() + "\n" for line in header.splitlines())
    try:
        return comment + yaml.dump(
            value, Dumper=dumper, sort_keys=False, allow_unicode=True, default_flow_style=False, width=100
        )
    except yaml.YAMLError as error:
        raise InputError(f"cannot be written as YAML: {error}") from None
