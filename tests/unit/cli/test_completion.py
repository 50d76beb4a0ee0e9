"""What a shell completes, asked as the shell asks."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.shell_completion import ShellComplete

from zerokit.catalog import gpus, models
from zerokit.cli import cli, commands
from zerokit.planner import recipes

BOTH = ["h100-pcie-80gb", "h100-sxm-80gb"]


@pytest.fixture(autouse=True)
def _a_shell_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("_ZEROKIT_COMPLETE", "bash_complete")


def completed(*words: str) -> list[tuple[str, str]]:
    """Kind and text of each completion of the last word."""
    asked = ShellComplete(cli, {}, "zerokit", "_ZEROKIT_COMPLETE")
    return [(item.type, item.value) for item in asked.get_completions(list(words[:-1]), words[-1])]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("plan", "--model", ""), models.names()),
        (("estimate", "--gpu", ""), gpus.names()),
        (("plan", "--recipe", ""), recipes.names()),
        (("help", ""), list(commands())),
        (("rehearse", "--gpu", "H100-S"), BOTH[1:]),
        (("size", "--gpu", "l4,h100-p"), [f"l4,{BOTH[0]}"]),
        (("plan", "--zero", ""), ["0", "1", "2", "3"]),
        (("plan", "--method", ""), ["full", "lora", "qlora"]),
        (("plan", "--tp", ""), ["auto"]),
        (("launch", "--launcher", "t"), ["torchrun"]),
        (("emit", "deepspeed", "--variant", "tr"), ["trainer"]),
        (("recipes", "show", "cpu"), ["cpu-demo"]),
        (("check", "--explain", "offload-param-b"), ["offload-param-below-stage-3"]),
        (("check", "--format", "s"), ["sarif"]),
        (("plan", "--gpus", ""), []),
    ],
)
def test_values(words: tuple[str, ...], expected: list[str]) -> None:
    assert completed(*words) == [("plain", value) for value in expected]


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        (("plan", "--model", "./models/x"), "file"),
        (("estimate", "--deepspeed", "d"), "file"),
        (("launch", "tra"), "file"),
        (("check", "d"), "file"),
        (("launch", "--plan", "z"), "dir"),
        (("report", "ru"), "dir"),
    ],
)
def test_paths_are_the_shells(words: tuple[str, ...], kind: str) -> None:
    assert completed(*words) == [(kind, words[-1])]


def test_every_choice_of_the_help_is_completed() -> None:
    """Whatever stands in the help as ``a|b`` is offered, in every command."""
    context = cli.make_context("zerokit", ["help"], resilient_parsing=True)
    asked = 0
    for name in commands():
        command = cli.get_command(context, name)
        assert command is not None
        for parameter in command.params:
            words = (parameter.metavar or "").split("|")
            if (
                len(words) > 1
                and all(word.islower() for word in words)
                and parameter.opts[0].startswith("--")
            ):
                offered = [value for _, value in completed(name, parameter.opts[0], "")]
                assert offered == words, (name, parameter.opts)
                asked += 1
    assert asked > 40


def test_a_shell_gets_them_without_torch(tmp_path: Path) -> None:
    program = (
        "import sys; from zerokit.cli import main\ntry: main()\nfinally: assert 'torch' not in sys.modules"
    )
    environment = os.environ | {"COMP_WORDS": "zerokit plan --model llama-3.1", "COMP_CWORD": "3"}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env=environment, capture_output=True, text=True,
        check=False, timeout=120,
    )  # fmt: skip
    assert done.stdout.split() == [f"plain,llama-3.1-{size}" for size in ("405b", "70b", "8b")]
    assert done.stderr == ""


@pytest.mark.parametrize("option", ["--checkpointing", "--offload-optimizer", "--offload-param"])
def test_auto_is_offered_where_a_value_is_looked_for(option: str) -> None:
    """A plan takes ``auto`` for what it chooses itself; an estimate is of one strategy."""
    listed = {
        command: next(
            parameter.metavar or ""
            for parameter in importlib.import_module(f"zerokit.cli.{command}").command.params
            if option in parameter.opts
        ).split("|")
        for command in ("plan", "size", "tune", "estimate")
    }
    assert [command for command, words in listed.items() if "auto" in words] == ["plan", "size", "tune"]
    assert all("none" in words for words in listed.values())
