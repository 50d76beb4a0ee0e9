"""The user's prepared data sets, in a cache that a rehearsal may write into.

Every folder is a new one and every file a link: what is there is found, and what ``Dataset.map`` puts beside
it is gone with the temporary folder.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

VARIABLE = "HF_DATASETS_CACHE"
_LEFT_OUT = "downloads"


def of_user(environment: Mapping[str, str]) -> Path:
    """Where ``datasets`` keeps what it prepared (``datasets/config.py``, HF_DATASETS_CACHE)."""
    named = environment.get(VARIABLE)
    if named:
        return Path(named).expanduser()
    home = environment.get("HF_HOME")
    if home:
        return Path(home).expanduser() / "datasets"
    caches = environment.get("XDG_CACHE_HOME") or Path(environment.get("HOME", "~")).expanduser() / ".cache"
    return Path(caches, "huggingface", "datasets")


def link(cache: Path, folder: Path) -> None:
    """Make ``folder`` look like ``cache``, as far as that can be read."""
    for source, folders, files in os.walk(cache):
        if Path(source) == cache:
            folders[:] = [folder_name for folder_name in folders if folder_name != _LEFT_OUT]
        target = folder / Path(source).relative_to(cache)
        target.mkdir(parents=True, exist_ok=True)
        for name in files:
            if not name.endswith(".lock"):
                (target / name).symlink_to(Path(source, name).absolute())
