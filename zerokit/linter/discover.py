"""The files that a path means: itself, or every configuration below a folder that git does not ignore.

A folder that is named is read even where git ignores it. A link that leads out of it is not followed: who
made the folder would decide what of the machine is read, shown and fixed.
"""

from __future__ import annotations

import fnmatch
import functools
import os
import pathlib
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from zerokit.errors import FileInputError
from zerokit.files import leaves
from zerokit.strictload import read_text

_MOST_IGNORE_BYTES = 64 << 10
_MOST_PATTERNS = 1000  # with wildcards, in one file


@dataclass(frozen=True, slots=True)
class _Pattern:
    number: int
    parts: tuple[str, ...]  # of a path; of a name anywhere where it is one alone
    is_anchored: bool
    folders_only: bool
    ignores: bool


class Ignored:
    """The patterns of one file, or of an option: relative to one folder."""

    def __init__(self, lines: Iterable[str]) -> None:
        self._by_name: dict[str, list[_Pattern]] = {}
        self._others: list[_Pattern] = []
        for number, line in enumerate(lines):
            pattern = _parse(number, line)
            if pattern is None:
                continue
            if not pattern.is_anchored and _is_plain(pattern.parts[0]):
                self._by_name.setdefault(pattern.parts[0], []).append(pattern)
            elif len(self._others) < _MOST_PATTERNS:
                self._others.append(pattern)

    def says(self, path: Sequence[str], *, is_folder: bool) -> bool | None:
        """Whether a path (its parts, from the patterns' folder on) is ignored; None: no pattern is about it.
        The last pattern that matches decides."""
        matching = [
            pattern
            for pattern in (*self._by_name.get(path[-1], ()), *self._others)
            if (is_folder or not pattern.folders_only)
            and (_matches(pattern.parts, path) if pattern.is_anchored else _part(pattern.parts[0], path[-1]))
        ]
        return max(matching, key=lambda pattern: pattern.number).ignores if matching else None


def ignored_by(file: pathlib.Path) -> Ignored:
    """The patterns of a ``.gitignore``; what is a link, as git has it, no file, or too large, has none."""
    try:
        return Ignored(
            () if file.is_symlink() else read_text(file, max_bytes=_MOST_IGNORE_BYTES).splitlines()
        )
    except FileInputError:
        return Ignored(())


def _parse(number: int, line: str) -> _Pattern | None:
    text = re.sub(r"(?<![\\ ]) +$", "", line.rstrip("\r\n")) if line.endswith(" ") else line.rstrip("\r\n")
    if not text or text.startswith("#"):
        return None
    ignores = not text.startswith("!")
    text = text if ignores else text[1:]
    folders_only = text.endswith("/")
    text = text.removesuffix("/")
    parts = tuple(text.removeprefix("/").split("/"))
    if not all(parts):
        return None  # git matches nothing with an empty part
    return _Pattern(number, parts, "/" in text, folders_only, ignores)


def _is_plain(part: str) -> bool:
    return not any(letter in part for letter in "*?[\\")


def _matches(parts: Sequence[str], path: Sequence[str]) -> bool:
    """Whether the parts of a pattern are a path; ``**`` is any number of parts, and of several the last one
    alone is ever tried again, which suffices."""
    at = place = 0
    again: tuple[int, int] | None = None
    while place < len(path):
        if at < len(parts) and parts[at] == "**":
            if at == len(parts) - 1:
                return True  # all that is inside
            again = (at + 1, place)
            at += 1
        elif at < len(parts) and _part(parts[at], path[place]):
            at, place = at + 1, place + 1
        elif again is not None:
            again = (again[0], again[1] + 1)
            at, place = again
        else:
            return False
    return at == len(parts)


def _part(pattern: str, name: str) -> bool:
    if _is_plain(pattern):
        return pattern == name
    compiled = _compiled(pattern)
    return compiled is not None and compiled.fullmatch(name) is not None


@functools.lru_cache(maxsize=4096)
def _compiled(pattern: str) -> re.Pattern[str] | None:
    """A pattern of one part. What stands between two stars is taken where it comes first, and never again
    (the look-ahead of :func:`fnmatch.translate`): the time is that of the name's length times the pattern's.
    """
    out: list[str] = []
    at = 0
    while at < len(pattern):
        letter, at = pattern[at], at + 1
        if letter == "\\":
            if at == len(pattern):
                return None
            out.append(f"[{pattern[at]}]" if pattern[at] in "*?[" else pattern[at])
            at += 1
        elif letter == "[":
            end = pattern.find("]", at + 1 + (pattern[at : at + 1] in ("!", "^")))
            if end < 0:
                return None  # git matches nothing with it
            inside = pattern[at:end]
            out.append("[" + ("!" + inside[1:] if inside.startswith("^") else inside) + "]")
            at = end + 1
        else:
            out.append(letter)
    try:
        return re.compile(fnmatch.translate("".join(out)))
    except re.error:
        return None


_SUFFIXES = (".json", ".yaml", ".yml")
_SKIPPED = frozenset({".git", ".hg", ".venv", "venv", "node_modules", "__pycache__", ".tox", ".mypy_cache"})
_HOSTFILE = re.compile(r"hostfile[^.]*(?:\.(?:txt|cfg|conf|\d\w*))?", re.IGNORECASE)
_MOST_BYTES = 1 << 20


class Files(NamedTuple):
    """The files to check. ``discovered``: those that were found in a folder rather than named, and that
    folder. ``leaving``: links that lead out of the folder they were found in."""

    paths: list[str]
    discovered: dict[str, str]
    leaving: list[str]


def files_of(paths: Sequence[str], *, exclude: Sequence[str] = ()) -> Files:
    """The files that the paths mean."""
    files = Files([], {}, [])
    for path in paths:
        if path == "-" or not pathlib.Path(path).is_dir():
            if path not in files.paths:
                files.paths.append(path)
            continue
        for below in _below(pathlib.Path(path), exclude):
            if leaves(below, path):
                files.leaving.append(below)
            elif below not in files.paths and _is_small_file(below):
                files.paths.append(below)
                files.discovered[below] = path
    return files


def _is_small_file(path: str) -> bool:
    try:
        return pathlib.Path(path).is_file() and pathlib.Path(path).stat().st_size <= _MOST_BYTES
    except OSError:
        return False


def _below(folder: pathlib.Path, exclude: Sequence[str]) -> Iterator[str]:
    """Candidates below a folder, without what .gitignore files and ``exclude`` name."""
    root = folder.resolve()
    patterns = {parent: ignored_by(parent / ".gitignore") for parent in _above(root)}
    excluded = Ignored(exclude)
    for current, folders, names in os.walk(folder):
        parent = root / pathlib.Path(current).relative_to(folder)
        if ".gitignore" in names:
            patterns[parent] = ignored_by(parent / ".gitignore")
        # of the nearest folder first, whose word counts
        near = [
            (patterns[above], parent.relative_to(above).parts)
            for above in (parent, *parent.parents)
            if above in patterns
        ]
        near.insert(0, (excluded, parent.relative_to(root).parts))

        def is_ignored(name: str, is_folder: bool, near: Sequence[tuple[Ignored, tuple[str, ...]]]) -> bool:
            words = (ignored.says((*parts, name), is_folder=is_folder) for ignored, parts in near)
            return next((word for word in words if word is not None), False)

        folders[:] = sorted(
            name for name in folders if name not in _SKIPPED and not is_ignored(name, True, near)
        )
        for name in sorted(names):
            is_candidate = name.endswith(_SUFFIXES) or _HOSTFILE.fullmatch(name)
            if is_candidate and not is_ignored(name, False, near):
                yield str(pathlib.Path(current) / name)


def _above(folder: pathlib.Path) -> Iterator[pathlib.Path]:
    """The folders of the repository that a folder lies in, whose .gitignore files speak of what is in it; a
    file that speaks of the folder itself says nothing: it was named."""
    parents = [folder, *folder.parents]
    root = next((index for index, parent in enumerate(parents) if (parent / ".git").exists()), None)
    for parent in parents[1 : root + 1] if root is not None else []:
        parts = folder.relative_to(parent).parts
        ignored = ignored_by(parent / ".gitignore")
        if not any(ignored.says(parts[: end + 1], is_folder=True) for end in range(len(parts))):
            yield parent
