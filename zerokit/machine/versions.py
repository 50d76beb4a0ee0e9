"""Which DeepSpeed is installed here, against the one that the memory tables were read from."""

from __future__ import annotations

import sys
from pathlib import Path

from zerokit.domain.deepspeed_settings import DEEPSPEED_VERSION


def installed(name: str) -> str | None:
    """The version of an installed distribution, without importing it; ``None``: not installed.

    Read from the name of its ``.dist-info`` folder: ``importlib.metadata`` would take 30 ms to import, a
    tenth of what a plan takes.
    """
    for folder in sys.path:
        if not folder.endswith(("site-packages", "dist-packages")):
            continue
        try:
            names = [entry.name for entry in Path(folder).iterdir()]
        except OSError:
            continue
        for entry in names:
            if entry.startswith(f"{name}-") and entry.endswith(".dist-info"):
                return entry[len(name) + 1 : -len(".dist-info")]
    return None


def deepspeed_note() -> tuple[str, ...]:
    """A line to show when the installed DeepSpeed may allocate otherwise than predicted."""
    found = installed("deepspeed")
    if found is None or found == DEEPSPEED_VERSION:
        return ()
    return (
        f"DeepSpeed {found} is installed; what it allocates is predicted as of {DEEPSPEED_VERSION}, "
        "the version that the tables were read from",
    )
