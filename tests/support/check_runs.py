"""``zerokit check`` run in this process, and the files it is given."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from zerokit.cli import run

GOOD = {"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": True}, "zero_optimization": {"stage": 2}}


def check(*arguments: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    """Exit code, standard output and standard error."""
    code = run(["check", *arguments])
    out, err = capsys.readouterr()
    return code, out, err


def write(folder: Path, name: str, body: str | dict[str, Any]) -> str:
    """The path of a file with this text, or this object as JSON."""
    path = folder / name
    path.write_text(body if isinstance(body, str) else json.dumps(body, indent=2))
    return str(path)
