"""The command of a trainer in a shell script: how ms-swift's examples, and many a job, say what to train."""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Container, Mapping
from typing import Any, Protocol

from zerokit.errors import FileInputError
from zerokit.strictload import parse_yaml

_CONTINUED = re.compile(r"\\[ \t]*\n")
_OPERATOR = re.compile(r"[;<>|&]+")
_STREAM = re.compile(r"\s\d(?=[<>])")
_ASSIGNED = re.compile(r"[A-Za-z_]\w*=.*", re.DOTALL)


class _Kind(Protocol):
    @property
    def command(self) -> tuple[str, ...]: ...
    @property
    def subcommands(self) -> Container[str]: ...


def command_in(text: str, kinds: Mapping[str, _Kind]) -> tuple[str, tuple[str, ...], dict[str, Any]] | None:
    """The first command that trains: its trainer, words, and arguments by name. Variables stay as they
    are written; nothing is run."""
    for line in _CONTINUED.sub(" ", text).splitlines():
        try:
            words = _words(line)
        except ValueError:  # a quotation over several lines
            continue
        while words and _ASSIGNED.fullmatch(words[0]):
            del words[0]
        for name, kind in kinds.items():
            if words[:1] == [kind.command[0]] and words[1:2] and words[1] in kind.subcommands:
                return name, tuple(words), _by_name(words[2:])
    return None


def _words(line: str) -> list[str]:
    """The words of a line, up to what a shell would do with the command's output or after it."""
    lexer = shlex.shlex(_STREAM.sub(" ", line), posix=True, punctuation_chars=";<>|&")
    lexer.whitespace_split = True
    return list(itertools.takewhile(lambda word: not _OPERATOR.fullmatch(word), lexer))


def _by_name(words: list[str]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    key = ""
    for word in words:
        if word.startswith("--"):
            key, equals, value = word.removeprefix("--").partition("=")
            key = key.replace("-", "_")
            values[key] = _value(value) if equals else True
        elif key:
            before = values[key]
            values[key] = _value(word) if before is True else [*_listed(before), _value(word)]
    return {name: _as_one(value) for name, value in values.items()}


def _as_one(value: Any) -> Any:
    """A list with the words of a substitution, ``$(expr 16 / $n)``, as the text that it is."""
    if isinstance(value, list) and str(value[0]).startswith("$("):
        return " ".join(map(str, value))
    return value


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _value(word: str) -> Any:
    try:
        return parse_yaml(word, "argument").value
    except FileInputError:
        return word
