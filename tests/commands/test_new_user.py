"""What somebody types who comes from other tools, and what fits a terminal of 80 columns and 24 lines."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from tests.support.command import move_elsewhere
from tests.support.shown import following
from zerokit.cli import cli, commands, run


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    move_elsewhere(tmp_path, monkeypatch)


def test_an_option_given_twice_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["plan", "--model", "gpt2", "--gpus", "1", "--gpu", "a100-80gb", "--gpu", "h200", "--explain"]
    assert run(asked) == 0
    out, err = capsys.readouterr()
    assert err == "zerokit: --gpu is given 2 times; the last counts: h200\n" and "1 × h200" in out
    assert run([*asked, "--quiet"]) == 0 and not capsys.readouterr().err


def test_help_and_the_version_are_commands_of_their_own(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["-V"]) == 0 and "zerokit, version" in capsys.readouterr().out
    assert run(["help"]) == 0 and "Commands:" in capsys.readouterr().out
    assert run(["help", "plan"]) == 0
    by_word = capsys.readouterr().out
    assert run(["plan", "--help"]) == 0
    assert capsys.readouterr().out == by_word
    assert run(["help", "emit", "sbatch"]) == 0
    by_word = capsys.readouterr().out
    assert run(["emit", "sbatch", "--help"]) == 0
    assert capsys.readouterr().out == by_word


def test_the_help_of_a_plan_is_grouped_and_has_examples_that_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", "--help"]) == 0
    text = capsys.readouterr().out
    at = [
        text.index(f"\n{title}:\n")
        for title in ("Model", "Hardware", "Job", "Strategy", "Output", "Examples")
    ]
    assert at == sorted(at)
    examples = [line.split() for line in text[at[-1] :].splitlines() if line.startswith("    zerokit ")]
    assert len(examples) == 3
    for example in examples:
        assert run(example[1:]) == 0, example


@pytest.mark.parametrize("name", commands())
def test_no_line_of_any_help_is_wider_than_80_columns(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([name, "--help"]) == 0
    help_ = capsys.readouterr().out
    assert max(map(len, help_.splitlines())) <= 80
    command = cli.get_command(click.Context(cli), name)
    assert command is not None and (isinstance(command, click.Group) or "--quiet" in help_)


@pytest.mark.parametrize(
    ("command", "option"),
    [
        ("size", "--nodes 2"), ("size", "--device cpu"), ("size", "--no-calibration"), ("size", "--all-gpus"),
        ("estimate", "--all-gpus"), ("estimate", "--pipeline-module"), ("tune", "--inference"),
        ("tune", "--vram 20GiB"), ("tune", "--new-tokens 3"), ("tune", "--quant int4"),
    ],
)  # fmt: skip
def test_the_help_lists_no_option_that_the_command_refuses(
    command: str, option: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text("from transformers import Trainer\nTrainer().train()\n")
    job = [
        "--model",
        "llama-3.2-1b",
        *(["--gpu", "h200"] if command != "tune" else ["--gpus", "2", str(script)]),
    ]
    assert run([command, *option.split(), *job]) == 2
    name = option.split()[0]
    assert name in capsys.readouterr().err
    assert run([command, "--help"]) == 0
    shown = capsys.readouterr().out
    assert f"  {name} " not in shown and "  --global-batch N " in shown
    assert "<=x" not in shown and ".0]" not in shown
    assert run(["plan", "--help"]) == 0
    assert f"  {name} " in capsys.readouterr().out


@pytest.mark.parametrize(("zero", "gpus", "said"), [(3, 4, True), (1, 4, False), (3, 1, False)])
def test_4_bit_weights_that_every_gpu_loads_whole_are_told(
    zero: int, gpus: int, said: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["plan", "--model", "llama-3.1-8b", "--method", "qlora", "--gpus", str(gpus), "--gpu", "h200"]
    assert run([*words, "--zero", str(zero)]) == 0
    assert ("each GPU loads it whole first" in " ".join(capsys.readouterr().out.split())) is said
    assert run([*words, "--zero", str(zero), "--explain"]) == 0
    more = " ".join(capsys.readouterr().out.split())
    assert ("loads the quantised model whole on each GPU, 5." in more) is said  # 8e9 weights, 4.5 bits, head
    assert run(["estimate", *words[1:], "--zero", str(zero)]) == 0
    assert "tracing" not in capsys.readouterr().err  # of ZeRO-3 no trace could be used


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ("--model llama-3.1-405b --gpus 64 --nodes 8 --gpu h100-sxm-80gb --global-batch 512",
         ("assumed      --network 400 GB/s per node, --seq-len 2048",
          "The time is unsure so near the GPU's limit: ")),
        ("--model mixtral-8x7b --gpus 4 --gpu h200 --zero 3 --method qlora --host-ram 64GiB",
         ("- save checkpoints (save_strategy): before Transformers 5.0, save_model writes",
          "save_pretrained(OUT)")),
        ("--params 7b --gpus 8", ("--gpu h100-sxm-80gb, --seq-len 2048, --global-batch 128",)),
        ("--params 7b --gpus 8 --method qlora",
         ("--gpu h100-sxm-80gb, --seq-len", "where 0 would require 16.7 GiB less …", "Assumed (3 more: ")),
        ("--model llama-3.1-70b --gpus 4 --gpu h100-sxm-80gb --inference --quant int8", ()),
        ("--model gpt2 --device cpu --gpus 2", ()),
    ],
)  # fmt: skip
def test_a_plan_of_every_kind_fits_one_screen(
    asked: str, said: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    """Notes that are too many are shortened, warnings last; with --explain they are whole."""
    assert run(["plan", *asked.split()]) == 0
    short = capsys.readouterr().out
    lines = short.splitlines()
    assert len(lines) <= 24 and max(map(len, lines)) <= 80, short
    several = "--nodes" in asked
    following = "zerokit emit sbatch train.py > job.sh" if several else "zerokit launch --plan zerokit-plan"
    assert all(words in short for words in (*said, following))
    assert run(["plan", *asked.split(), "--explain"]) == 0
    assert "…" not in capsys.readouterr().out


def test_what_does_not_fit_comes_with_the_command_that_finds_what_does(
    capsys: pytest.CaptureFixture[str],
) -> None:
    job = ["--model", "llama-3.1-8b", "--gpus", "4", "--gpu", "a100-80gb", "--seq-len", "4096"]
    assert run(["estimate", *job, "--zero", "2", "--micro-batch", "4"]) == 3
    *_, offered = following(capsys.readouterr().out)
    assert offered == ["zerokit", "plan", *job, "--global-batch", "16"] and run(offered[1:]) == 0
    capsys.readouterr()


def test_cpu_ranks_have_no_cublas(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["estimate", "--model", "gpt2", "--device", "cpu", "--gpus", "1", "--seq-len", "512", "--json"]
    assert run(asked) == 0
    rank = json.loads(capsys.readouterr().out)["per_rank"][0]
    assert "cublas_workspace" not in rank["components"]
    assert sum(rank["components"].values()) == rank["peak_allocated_bytes"] == max(rank["phases"].values())


LISTS = ("gpus", "gpus a100-80gb", "models", "models llama-3.1-8b", "recipes list", "doctor",
         "size --params 8b --gpu h200,rtx-4090")  # fmt: skip


def words(text: str) -> set[str]:
    """Without figures: those of the doctor change from moment to moment."""
    return {word for word in text.split() if not any(map(str.isdigit, word))}


@pytest.mark.parametrize("typed", LISTS)
def test_no_list_is_wider_than_the_terminal_and_none_is_cut_in_a_pipe(
    typed: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", "none")  # the path of a built operator may be wider
    assert run(typed.split()) == 0
    whole = capsys.readouterr().out
    monkeypatch.setenv("COLUMNS", "80")
    assert run(typed.split()) == 0
    narrow = capsys.readouterr().out
    assert max(map(len, narrow.splitlines())) <= 80
    assert words(whole) == words(narrow)  # every word is still there


@pytest.mark.parametrize(
    ("more_mib", "said", "colour"), [(8192, "Fits:", 32), (256, "barely:", 33), (-1, "NOT fit", 31)]
)
def test_what_fits_hardly_or_not_has_a_colour_of_its_own(
    more_mib: int, said: str, colour: int, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    job = ["estimate", "--model", "llama-3.1-8b", "--gpus", "8", "--gpu", "h200", "--zero", "1"]
    assert run([*job, "--json"]) == 0
    vram = -(-json.loads(capsys.readouterr().out)["min_vram_bytes"] // (1 << 20)) + more_mib
    shown = {}
    monkeypatch.setenv("TERM", "xterm")
    for no_color in ("", "1"):
        monkeypatch.setenv("NO_COLOR", no_color)
        master, slave = os.openpty()
        with os.fdopen(slave, "w") as terminal, contextlib.redirect_stdout(terminal):
            run([*job, "--vram", f"{vram}MiB"])
        shown[no_color] = os.read(master, 1 << 16).decode()
        os.close(master)
    (answer,) = (line for line in shown[""].splitlines() if said in line)
    assert answer.startswith(f"\x1b[{colour}m\x1b[1m")
    assert said in shown["1"] and "\x1b" not in shown["1"]


def test_no_color_takes_the_colours_out_of_a_terminal_too() -> None:
    coloured = CliRunner().invoke(cli, ["doctor"], color=True, env={"NO_COLOR": None})
    plain = CliRunner().invoke(cli, ["doctor"], color=True, env={"NO_COLOR": "1"})
    assert "\x1b[" in coloured.stdout
    assert "\x1b[" not in plain.stdout


@pytest.mark.parametrize(
    "words",
    [
        "plan --params 7b --gpus 16 --nodes 2 --vram 40GiB --network 5GB",
        "plan --params 7b --gpus 3 --tp 2",
        "plan --model llama-3.1-70b --gpus 1 --gpu t4 --host-ram 64GiB",
        "estimate --params 7b --gpus 8 --zero 1 --persistence 5",
        "size --params 7b --vram 3GiB --price x",
        "check none.json --seq-len 5",
        "doctor",
        "launch --show some train.py",
        "tune --steps 1 --params 7b train.py",
        "rehearse --vram x train.py",
    ],
)
def test_no_marks_are_shown(
    words: str, capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run(words.split())
    out, err = capfd.readouterr()
    assert out + err and "⟨" not in out + err
