"""The files that a path means: itself, or every configuration below a folder that git does not ignore.

A folder that is named is read even where git ignores it.
"""

from __future__ import annotations

import os
import pathlib
import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pathspec

_SUFFIXES = (".json", ".yaml", ".yml")
_SKIPPED = frozenset({".git", ".hg", ".venv", "venv", "node_modules", "__pycache__", ".tox", ".mypy_cache"})
_HOSTFILE = re.compile(r"hostfile[^.]*(?:\.(?:txt|cfg|conf|\d\w*))?", re.IGNORECASE)
_MOST_BYTES = 1 << 20


def files_of(paths: Sequence[str], *, exclude: Sequence[str] = ()) -> tuple[list[str], set[str]]:
    """The files to check, and which of them were found in a folder rather than named."""
    named: list[str] = []
    discovered: set[str] = set()
    for path in paths:
        if path != "-" and pathlib.Path(path).is_dir():
            below = [file for file in _below(pathlib.Path(path), exclude) if file not in named]
            named += below
            discovered |= set(below)
        elif path not in named:
            named.append(path)
    return named, discovered


def _below(folder: pathlib.Path, exclude: Sequence[str]) -> Iterator[str]:
    """Candidates below a folder, without what .gitignore files and ``exclude`` name."""
    import pathspec

    specs: dict[pathlib.Path, pathspec.GitIgnoreSpec] = dict(_above(folder.resolve()))
    excluded = pathspec.GitIgnoreSpec.from_lines(exclude)
    for current, folders, names in os.walk(folder):
        parent = pathlib.Path(current)
        resolved = parent.resolve()
        if ".gitignore" in names:
            specs[resolved] = _spec(resolved / ".gitignore")

        def is_ignored(name: str, is_folder: bool, parent: pathlib.Path = parent) -> bool:
            mark = "/" if is_folder else ""
            relative = (parent / name).relative_to(folder).as_posix() + mark
            if excluded.match_file(relative):
                return True
            path = parent.resolve() / name
            return any(
                spec.match_file(path.relative_to(root).as_posix() + mark)
                for root, spec in specs.items()
                if path.is_relative_to(root)
            )

        folders[:] = sorted(name for name in folders if name not in _SKIPPED and not is_ignored(name, True))
        for name in sorted(names):
            if name.endswith(_SUFFIXES) or _HOSTFILE.fullmatch(name):
                path = parent / name
                if not is_ignored(name, False) and path.is_file() and path.stat().st_size <= _MOST_BYTES:
                    yield str(path)


def _above(folder: pathlib.Path) -> Iterator[tuple[pathlib.Path, pathspec.GitIgnoreSpec]]:
    """The .gitignore files of the repository that a folder lies in."""
    parents = [folder, *folder.parents]
    root = next((index for index, parent in enumerate(parents) if (parent / ".git").exists()), None)
    for parent in parents[1 : root + 1] if root is not None else []:
        if (parent / ".gitignore").is_file():
            spec = _spec(parent / ".gitignore")
            if parent == folder or not spec.match_file(folder.relative_to(parent).as_posix() + "/"):
                yield parent, spec


def _spec(file: pathlib.Path) -> pathspec.GitIgnoreSpec:
    import pathspec

    try:
        lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    return pathspec.GitIgnoreSpec.from_lines(lines)
