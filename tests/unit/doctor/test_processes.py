"""A working folder may come from strangers: none of its modules is imported by a process of ours."""

from __future__ import annotations

import sys
import sysconfig
from pathlib import Path

import pytest

from tests.support.strangers_folder import MAIN, hostile_folder, run_commands, run_in
from zerokit.doctor.processes import own_process


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    """A folder whose modules say so when they are imported."""
    return hostile_folder(tmp_path)


_READING = (
    ("plan", "--params", "1b", "--gpus", "2", "--gpu", "h200", "--out", "planned"),
    ("plan", "--recipe", "mine.yaml", "--out", "planned"),
    ("plan", "--recipe", "zerokit-plan/plan.yaml", "--out", "planned"),
    ("estimate", "--deepspeed", "ds.json", "--params", "1b", "--gpus", "2", "--gpu", "h200"),
    ("size", "--params", "7b", "--gpu", "h200"),
    ("check",),
    ("check", ".", "hostfile", "accelerate.yaml", "ds.json", "mine.yaml", "config.json"),
    ("emit", "sbatch", "--style", "none", "scripts/train.py"),
    ("emit", "kubernetes", "--image", "i", "--style", "none", "scripts/train.py"),
    ("emit", "deepspeed"),
    ("emit", "accelerate"),
    ("emit", "hostfile", "a", "b"),
    ("report", "run"),
    ("report", "--html", "page.html", "run"),
    ("recipes", "list"),
    ("recipes", "show", "./mine.yaml"),
    ("recipes", "check", "./mine.yaml"),
    ("models",),
    ("gpus",),
    ("doctor",),
    ("launch", "--device", "cpu", "--dry-run", "--style", "raw", "scripts/train.py"),
    ("launch", "--device", "cpu", "--dry-run", "--hostfile", "hostfile", "scripts/train.py"),
    ("tune", "--dry-run", "--style", "raw", "scripts/train.py"),
)


def test_reading_runs_nothing_of_it(hostile: Path) -> None:
    run_commands(hostile, _READING)


def test_a_process_of_ours(hostile: Path) -> None:
    assert "zerokit" in run_in(hostile, *own_process("zerokit", "--version"))


def test_python_m_zerokit(hostile: Path) -> None:
    for path in (hostile / "zerokit").iterdir():  # a package of that name there is what was asked for
        path.unlink()
    (hostile / "zerokit").rmdir()
    if not list(Path(sysconfig.get_path("purelib")).glob("*zerokit*")):
        pytest.skip("zerokit is not installed for this Python")
    assert "zerokit" in run_in(hostile, sys.executable, "-m", "zerokit", "--version")


def test_launch_with_a_recipe(hostile: Path) -> None:
    options = ("--recipe", "cpu-demo", "--device", "cpu", "--style", "raw", "--dry-run")
    said = run_in(hostile, *MAIN, "launch", *options, "scripts/train.py")
    assert "scripts/train.py" in said
