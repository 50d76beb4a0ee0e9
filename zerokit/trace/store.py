"""Write and read profiles: the catalogue's, and a cache of those traced for a user's config."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from zerokit.core.model import ModelProfile
from zerokit.core.profile_json import FORMAT, from_json, to_json

_RECORDED = "leaves"
"""Changed when traces begin to record what cached profiles of the same format lack."""


def write(profile: ModelProfile, place: Path) -> None:
    """Write a profile; the same profile gives the same bytes, and a half-written file never shows."""
    text = json.dumps(to_json(profile), separators=(",", ":"))
    data = gzip.compress(text.encode(), compresslevel=9, mtime=0)
    place.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=place.parent, prefix=place.name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        Path(temporary).replace(place)
    except BaseException:
        with contextlib.suppress(OSError):
            Path(temporary).unlink()
        raise


def cache_folder() -> Path:
    """Where profiles of users' own configs are kept between runs."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "zerokit" / "profiles"


def cache_place(hf_config: Mapping[str, Any], head: str | None) -> Path:
    """The cache file of a config: named by what decides the trace."""
    from importlib.metadata import version

    facts = [FORMAT, _RECORDED, dict(hf_config), head, version("torch"), version("transformers")]
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()
    return cache_folder() / f"{digest[:32]}.json.gz"


def read(place: Path) -> ModelProfile | None:
    """A cached profile; ``None`` when there is none or it cannot be read."""
    try:
        return from_json(json.loads(gzip.decompress(place.read_bytes())))
    except (OSError, EOFError, ValueError, KeyError):
        return None


def merged(profiles: Sequence[ModelProfile]) -> ModelProfile:
    """One profile with the traces of all; of the same model."""
    first = profiles[0]
    return replace(
        first,
        traces={k: p.traces[k] for p in profiles for k in p.traces},
        ties={k: v for p in profiles for k, v in p.ties.items()},
        parameter_sets={k: v for p in profiles for k, v in p.parameter_sets.items()},
    )
