"""Memory snapshots that were recorded on a GPU, with what PyTorch's own counters said beside them."""

from __future__ import annotations

import functools
import json
import pickle
import tarfile
import tempfile
from pathlib import Path
from typing import Any

_DATA = Path(__file__).parents[1] / "data" / "snapshots"
TRUTH: dict[str, dict[str, Any]] = json.loads((_DATA / "truth.json").read_text())


@functools.cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    folder = tempfile.TemporaryDirectory(prefix="zerokit-snapshots-")
    with tarfile.open(_DATA / "snapshots.tar.xz") as archive:
        archive.extractall(folder.name, filter="data")
    return folder


def recorded(name: str) -> Path:
    """A recorded snapshot's file."""
    return Path(_folder().name) / f"{name}.pickle"


def unpickled(name: str) -> dict[str, Any]:
    """A recorded snapshot as Python's own pickle reads it."""
    value: dict[str, Any] = pickle.loads(recorded(name).read_bytes())  # noqa: S301
    return value


def written(path: Path, snapshot: Any, protocol: int = 4) -> Path:
    """A file of a snapshot, as ``_dump_snapshot`` writes it."""
    path.write_bytes(pickle.dumps(snapshot, protocol))
    return path
