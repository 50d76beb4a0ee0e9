"""A working folder from strangers, with real launchers, ranks and torch: none of its modules is imported."""

from __future__ import annotations

import ast
import os
from pathlib import Path

import pytest

from tests.support.strangers_folder import MAIN, hostile_folder, run_commands, run_in


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    """A folder whose modules say so when they are imported."""
    return hostile_folder(tmp_path)


_READING_WITH_TORCH = (
    ("check", "--deep", "ds.json", "accelerate.yaml"),
    ("plan", "--model", "config.json", "--gpus", "2", "--gpu", "h200", "--out", "planned"),
    ("rehearse", "--gpu", "h200", "scripts/train.py"),
)


@pytest.mark.slow
def test_reading_with_torch_runs_nothing_of_it(hostile: Path) -> None:
    """``rehearse`` runs the script that is named, and sees its folder alone."""
    pytest.importorskip("deepspeed")
    run_commands(hostile, _READING_WITH_TORCH)


@pytest.mark.slow
def test_measuring(hostile: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    run_in(hostile, *MAIN, "doctor", "--measure")


@pytest.mark.parametrize(
    "launcher", ["deepspeed", pytest.param("accelerate", marks=pytest.mark.slow), "torchrun"]
)
def test_launchers_and_ranks(hostile: Path, launcher: str) -> None:
    """Ranks see the script's folder, as with ``python scripts/train.py``, and not the working folder."""
    pytest.importorskip("deepspeed")
    script = hostile / "scripts" / "train.py"
    script.write_text(
        "import os, sys, pathlib, beside\n"
        "seen = repr((sys.path, os.environ.get('PYTHONPATH')))\n"
        "pathlib.Path('path-' + os.environ['RANK']).write_text(seen)\n"
    )
    (script.parent / "beside.py").write_text("")
    run_in(hostile, *MAIN, "launch", "--device", "cpu", "--num-ranks", "2", "--style", "none", "--no-plan",
        "--launcher", launcher, "--run-dir", "run", "scripts/train.py")  # fmt: skip
    for rank in (0, 1):
        paths, python_path = ast.literal_eval((hostile / f"path-{rank}").read_text())
        assert paths[0] == str(script.parent) and str(hostile) not in paths and "/" not in paths
        assert python_path == os.environ.get("PYTHONPATH")
