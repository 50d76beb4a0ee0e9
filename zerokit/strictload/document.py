"""A parsed file: its value, where each key stands, and what the parser forgave."""

from __future__ import annotations

import bisect
import pathlib
import re
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

from zerokit.errors import FileInputError
from zerokit.files import read_regular
from zerokit.values import frozen_dataclass

T = TypeVar("T")
Path = tuple[str | int, ...]
"""Keys and list indices from the top of the document down to a value."""

MAX_BYTES = 4 << 20
"""No configuration is larger; a file beyond this is refused before it is read."""
MAX_DEPTH = 100
"""Deepest nesting that is read."""
MAX_NODES = 200_000
"""Most values in one document, counted with every alias written out."""


class Location(NamedTuple):
    """A location in a file, both from 1."""

    line: int
    column: int


@frozen_dataclass
class Problem:
    """Something the strict grammar forbids and the parser could read past."""

    rule: str
    location: Location
    message: str
    fix: str


@dataclass(slots=True, kw_only=True)
class Document:
    """What one file says.

    Attributes:
        value: plain dicts, lists, strings, numbers, booleans and None.
        keys: location of each key (of each item, in a list).
        values: location of each value.
        problems: what was read past; empty when the text was strict.
        spans: start and end offset of each value in ``text``, where the format gives them.
    """

    path: str
    text: str
    value: Any = None
    keys: dict[Path, Location] = field(default_factory=dict)
    values: dict[Path, Location] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    spans: dict[Path, tuple[int, int]] = field(default_factory=dict)

    def location(self, path: Path) -> Location:
        """Where ``path`` stands, or the nearest parent that is written in the file."""
        while path and path not in self.keys:
            path = path[:-1]
        return self.keys.get(path, Location(1, 1))

    def below(self, key: str) -> Document:
        """The value of a top-level key as a document of its own, with its locations in this file."""

        def part(table: dict[Path, T]) -> dict[Path, T]:
            return {path[1:]: found for path, found in table.items() if path[:1] == (key,)}

        locations = {at for path, at in (*self.keys.items(), *self.values.items()) if path[:1] == (key,)}
        return Document(
            path=self.path, text=self.text, value=self.value[key], keys=part(self.keys),
            values=part(self.values), problems=[at for at in self.problems if at.location in locations],
            spans=part(self.spans),
        )  # fmt: skip

    def error(self, path: Path, message: str) -> FileInputError:
        """A file error that points at ``path``."""
        line, column = self.location(path)
        return FileInputError(self.path, message, line, column)


BYTE_ORDER_MARK = "\ufeff"


def read_text(path: str | pathlib.Path, *, max_bytes: int = MAX_BYTES, keep_mark: bool = False) -> str:
    """Read a regular UTF-8 file of at most ``max_bytes`` bytes; a byte order mark is dropped unless kept.
    Raises FileInputError: missing, not a regular file, a link that leads elsewhere, too large, or not
    UTF-8."""
    try:
        data = read_regular(path, max_bytes)
    except OSError as error:
        raise unreadable(path, error) from None
    text = decode(data, str(path))
    return text if keep_mark else text.removeprefix(BYTE_ORDER_MARK)


def unreadable(path: str | pathlib.Path, error: OSError) -> FileInputError:
    """Make the error of a file that :func:`zerokit.files.open_regular` did not open."""
    return FileInputError(path, f"{'cannot be read: ' * (error.errno != 0)}{error.strerror}")


def decode(data: bytes, path: str) -> str:
    """Bytes to text: UTF-8 only; a byte order mark stays. Raises FileInputError: with line and column of the
    first byte that is not UTF-8."""
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise FileInputError(path, "is UTF-16; save it as UTF-8", 1, 1)
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        before = data[: error.start].removeprefix(BYTE_ORDER_MARK.encode())
        line = before.count(b"\n") + 1
        column = len(before.rpartition(b"\n")[2].decode("utf-8")) + 1
        raise FileInputError(
            path, f"byte 0x{data[error.start]:02x} is not UTF-8; save the file as UTF-8", line, column
        ) from None


class Lines:
    """Where the lines of a text begin, so that many locations take no more time than one."""

    def __init__(self, text: str) -> None:
        self.starts = [0, *(found.end() for found in re.finditer("\n", text))]

    def location(self, offset: int) -> Location:
        """Line and column of a character offset."""
        line = bisect.bisect_right(self.starts, offset)
        return Location(line, offset - self.starts[line - 1] + 1)

    def offset(self, location: Location) -> int:
        """The character offset of a line and column."""
        return self.starts[location.line - 1] + location.column - 1
