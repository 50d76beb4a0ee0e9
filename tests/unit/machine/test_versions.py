"""Another DeepSpeed than the tables' is said, and found without importing it."""

from __future__ import annotations

import json
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from tests.support.packages import needs
from zerokit.cli import run
from zerokit.domain.deepspeed_settings import DEEPSPEED_VERSION
from zerokit.machine import versions
from zerokit.notes import with_level

ARGUMENTS = ["estimate", "--model", "llama-3.2-1b", "--gpus", "1", "--gpu", "h200", "--json"]


def assumptions(capsys: pytest.CaptureFixture[str], *more: str) -> list[str]:
    assert run([*ARGUMENTS, *more]) == 0
    found: list[str] = json.loads(capsys.readouterr().out)["assumptions"]
    return [line for line in found if "DeepSpeed" in line and DEEPSPEED_VERSION in line]


def with_deepspeed(folder: Path, number: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """An environment in which this version (or none) is installed, in front of everything else."""
    path = folder / "site-packages"
    path.mkdir()
    if number is not None:
        (path / f"deepspeed-{number}.dist-info").mkdir()
    others = [p for p in sys.path if not p.endswith(("site-packages", "dist-packages"))]
    monkeypatch.setattr(sys, "path", [str(path), *others])


def test_another_version_is_an_assumption(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assumptions(capsys)  # what the command imports is imported
    with_deepspeed(tmp_path, "0.20.1", monkeypatch)
    (line,) = assumptions(capsys)
    assert line.startswith("DeepSpeed 0.20.1 is installed")
    assert DEEPSPEED_VERSION in line


@pytest.mark.parametrize("number", [DEEPSPEED_VERSION, None])
def test_the_tables_own_version_or_none_is_not(
    number: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assumptions(capsys)
    with_deepspeed(tmp_path, number, monkeypatch)
    assert assumptions(capsys) == []


def test_a_trainer_that_asks_for_an_older_one_is_told_where_none_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    of_axolotl = "--zero", "2", "--trainer", "axolotl"
    assumptions(capsys, *of_axolotl)
    with_deepspeed(tmp_path, None, monkeypatch)
    (line,) = assumptions(capsys, *of_axolotl)
    assert line.startswith("axolotl 0.19 asks for an older DeepSpeed")
    assert assumptions(capsys, "--zero", "2", "--trainer", "trl") == []


def test_the_version_is_what_the_environment_says() -> None:
    needs("deepspeed")
    assert versions.installed("deepspeed") == version("deepspeed")


def with_transformers(number: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from zerokit.planner import models

    monkeypatch.setattr(models, "installed", lambda name: number if name == "transformers" else None)


def test_a_plan_says_that_its_traces_are_of_another_transformers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for number, said in (("5.17.0", True), ("5.23.4", False)):
        with_transformers(number, monkeypatch)
        assert run(["plan", "--model", "gpt2", "--gpus", "1", "--gpu", "h200", "--json"]) == 0
        lines = json.loads(capsys.readouterr().out)["assumptions"]
        assert any(line.startswith("Transformers 5.17.0 is installed") for line in lines) is said


def test_a_launch_warns_of_another_deepspeed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from zerokit.launcher import plan_agreement
    from zerokit.script.arguments import ScriptOptions
    from zerokit.script.reader import ScriptFacts

    with_deepspeed(tmp_path, "0.20.1", monkeypatch)
    options = ScriptOptions(facts=ScriptFacts(path=None), style="raw", user_arguments=())
    (line,) = plan_agreement.parts_of_the_script(options, {"tensor_parallel": 1}, writes_here=False)
    assert with_level(line).startswith("warning: DeepSpeed 0.20.1 is installed")
