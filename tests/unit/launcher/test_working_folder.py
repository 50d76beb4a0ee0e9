"""A working folder may come from strangers: none of its modules is imported by a process of ours."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from zerokit.launcher.own_process import own_process

ROOT = Path(__file__).parents[3]
# What the console command does: its folder, not the working folder, comes first.
_COMMAND = f"import sys; sys.path[:1] = [{str(ROOT)!r}]; from zerokit.cli import main; main()"
MAIN = [sys.executable, "-c", _COMMAND]
_NAMES = (
    "typing",
    "torch",
    "yaml",
    "click",
    "json",
    "dataclasses",
    "deepspeed",
    "accelerate",
    "rich",
    "pydantic",
)


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    """A folder whose modules say so when they are imported."""
    folder = tmp_path / "repository"
    (folder / "zerokit").mkdir(parents=True)
    text = f"open({str(tmp_path / 'imported')!r}, 'a').write(__name__ + '\\n')\nraise ImportError(__name__)\n"
    for name in (*_NAMES, "zerokit/__init__", "zerokit/cli", "zerokit/__main__"):
        (folder / f"{name}.py").write_text(text)
    (folder / "scripts").mkdir()
    (folder / "scripts" / "train.py").write_text("print('runs')\n")
    return folder


def run(folder: Path, *command: str, code: int = 0) -> str:
    environment = {**os.environ, "XDG_CACHE_HOME": str(folder / "cache")}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == code, done.stdout + done.stderr
    imported = folder.parent / "imported"
    assert not imported.exists(), imported.read_text()
    return done.stdout + done.stderr


def test_a_process_of_ours(hostile: Path) -> None:
    assert "zerokit" in run(hostile, *own_process("zerokit", "--version"))


def test_python_m_zerokit(hostile: Path) -> None:
    for path in (hostile / "zerokit").iterdir():  # a package of that name there is what was asked for
        path.unlink()
    (hostile / "zerokit").rmdir()
    if not list(Path(sysconfig.get_path("purelib")).glob("*zerokit*")):
        pytest.skip("zerokit is not installed for this Python")
    assert "zerokit" in run(hostile, sys.executable, "-m", "zerokit", "--version")


def test_launch_with_a_recipe(hostile: Path) -> None:
    options = ("--recipe", "cpu-demo", "--device", "cpu", "--style", "raw", "--dry-run")
    said = run(hostile, *MAIN, "launch", *options, "scripts/train.py")
    assert "scripts/train.py" in said


@pytest.mark.slow
def test_measuring(hostile: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    run(hostile, *MAIN, "doctor", "--measure")


@pytest.mark.parametrize("launcher", ["deepspeed", "accelerate", "torchrun"])
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
    run(hostile, *MAIN, "launch", "--device", "cpu", "--num-ranks", "2", "--style", "none",
        "--launcher", launcher, "--run-dir", "run", "scripts/train.py")  # fmt: skip
    for rank in (0, 1):
        paths, python_path = ast.literal_eval((hostile / f"path-{rank}").read_text())
        assert paths[0] == str(script.parent) and str(hostile) not in paths and "/" not in paths
        assert python_path == os.environ.get("PYTHONPATH")
