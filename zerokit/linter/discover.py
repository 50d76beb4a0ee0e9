"""The files that a path means: itself, or every configuration below a folder that git does not ignore.

A folder that is named is read even where git ignores it. A link that leads out of it is not followed: who
made the folder would decide what of the machine is read, shown and fixed.
"""

from __future__ import annotations

import os
import pathlib
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from zerokit.files import leaves
from zerokit.linter.gitignore import Ignored, ignored_by

_SUFFIXES = (".json", ".yaml", ".yml")
_SKIPPED = frozenset({".git", ".hg", ".venv", "venv", "node_modules", "__pycache__", ".tox", ".mypy_cache"})
_HOSTFILE = re.compile(r"hostfile[^.]*(?:\.(?:txt|cfg|conf|\d\w*))?", re.IGNORECASE)
_MOST_BYTES = 1 << 20


class Files(NamedTuple):
    """The files to check.

    Attributes:
        discovered: those that were found in a folder rather than named, and that folder.
        leaving: links that lead out of the folder they were found in.
    """

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
