"""The code keeps the rules of pyproject.toml: style, formatting, types, direction of imports."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(sys.executable).parent


@pytest.mark.parametrize(
    "command",
    [
        ["ruff", "check", "."],
        ["ruff", "format", "--check", "."],
        ["mypy"],
        ["lint-imports"],
    ],
    ids=" ".join,
)
def test_rules_are_kept(command: list[str]) -> None:
    done = subprocess.run(
        [BIN / command[0], *command[1:]], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{' '.join(command)}:\n{done.stdout}{done.stderr}"


@pytest.mark.parametrize("script", ["launch.sh", ".ci/run"])
def test_shell_scripts_parse_and_are_executable(script: str) -> None:
    path = ROOT / script
    assert path.stat().st_mode & 0o111
    shell = path.read_text().splitlines()[0].removeprefix("#!").split()[-1]
    done = subprocess.run([shell, "-n", path], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
