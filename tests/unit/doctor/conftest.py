"""A machine of its own for every test of the doctor."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.laid_out_machine import Machine


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """A machine without GPUs, tools or settings."""
    return Machine(tmp_path)
