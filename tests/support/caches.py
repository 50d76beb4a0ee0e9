"""A cache of a test's own."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


def own_cache_but_traces(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing that was measured or kept before is read, but traces that the session made: they are the same
    in every test, and each takes seconds."""
    traces = Path(os.environ["XDG_CACHE_HOME"], "zerokit", "profiles")
    traces.mkdir(parents=True, exist_ok=True)
    own = folder / "cache" / "zerokit"
    own.mkdir(parents=True)
    (own / "profiles").symlink_to(traces)
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
