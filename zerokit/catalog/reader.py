"""Reads a catalogue file strictly: every key known, every value of its kind, errors with file:line;
and compares names as users write them."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from zerokit.strictload import Document, load_yaml
from zerokit.values import frozen_dataclass

_WANTED = {
    "text": "text",
    "texts": "a list of texts",
    "number": "a positive number",
    "whole": "a positive whole number",
    "flag": "true or false",
    "mapping": "a mapping",
}


_NAME = re.compile(r"[a-z0-9][a-z0-9._-]*")


def entry_names(folder: Path) -> tuple[str, ...]:
    """The names of a catalogue's files, sorted."""
    return tuple(sorted(path.stem for path in folder.glob("*.yaml")))


def has_entry(folder: Path, text: str) -> bool:
    """Whether a text is exactly the name of a catalogue's file."""
    return _NAME.fullmatch(text) is not None and (folder / f"{text}.yaml").is_file()


@frozen_dataclass
class Field:
    """What one top-level key of a file may hold. ``kind``: ``text``, ``texts`` (a list), ``number``
    (positive), ``whole`` (positive), ``flag`` or ``mapping`` (anything below it). ``choices``: the only texts
    allowed, when not empty."""

    kind: str
    required: bool = True
    choices: tuple[str, ...] = ()


def read(path: Path, fields: Mapping[str, Field]) -> Document:
    """The file, its top-level keys and values checked against ``fields``. Raises FileInputError: not
    readable, not YAML, or a key or value that is unknown, missing, repeated or of the wrong kind; with the
    line."""
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
    from zerokit.suggest import alike

    close = alike(key, fields)
    return f"; did you mean {close[0]!r}?" if close else f"; use one of {', '.join(fields)}"


Words: TypeAlias = tuple[str, ...]

_WORD = re.compile(r"[a-z]+|\d+(?:\.\d+)*|/")
_SEPARATORS = re.compile(r"[\s\-_.,()]*")
_MOST_LISTED = 10


def split(text: str) -> Words:
    """The words of a name in lower case; empty where it holds a character that no name has. A slash is a word
    of its own: it parts a repository from its organisation."""
    text = text.strip().rstrip("/").lower()
    words, at = [], 0
    while at < len(text):
        separators = _SEPARATORS.match(text, at)
        at = separators.end() if separators else at
        if at == len(text):
            break
        word = _WORD.match(text, at)
        if word is None:
            return ()
        words.append(word.group())
        at = word.end()
    return tuple(words)


def contains(label: Words, words: Words) -> bool:
    """Whether ``words`` stand in ``label`` one after the other: an incomplete name of it. A whole number
    stands for its versions too: ``llama 3`` is part of ``llama-3.1-8b``."""
    return skipped(label, words) == 0


def skipped(label: Words, words: Words) -> int | None:
    """The fewest words of ``label`` that stand between ``words``, in their order; None: they are not in it.

    A number stays with the letters after it (``14b``): ``qwen 14b`` is found in ``qwen-2.5-14b``, with one
    word skipped, and ``llama 3b`` not in ``llama-3-8b``.
    """
    fewest: dict[int, int] = {at: 0 for at, word in enumerate(label) if _begins(word, words[0])}
    for before, word in itertools.pairwise(words):
        following: dict[int, int] = {}
        for start, gap in fewest.items():
            end = start + 2 if before[0].isdigit() and word.isalpha() else len(label)
            for at in range(start + 1, min(end, len(label))):
                if _begins(label[at], word):
                    following[at] = min(following.get(at, len(label)), gap + at - start - 1)
        fewest = following
    return min(fewest.values(), default=None)


def could_mean(
    words_skipped: Iterable[tuple[str, int | None]], *, closest_only: bool = True
) -> tuple[str, ...]:
    """The names that an incomplete one could mean, of all names with what :func:`skipped` says of a label of
    theirs: those in which the words stand in order, the fewest skipped first. ``closest_only``: those with
    nothing skipped alone, where there are any."""
    least: dict[str, int] = {}
    for name, between in words_skipped:
        if between is not None:
            least[name] = min(between, least.get(name, between))
    exact = [name for name in least if not least[name]] if closest_only else []
    return tuple(exact or sorted(least, key=lambda name: least[name]))


def _begins(word: str, prefix: str) -> bool:
    return word == prefix or (prefix.isdigit() and word.startswith(f"{prefix}."))


def incomplete(candidates: Sequence[str]) -> str:
    """The part of a message that lists what an incomplete name could mean."""
    if len(candidates) == 1:
        return f"is incomplete: it could be {candidates[0]}; write that name"
    more = f" and {len(candidates) - _MOST_LISTED} more" if len(candidates) > _MOST_LISTED else ""
    return f"could be any of: {', '.join(candidates[:_MOST_LISTED])}{more}; name one of them"


def suggestions(text: str, names: Sequence[str]) -> str:
    """``did you mean …?`` with a space after it, or nothing where no name is alike."""
    typed = text.lower().rpartition("/")[2]
    from zerokit.suggest import alternatives, misspelt, much_alike

    close = misspelt(typed, names, most=_MOST_LISTED, unfinished=True) or much_alike(typed, names)
    return f"did you mean {alternatives(close)}? " if close else ""
