"""A trainer's file with the lines of a plan changed: comments, order and all other lines stay as they are."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from zerokit.errors import FileInputError, InputError
from zerokit.strictload import Document, Lines, parse_yaml
from zerokit.trainer_files.kinds import KINDS
from zerokit.trainer_files.reading import TrainerFile
from zerokit.values import frozen_dataclass

_SCALAR = re.compile(
    r"""[ \t]*(?:"(?:[^"\\\n]|\\.)*"|'(?:[^'\n]|'')*'|[^\s#\[{|>&*!'"][^\n#]*?)?(?=[ \t]+#|[ \t\r]*$)""",
    re.MULTILINE,
)


@frozen_dataclass
class Change:
    """A key that a plan sets.

    Attributes:
        before, after: its values; None: the file has no such key, or loses it.
        why: in a few words.
    """

    key: str
    before: Any
    after: Any
    why: str

    def to_dict(self) -> dict[str, Any]:
        """JSON of it, as it is published."""
        return {"key": self.key, "before": self.before, "after": self.after, "why": self.why}


def changes(file: TrainerFile, wanted: Mapping[str, tuple[Any, str]]) -> tuple[Change, ...]:
    """What of a file differs from what is wanted; ``wanted``: setting (``micro_batch``,
    ``gradient_accumulation``, ``checkpointing``, ``deepspeed``) -> value, and why."""
    row, values = KINDS[file.trainer.name], file.document.value
    found = []
    for name, (value, why) in wanted.items():
        for key, after in row.keys_of(name, value).items():
            known = file.trainer.keys.get(key)
            now = values.get(key, known.default_of(file.stage) if known is not None else None)
            if isinstance(after, bool):
                now = bool(now)
            if now != after and not (after is None and key not in values):
                found.append(Change(key=key, before=values.get(key), after=after, why=why))
    return tuple(found)


def changed_text(document: Document, asked: Iterable[Change]) -> str:
    """The document's text with the changes made. Raises InputError: a value is written in a way that cannot
    be changed line by line."""
    wanted, text, keys = dict(document.value), document.text, []
    try:
        for change in asked:
            keys.append(change.key)
            text = _changed(parse_yaml(text, document.path), change)
            wanted.pop(change.key, None)
            wanted |= {} if change.after is None else {change.key: change.after}
        is_right = parse_yaml(text, document.path).value == wanted
    except FileInputError:
        is_right = False
    if not is_right:
        by_hand = f"{', '.join(keys)}: written in a way that no line of it can be changed; change it by hand"
        raise InputError(f"{document.path}: {by_hand}")
    return text


def changed_words(words: Iterable[str], asked: Sequence[Change]) -> tuple[str, ...]:
    """A command's words with the changes made: its other arguments, then the changed ones."""
    changed, kept, dropped = {change.key for change in asked}, list[str](), False
    for word in words:
        if word.startswith("--"):
            dropped = word[2:].partition("=")[0].replace("-", "_") in changed
        if not dropped:
            kept.append(word)
    for change in asked:
        kept += [] if change.after is None else [f"--{change.key}", _scalar(change.after)]
    return tuple(kept)


def _changed(document: Document, change: Change) -> str:
    text, lines, newline = document.text, Lines(document.text), "\r\n" if "\r\n" in document.text else "\n"
    line = "" if change.after is None else f"{change.key}: {_scalar(change.after)}"
    if change.key not in document.value:
        return f"{text.rstrip()}{newline}{line}{newline}"
    if change.after is None or isinstance(document.value[change.key], dict | list):
        start, end = _extent(document, change.key, lines)
        return text[:start] + (line + newline if line else "") + text[end:]
    at = lines.offset(document.keys[(change.key,)])
    colon = text.index(":", at + len(change.key)) + 1
    old = _SCALAR.match(text, colon)
    return text if old is None else f"{text[:colon]} {_scalar(change.after)}{text[old.end() :]}"


def _extent(document: Document, key: str, lines: Lines) -> tuple[int, int]:
    """Where the lines of a top-level key begin and end; comments before the next key are that one's."""
    text, start = document.text, lines.offset(document.keys[(key,)])
    after = sorted(lines.offset(at) for path, at in document.keys.items() if len(path) == 1)
    end = next((at for at in after if at > start), len(text))
    block = text[start:end].splitlines(keepends=True)
    while len(block) > 1 and (not block[-1].strip() or block[-1].lstrip().startswith("#")):
        end -= len(block.pop())
    return start, end


def _scalar(value: Any) -> str:
    if (
        isinstance(value, str)
        and re.fullmatch(r"[\w./-]+", value)
        and value.lower() not in ("true", "false", "null")
    ):
        return value
    return json.dumps(value)
