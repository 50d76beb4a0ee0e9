"""JSON with the location of every key, reading past what DeepSpeed's hjson reads past.

DeepSpeed reads its file with hjson (comments and trailing commas pass, deepspeed/runtime/config.py),
Accelerate and the Trainer read the same file with ``json.load`` (they fail). So those are noted as
problems rather than stopping; everything else that is not JSON raises.
"""

from __future__ import annotations

import math
import pathlib
import re
from typing import Any

from zerokit.errors import FileInputError
from zerokit.strictload.document import (
    MAX_DEPTH,
    MAX_NODES,
    Document,
    Lines,
    Path,
    Problem,
    read_text,
)

_SPACE = re.compile(r"[ \t\r\n]*")
_COMMENT = re.compile(r"//[^\n]*|\#[^\n]*|/\*.*?\*/", re.DOTALL)
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?P<fraction>\.[0-9]+)?(?P<exponent>[eE][-+]?[0-9]+)?")
_WORD = re.compile(r"[-+A-Za-z0-9_.]+")
_STRING = re.compile(r'"([^"\\\x00-\x1f]*)"')
_STRING_PART = re.compile(r'[^"\\\x00-\x1f]+')
_CONSTANTS: dict[str, Any] = {"true": True, "false": False, "null": None}
_ALMOST = {"True": "true", "False": "false", "None": "null", "undefined": "null"}
_ESCAPES = {'"': '"', "\\": "\\", "/": "/", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_RADIX = re.compile(r"[-+]?0[xXoObB][0-9A-Fa-f]+")
_MAX_DIGITS = 400


def load_json(path: str | pathlib.Path, *, strict: bool = True) -> Document:
    """Read a JSON file; with ``strict=False`` comments, trailing commas, NaN and duplicate keys are noted.
    Raises FileInputError: with line and column, for whatever cannot be read past (strict: the first
    problem)."""
    return parse_json(read_text(path), str(path), strict=strict)


def parse_json(text: str, path: str = "<text>", *, strict: bool = True) -> Document:
    """Read JSON text (see :func:`load_json`)."""
    document = _Reader(text, path).read()
    if strict and document.problems:
        first = document.problems[0]
        raise FileInputError(path, f"{first.message}; {first.fix}", *first.location)
    return document


class _Reader:
    def __init__(self, text: str, path: str) -> None:
        self.document = Document(path=path, text=text)
        self.text = text
        self.location = Lines(text).location
        self.at = 0
        self.nodes = 0

    def read(self) -> Document:
        self.skip()
        if self.at == len(self.text):
            raise FileInputError(self.document.path, "is empty", 1, 1)
        self.document.value = self.read_value((), 0)
        self.skip()
        if self.at < len(self.text):
            raise self.error("unexpected text after the end of the JSON value; remove it")
        return self.document

    def error(self, message: str, at: int | None = None) -> FileInputError:
        location = self.location(self.at if at is None else at)
        return FileInputError(self.document.path, message, *location)

    def note(self, rule: str, at: int, message: str, fix: str) -> None:
        location = self.location(at)
        self.document.problems.append(Problem(rule=rule, location=location, message=message, fix=fix))

    def peek(self) -> str:
        return self.text[self.at : self.at + 1]

    def skip(self) -> None:
        """Pass white space and comments; those that follow each other are one problem."""
        begun = False
        while True:
            space = _SPACE.match(self.text, self.at)
            self.at = space.end() if space else self.at
            comment = _COMMENT.match(self.text, self.at) if self.peek() in ("/", "#") else None
            if comment is None:
                return
            if not begun:
                message = "a comment: raw DeepSpeed reads past it, Accelerate and the Trainer fail"
                self.note("json-comment", self.at, message, "remove it")
            begun = True
            self.at = comment.end()

    def read_value(self, path: Path, depth: int) -> Any:
        self.nodes += 1
        if depth > MAX_DEPTH:
            raise self.error(f"is nested deeper than {MAX_DEPTH} levels")
        if self.nodes > MAX_NODES:
            raise self.error(f"has more than {MAX_NODES} values")
        start = self.at
        self.document.values[path] = self.location(start)
        first = self.peek()
        if first == "{":
            value: Any = self.read_object(path, depth)
        elif first == "[":
            value = self.read_array(path, depth)
        elif first == '"':
            value = self.read_string()
        else:
            value = self.read_word()
        self.document.spans[path] = (start, self.at)
        return value

    def read_object(self, path: Path, depth: int) -> dict[str, Any]:
        result: dict[str, Any] = {}
        repeated: set[str] = set()
        self.at += 1
        self.skip()
        while self.peek() != "}":
            start = self.at
            if self.peek() != '"':
                raise self.error(self.key_message())
            key = self.read_string()
            key_path = (*path, key)
            if key in result and key not in repeated:
                repeated.add(key)
                first = self.document.keys[key_path].line
                message = f"duplicate key {key!r} (first in line {first}): DeepSpeed refuses the file, "
                message += "Accelerate and the Trainer silently take the last"
                self.note("duplicate-key", start, message, "keep one")
            self.document.keys[key_path] = self.location(start)
            self.skip()
            if self.peek() != ":":
                raise self.error(f"expected ':' after the key {key!r}")
            self.at += 1
            self.skip()
            result[key] = self.read_value(key_path, depth + 1)
            if not self.next_item("}"):
                break
        self.at += 1
        return result

    def key_message(self) -> str:
        if not self.peek():
            return "the file ends inside an object; a '}' is missing"
        if self.peek() == "'":
            return "JSON strings take double quotes"
        if _WORD.match(self.text, self.at):
            return "a key must be in double quotes"
        return f"expected a key or '}}', found {self.peek()!r}"

    def read_array(self, path: Path, depth: int) -> list[Any]:
        items: list[Any] = []
        self.at += 1
        self.skip()
        while self.peek() != "]":
            item_path = (*path, len(items))
            self.document.keys[item_path] = self.location(self.at)
            items.append(self.read_value(item_path, depth + 1))
            if not self.next_item("]"):
                break
        self.at += 1
        return items

    def next_item(self, end: str) -> bool:
        """Pass the comma between items; false when the container ends."""
        before = self.at
        self.skip()
        if self.peek() == end:
            return False
        if self.peek() != ",":
            actual = "the file ends" if not self.peek() else f"found {self.peek()!r}"
            # a comma is missed where it should stand, not where the next line begins
            at = before if self.peek() and "\n" in self.text[before : self.at] else None
            raise self.error(f"expected ',' or {end!r}, {actual}; is a comma missing?", at)
        comma = self.at
        self.at += 1
        self.skip()
        if self.peek() == end:
            message = f"a comma before {end!r}: raw DeepSpeed reads past it, Accelerate and the Trainer fail"
            self.note("json-trailing-comma", comma, message, "remove it")
            return False
        return True

    def read_string(self) -> str:
        start = self.at
        plain = _STRING.match(self.text, start)
        if plain:
            self.at = plain.end()
            return plain[1]
        self.at += 1
        parts: list[str] = []
        while True:
            part = _STRING_PART.match(self.text, self.at)
            if part:
                parts.append(part.group())
                self.at = part.end()
            character = self.peek()
            if character == '"':
                self.at += 1
                return "".join(parts)
            if character == "\\":
                parts.append(self.read_escape())
            elif not character or character == "\n":
                raise self.error("a string without a closing quote", start)
            else:
                raise self.error(f"control character 0x{ord(character):02x} in a string")

    def read_escape(self) -> str:
        letter = self.text[self.at + 1 : self.at + 2]
        if letter in _ESCAPES and letter:
            self.at += 2
            return _ESCAPES[letter]
        digits = self.text[self.at + 2 : self.at + 6]
        if letter == "u" and re.fullmatch(r"[0-9a-fA-F]{4}", digits):
            code = int(digits, 16)
            self.at += 6
            low = re.match(r"\\u([dD][c-fC-F][0-9a-fA-F]{2})", self.text[self.at : self.at + 6])
            if 0xD800 <= code < 0xDC00 and low:
                self.at += 6
                return chr(0x10000 + ((code - 0xD800) << 10) + (int(low.group(1), 16) - 0xDC00))
            return "�" if 0xD800 <= code < 0xE000 else chr(code)
        raise self.error(f"unknown escape \\{letter}; write \\\\ for a backslash")

    def read_word(self) -> Any:
        start = self.at
        match = _WORD.match(self.text, self.at)
        if match is None:
            actual = "the file ends" if not self.peek() else f"found {self.peek()!r}"
            hint = "; JSON strings take double quotes" if self.peek() == "'" else ""
            raise self.error(f"expected a value, {actual}{hint}")
        word = match.group()
        if word in _CONSTANTS:
            self.at = match.end()
            return _CONSTANTS[word]
        if word.lstrip("+-").lower() in ("nan", "infinity", "inf"):
            self.at = match.end()
            fix = "write a finite number, or leave the key out"
            self.note("not-finite", start, f"{word} is not a number in JSON", fix)
            return None
        number = _NUMBER.fullmatch(word)
        if number is None:
            raise self.error(f"{word[:40]} is not a JSON value{_hint(word)}")
        self.at = match.end()
        return self.number(number, start)

    def number(self, match: re.Match[str], start: int) -> int | float:
        text = match.group()
        if len(text) > _MAX_DIGITS:
            raise self.error(f"a number of {len(text)} digits is too long", start)
        if match["fraction"] is None and match["exponent"] is None:
            return int(text)
        number = float(text)
        if not math.isfinite(number):
            raise self.error(f"{text} is too large for a number", start)
        return number


def _hint(word: str) -> str:
    """What a word that is no JSON value was most likely meant to be."""
    if word in _ALMOST:
        return f"; write {_ALMOST[word]}"
    if word[0].isalpha():
        return "; text takes double quotes"
    if len(word) > 40:
        return ""
    try:
        number = int(word, 0) if _RADIX.fullmatch(word) else float(word)
    except ValueError:
        return ""
    return f"; write {int(number) if number == int(number) else number}" if math.isfinite(number) else ""
