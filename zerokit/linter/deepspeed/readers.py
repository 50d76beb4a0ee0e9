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

_MARKS = {
    "raw": re.compile(r"\bdeepspeed\.initialize\s*\("),
    "trainer": re.compile(r"\b(?:HfArgumentParser|\w*TrainingArguments|\w*Trainer)\s*\("),
    "accelerate": re.compile(r"\bAccelerator\s*\("),
}
_MOST_SCRIPTS = 100
_MOST_BYTES = 512 << 10


def readers_of(path: str, *, has_auto: bool) -> frozenset[str]:
    """Everybody who may read the file at ``path``.

    Args:
        has_auto: whether the file says ``"auto"`` where ``deepspeed.initialize`` fails on it.
    """
    file = pathlib.Path(path)
    folder = file.parent
    named: set[str] = set()
    in_folder: set[str] = set()
    for parent in (folder, folder.parent):
        for name, text_readers, text in _scripts(str(parent)):
            if file.name in text:
                named |= text_readers
            elif parent == folder and name:
                in_folder |= text_readers
    readers = frozenset(named or in_folder)
    possible = EVERY_READER - {"raw"} if has_auto else EVERY_READER
    if named:
        return readers
    return (readers & possible) or possible


def forget_scripts() -> None:
    """Read the scripts of every folder again."""
    _scripts.cache_clear()


@functools.lru_cache(maxsize=256)
def _scripts(folder: str) -> tuple[tuple[str, frozenset[str], str], ...]:
    return tuple(_read_scripts(pathlib.Path(folder)))


def _read_scripts(folder: pathlib.Path) -> Iterator[tuple[str, frozenset[str], str]]:
    try:
        scripts = sorted(folder.glob("*.py"))[:_MOST_SCRIPTS]
    except OSError:
        return
    for script in scripts:
        try:
            text = read_regular(script, _MOST_BYTES, inside=folder).decode("utf-8", "replace")
        except OSError:
            continue
        readers = frozenset(reader for reader, mark in _MARKS.items() if mark.search(text))
        if readers:
            yield script.name, readers, text
