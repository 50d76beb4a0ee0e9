"""Traced profiles of the catalogue's models, committed so that planning needs no torch.

``profiles/NAME.json.gz`` is written by ``python -m tools.trace_catalogue NAME``.
"""

from __future__ import annotations

import json
import zlib
from functools import lru_cache
from pathlib import Path

from zerokit.domain.profile import ModelProfile
from zerokit.domain.profile_json import from_json

FOLDER = Path(__file__).parent / "profiles"
_GZIP = zlib.MAX_WBITS | 16  # zlib reads gzip itself, and the gzip module takes longer to import than to use


def names() -> tuple[str, ...]:
    """The models with a committed profile."""
    return tuple(sorted(place.name.removesuffix(".json.gz") for place in FOLDER.glob("*.json.gz")))


@lru_cache(maxsize=8)
def load(name: str) -> ModelProfile | None:
    """The profile of a catalogue model, or ``None`` where none is committed."""
    place = FOLDER / f"{name}.json.gz"
    if not place.is_file():
        return None
    return from_json(json.loads(zlib.decompress(place.read_bytes(), _GZIP)))
