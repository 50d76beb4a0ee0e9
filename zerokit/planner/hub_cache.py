"""Models that this machine has in its Hugging Face cache, by their repository's name."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_COMMIT = re.compile(r"[0-9a-f]{40}")


def is_repository(name: str) -> bool:
    """Whether it is spelt as a repository of the Hub: ``organisation/name``."""
    return _REPOSITORY.fullmatch(name) is not None and ".." not in name


def cached_config(name: str, environment: Mapping[str, str] | None = None) -> Path | None:
    """The config.json of the repository's main branch in the cache (huggingface_hub 2.4, ``constants.py``);
    None where it is not there."""
    if not is_repository(name):
        return None
    variables = os.environ if environment is None else environment
    home = (
        variables.get("HF_HOME")
        or Path(variables.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "huggingface"
    )
    root = Path(variables.get("HF_HUB_CACHE") or Path(home) / "hub").expanduser()
    folder = root / f"models--{name.replace('/', '--')}"
    with suppress(OSError):
        commit = (folder / "refs" / "main").read_text().strip()
        path = folder / "snapshots" / commit / "config.json"
        if _COMMIT.fullmatch(commit) and path.is_file():
            return path
    return None


def fetch_command(name: str) -> str:
    """What brings the repository's config.json, and nothing else, into the cache."""
    return f"hf download {shlex.quote(name)} config.json"
