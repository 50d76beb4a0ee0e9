"""Traced profiles of the catalogue's models, committed so that planning needs no torch.

``profiles/NAME.json.gz`` is written by ``python -m tools.trace_catalogue NAME``; where releases of
Transformers differ, ``NAME.before-RELEASE.json.gz`` beside it is of those before RELEASE (``--before``). The
first line of a file is the profile's document (:mod:`zerokit.domain.profile_json`), but under
``parameter_sets`` stands the number of the line that holds each set. A plan needs one set of a dozen, and
they are most of the file. Under ``shape`` stands the model's shape where its family has no row in
``FAMILIES``, from which Transformers would have to build it.

``python -m tools.sweep_transformers`` traces models of every type with the release that is installed beside
it, and sets what forward and backward allocate against the catalogue's. Run with 4.56.2, 5.17.0 and 5.23.0,
it found two types that changed, :data:`CHANGED` (which were then traced with releases between these); all
others stayed within half a percent. Models of the two may have a profile for each range:
``profiles/NAME.before-5.20.json.gz``.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path
from typing import Any

from zerokit.domain.model_shape import ModelShape, shape_from_json
from zerokit.domain.profile import ModelProfile
from zerokit.domain.profile_json import from_json, to_json

OLDEST = "4.56"
"""The oldest release that was swept."""
NEWEST = "5.23"
"""The newest release that was swept."""
OLDEST_COMPARED = {
    "bart": "5.17",
    "bert": "5.17",
    "deepseek_v2": "5.17",
    "deepseek_v3": "5.17",
    "distilbert": "5.17",
    "gpt_oss": "5.0",
    "ministral3": "5.17",
    "mixtral": "5.0",
    "opt": "5.17",
    "qwen3_moe": "5.0",
    "roberta": "5.17",
    "xlm-roberta": "5.17",
}
"""Model type -> the oldest release that was compared, where the code of 4.56 could not be traced: it reads
values of its inputs, runs as many operators as experts are chosen, or does not know the type."""
CHANGED = {"gemma2": ("5.21",), "t5": ("5.0", "5.15", "5.20")}
"""Model type -> the releases whose code keeps more or less for backward than the one before."""


def alike(model_type: str, one: str, other: str) -> bool:
    """Whether two releases are known to allocate alike for models of a type."""
    older, newer = sorted((one, other), key=_release)
    oldest = OLDEST_COMPARED.get(model_type, OLDEST)
    if is_before(older, oldest) or is_before(NEWEST, newer):
        return False
    return not any(is_before(older, at) and not is_before(newer, at) for at in CHANGED.get(model_type, ()))


def is_before(version: str, release: str, places: int = 2) -> bool:
    """Whether a version is older than a release, by so many numbers: 5.19.1 than 5.20."""
    return _release(version, places) < _release(release, places)


def _release(version: str, places: int = 2) -> tuple[int, ...]:
    """``(5, 19)`` of ``5.19.1``; empty, before all, where it is no number."""
    parts = [re.match(r"\d+", part) for part in version.split(".")[:places]]
    return tuple(int(part[0]) for part in parts if part) if all(parts) else ()


FOLDER = Path(__file__).parent / "profiles"
_SUFFIX, _BEFORE = ".json.gz", ".before-"
_GZIP = zlib.MAX_WBITS | 16  # zlib reads gzip itself, and the gzip module takes longer to import than to use


def names() -> tuple[str, ...]:
    """The models with a committed profile."""
    stems = (path.name.removesuffix(_SUFFIX) for path in FOLDER.glob(f"*{_SUFFIX}"))
    return tuple(sorted(name for name in stems if _BEFORE not in name))


@lru_cache(maxsize=8)
def load(name: str, transformers: str | None = None) -> ModelProfile | None:
    """The profile of a catalogue model, or ``None`` where none is committed. ``transformers``: the version
    whose code is meant; the newest that was traced unless given."""
    path = path_of(name, transformers)
    return from_json(_read(path)) if path.is_file() else None


def shape(name: str, transformers: str | None = None) -> ModelShape | None:
    """The shape that stands beside the profile of :func:`load`; ``None`` where none does."""
    path = path_of(name, transformers)
    stored = _read(path).get("shape") if path.is_file() else None
    return None if stored is None else shape_from_json(stored)


@lru_cache(maxsize=8)
def _read(path: Path) -> dict[str, Any]:
    return document(path.read_bytes())


def path_of(name: str, transformers: str | None = None) -> Path:
    """The file of a model's profile for a version of Transformers: ``NAME.before-5.20.json.gz`` for 5.19."""
    if transformers is not None:
        for release in ranges(name):
            if is_before(transformers, release):
                return FOLDER / f"{name}{_BEFORE}{release}{_SUFFIX}"
    return FOLDER / f"{name}{_SUFFIX}"


def ranges(name: str) -> tuple[str, ...]:
    """The releases in which what this model allocates changed, rising: a profile for those before each."""
    head = f"{name}{_BEFORE}"
    range_names = [path.name[len(head) : -len(_SUFFIX)] for path in FOLDER.glob(f"{head}*{_SUFFIX}")]
    return tuple(sorted(range_names, key=lambda release: [int(part) for part in release.split(".")]))


def document(packed: bytes) -> dict[str, Any]:
    """The document in a profile's file, as :func:`zerokit.domain.profile_json.to_json` makes it. Its
    parameter sets are read when first asked for."""
    first, *lines = zlib.decompress(packed, _GZIP).split(b"\n")
    body: dict[str, Any] = json.loads(first)
    return {**body, "parameter_sets": _ParameterSets(body["parameter_sets"], lines)}


def packed(profile: ModelProfile, shape: ModelShape | None = None) -> bytes:
    """A profile's file; the same profile gives the same bytes. ``shape``: of the model, to stand beside."""
    import gzip

    body = to_json(profile)
    if shape is not None:
        body["shape"] = asdict(shape)
    lines: dict[str, int] = {}
    numbers = {
        key: lines.setdefault(_text(rows), len(lines) + 1) for key, rows in body["parameter_sets"].items()
    }
    text = "\n".join((_text({**body, "parameter_sets": numbers}), *lines))
    return gzip.compress(text.encode(), compresslevel=9, mtime=0)


def _text(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))


class _ParameterSets(Mapping[str, list[Any]]):
    """The parameter sets of a profile's file, each read when it is asked for."""

    def __init__(self, numbers: Mapping[str, int], lines: Sequence[bytes]) -> None:
        self._numbers = numbers
        self._lines = lines

    def __getitem__(self, key: str) -> list[Any]:
        rows: list[Any] = json.loads(self._lines[self._numbers[key] - 1])
        return rows

    def __iter__(self) -> Iterator[str]:
        return iter(self._numbers)

    def __len__(self) -> int:
        return len(self._numbers)
