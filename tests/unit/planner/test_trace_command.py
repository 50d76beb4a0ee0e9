"""A plan in closed form says so on its first screen, with the command that traces its own strategy."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from zerokit.cli import run

QLORA = ("--model", "llama-3.1-8b", "--method", "qlora", "--gpus", "1", "--gpu", "rtx-4090", "--seq-len",
         "2048", "--global-batch", "16", "--lora-rank", "64", "--lora-targets", "q_proj,v_proj")  # fmt: skip
ZERO_3 = ("--model", "llama-3.1-8b", "--method", "lora", "--gpus", "8", "--gpu", "h200", "--zero", "3",
          "--offload-optimizer", "cpu", "--checkpointing", "full", "--lora-targets", "q_proj")  # fmt: skip


@pytest.fixture(autouse=True)
def _nothing_traced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def _shown(capsys: pytest.CaptureFixture[str], folder: Path, *asked: str) -> list[str]:
    assert run(["plan", *asked, "--out", str(folder)]) == 0
    return capsys.readouterr().out.splitlines()


@pytest.mark.parametrize("asked", [QLORA, ZERO_3], ids=["qlora", "zero-3"])
def test_the_first_screen_names_the_closed_form_and_the_whole_command(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, asked: tuple[str, ...]
) -> None:
    lines = _shown(capsys, tmp_path / "plan", *asked)
    assert "Memory in closed form, not traced: activations ± 25 %, the rest ± 5 %; see Next" in lines[:4]
    shown = "\n".join(lines).rpartition("  zerokit estimate ")[2]
    command, comment, _ = shown.partition("# traces the model; then plan again\n")
    assert comment, shown
    words = shlex.split(command.replace("\\\n", " "))
    given = dict(zip(asked[::2], asked[1::2], strict=True))
    traced = dict(zip(words[::2], words[1::2], strict=True))
    assert {name: traced.pop(name) for name in given} == given
    assert traced.keys() <= {"--micro-batch", "--gradient-accumulation", "--checkpointing"}


def test_the_command_is_of_the_plans_batch(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Whose estimate is the plan's, and whose own next command is."""
    asked = [word for word in QLORA if word not in ("--global-batch", "16")]
    lines = _shown(capsys, tmp_path / "plan", *asked)
    steps = re.search(r"× (\d+) accumulation", "\n".join(lines))
    assert steps is not None and int(steps[1]) > 1
    assert f"--gradient-accumulation {steps[1]}" in " ".join(" ".join(lines).split())


def test_what_decides_the_trace_of_the_chosen_strategy_is_added(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    asked = ("--model", "llama-3.1-8b", "--method", "lora", "--lora-targets", "q_proj", "--gpus", "2",
             "--gpu", "rtx-4090", "--seq-len", "8192", "--json")  # fmt: skip
    assert run(["plan", *asked]) == 0
    body = json.loads(capsys.readouterr().out)
    (note,) = (note for note in body["assumptions"] if note.startswith("to trace the model"))
    stage, kind = body["chosen"]["zero_stage"], body["chosen"]["activation_checkpointing"]
    assert stage and kind == "full"
    assert f"--zero {stage}" in note and "--checkpointing full" in note and "--lora-targets q_proj" in note


def test_a_traced_plan_has_neither(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    asked = ("--model", "llama-3.1-8b", "--gpus", "8", "--gpu", "h200")
    text = "\n".join(_shown(capsys, tmp_path / "plan", *asked))
    assert "closed form" not in text and "zerokit estimate" not in text
