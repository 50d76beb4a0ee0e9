"""What is installed, found without importing it: DeepSpeed takes seconds."""

from __future__ import annotations

from importlib.util import find_spec

import pytest


def needs(package: str) -> None:
    """Skip the test, or the file, where the package is not installed."""
    if find_spec(package) is None:
        pytest.skip(f"{package} is not installed", allow_module_level=True)
