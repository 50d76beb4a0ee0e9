"""Commands that are shown begin with what was typed, and no line is wider than the terminal."""

from __future__ import annotations

import json

import pytest

from zerokit.cli import commands, run
from zerokit.messages import COMMANDS

QLORA = ("plan", "--model", "llama-3.1-8b", "--method", "qlora", "--gpus", "1", "--gpu", "rtx-4090")


def test_every_command_is_known_where_it_is_shown() -> None:
    assert tuple(commands()) == COMMANDS


def test_the_next_command_is_the_one_that_the_user_has(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ZEROKIT_COMMAND", "./launch.sh")
    assert run(list(QLORA)) == 0
    assert "\n  ./launch.sh launch --plan zerokit-plan train.py  # " in capsys.readouterr().out
    monkeypatch.setenv("ZEROKIT_COMMAND", "rm -rf x;")
    assert run(list(QLORA)) == 0
    assert "\n  zerokit launch --plan" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ("size --params 14b --gpu h200", 0, "\n  ./launch.sh plan --params 14b "),
        ("recipes show cpu-demo", 0, "\n  ./launch.sh plan --params 20m "),
        ("estimate --model llama-3.1-8b", 0, "(`./launch.sh gpus` lists them), or ask `./launch.sh size`"),
        (
            "estimate --model llama-3.1-8b --gpus 1 --gpu l40s",
            3,
            "\n  ./launch.sh plan --model llama-3.1-8b ",
        ),
        ("doctor", 0, "`./launch.sh doctor --measure` does"),
        ("plan --help", 0, "\n    ./launch.sh plan --model llama-3.1-70b --gpus 16 --nodes 2"),
        ("plan --help", 0, "Usage: ./launch.sh plan "),
        ("recipes --help", 0, "`./launch.sh launch --recipe NAME train.py`"),
        ("emit sbatch --help", 0, "`./launch.sh launch`"),
        ("plan --modl", 2, "./launch.sh plan: "),
        ("plan --bogus", 2, "`./launch.sh plan --help` lists them"),
        ("plam", 2, "zerokit: there is no command 'plam'; did you mean `./launch.sh plan`?"),
        ("plan --model gpt2 --gpu gpu9", 2, "`./launch.sh gpus` lists them"),
        ("check --explain xyzzy", 2, "`./launch.sh check FILE`"),
    ],
)
def test_every_command_that_is_shown_begins_with_what_was_typed(
    words: str, code: int, said: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ZEROKIT_COMMAND", "./launch.sh")
    assert run(words.split()) == code
    output = "".join(capsys.readouterr())
    assert said in " ".join(output.split()) or said in output
    assert "\n  zerokit " not in output


def test_json_names_the_command_of_every_machine(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ZEROKIT_COMMAND", "./launch.sh")
    assert run(["size", "--params", "14b", "--method", "lora", "--gpu", "h200", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["next"].startswith("zerokit plan ")


@pytest.mark.parametrize("columns", ["50", "60", "80"])
@pytest.mark.parametrize(
    "words",
    [
        "plan --model llama-3.1-8b --gpus 8 --gpu a100-80gb",
        "plan --model llama-3.1-8b --gpus 8 --gpu a100-80gb --explain",
        "estimate --model llama-3.1-8b --gpus 8 --gpu h200 --zero 3 --lora-rank 8 --method lora",
        "estimate --model llama-3.1-8b --gpus 8 --gpu h200 --explain",
        "doctor",
        "check --explain offload-param-below-stage-3",
        "check --explain unknown-key",
    ],
)
def test_no_line_is_wider_than_the_terminal(
    words: str, columns: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    assert run(words.split()) in (0, 3)
    wide = [line for line in capsys.readouterr().out.splitlines() if len(line) > int(columns)]
    assert not [line for line in wide if " " in line.strip()], wide
