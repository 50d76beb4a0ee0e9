"""Who will read a DeepSpeed JSON: ``deepspeed.initialize`` in a script, the Trainer, or Accelerate.

Inferred from what lies beside the file: scripts that name it, else scripts in its folder, and whether it
says ``"auto"``, which ``deepspeed.initialize`` cannot fill.
"""

from __future__ import annotations

import functools
import pathlib
import re
from collections.abc import Iterator

from zerokit.files import read_regular
from zerokit.rules import EVERY_READER
from zerokit.values import frozen_dataclass

_MARKS = {
    "raw": re.compile(r"\bdeepspeed\.initialize\s*\("),
    "trainer": re.compile(r"\b(?:HfArgumentParser|\w*TrainingArguments|\w*Trainer)\s*\("),
    "accelerate": re.compile(r"\bAccelerator\s*\("),
}
_MOST_SCRIPTS = 100
_MOST_BYTES = 512 << 10


@frozen_dataclass
class Script:
    """A script beside a file; ``readers``: which of those that read such files it uses."""

    path: pathlib.Path
    readers: frozenset[str]
    text: str


def scripts_of(path: str) -> tuple[list[Script], bool]:
    """Scripts that may read the file at ``path``, and whether they name it; else they lie in its folder."""
    file = pathlib.Path(path)
    folder = file.parent
    scripts = [
        script for parent in dict.fromkeys((folder, folder.parent)) for script in _scripts(str(parent))
    ]
    named = [script for script in scripts if file.name in script.text]
    return named or [script for script in scripts if script.path.parent == folder], bool(named)


def readers_of(path: str, *, has_auto: bool) -> frozenset[str]:
    """Everybody who may read the file at ``path``; ``has_auto``: whether the file says ``"auto"`` where
    ``deepspeed.initialize`` fails on it."""
    scripts, are_sure = scripts_of(path)
    readers = frozenset[str]().union(*(script.readers for script in scripts))
    possible = EVERY_READER - {"raw"} if has_auto else EVERY_READER
    return readers if are_sure else (readers & possible) or possible


def forget_scripts() -> None:
    """Read the scripts of every folder again."""
    _scripts.cache_clear()


@functools.lru_cache(maxsize=256)
def _scripts(folder: str) -> tuple[Script, ...]:
    return tuple(_read_scripts(pathlib.Path(folder)))


def _read_scripts(folder: pathlib.Path) -> Iterator[Script]:
    try:
        paths = sorted(folder.glob("*.py"))[:_MOST_SCRIPTS]
    except OSError:
        return
    for path in paths:
        try:
            text = read_regular(path, _MOST_BYTES, inside=folder).decode("utf-8", "replace")
        except OSError:
            continue
        readers = frozenset(reader for reader, mark in _MARKS.items() if mark.search(text))
        if readers:
            yield Script(path=path, readers=readers, text=text)
