"""Where the data folders that travel with zerokit lie: templates and recipes.

In a wheel they are inside the package (``zerokit/_data/KIND``); in a checkout they
are top-level folders, where people look for them.
"""

from __future__ import annotations

from pathlib import Path

from zerokit.errors import ZerokitError

KINDS = ("templates", "recipes")


def folder(kind: str) -> Path:
    """The folder that holds the data files of ``kind`` (one of ``KINDS``). Raises ZerokitError: the
    installation is incomplete. ValueError: no such kind (a bug in the caller)."""
    if kind not in KINDS:
        raise ValueError(f"no data folder called {kind!r}; one of {', '.join(KINDS)}")
    package = Path(__file__).resolve().parent
    packaged = package / "_data" / kind
    if packaged.is_dir():
        return packaged
    checkout = package.parent / kind
    # the project file tells a checkout from a stray "recipes" folder in site-packages
    if checkout.is_dir() and (package.parent / "pyproject.toml").is_file():
        return checkout
    raise ZerokitError(f"zerokit's {kind} are missing from {packaged}; reinstall zerokit")
