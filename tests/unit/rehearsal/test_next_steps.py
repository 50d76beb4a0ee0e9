"""What is named to be typed after a rehearsal that does not fit."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from zerokit.rehearsal.changes import CHECKPOINTING
from zerokit.rehearsal.next_steps import next_steps
from zerokit.rehearsal.result import Change, Rehearsal
from zerokit.script.entry_points import Target

GIB = 1 << 30
TOO_LARGE = Rehearsal(
    complete=True, fits=False, min_vram_bytes=90 * GIB, vram_bytes=80 * GIB, gpu="a100-80gb", gpus=1, steps=3,
    repeats=True, ranks=(), bf16=True, changes=(Change(what=CHECKPOINTING, saves_bytes=24 * GIB),),
)  # fmt: skip
PARSES = "from transformers import HfArgumentParser, Trainer, TrainingArguments\n" + (
    "Trainer(args=HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()[0]).train()\n"
)
FIXED = (
    "from transformers import Trainer, TrainingArguments\nTrainer(args=TrainingArguments('out')).train()\n"
)


def named(done: Rehearsal, source: str = PARSES, *arguments: str) -> dict[str, str]:
    """Commands, by what they are for."""
    Path("train.py").write_text(source)
    target = Target(script="train.py", module=None, arguments=arguments)
    typed = ("rehearse", "--gpu", "a100-80gb", "train.py", *arguments)
    steps = next_steps(done, target, ("--gpus", "1", "--gpu", "a100-80gb"), typed)
    return {step.purpose: shlex.join(step.words) for step in steps}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_the_scripts_own_checkpointing_comes_before_a_plan() -> None:
    assert named(TOO_LARGE, PARSES, "--bf16", "True") == {
        "with activation checkpointing it may fit, which another rehearsal tells":
            "zerokit rehearse --gpu a100-80gb train.py --bf16 True --gradient_checkpointing True",
        "which batch size, checkpointing, ZeRO stage and offload fit under DeepSpeed, with its fp32 master "
        "weights": "zerokit plan --gpus 1 --gpu a100-80gb -- train.py --bf16 True",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("done", "source", "arguments"),
    [
        (TOO_LARGE, FIXED, ()),  # which has no options
        (TOO_LARGE, PARSES, ("--gradient_checkpointing", "False")),  # which the user wants
        (replace(TOO_LARGE, min_vram_bytes=110 * GIB), PARSES, ()),  # of which it saves too little
        (replace(TOO_LARGE, changes=()), PARSES, ()),  # layers recompute already
    ],
)
def test_checkpointing_is_named_only_where_the_script_takes_it_and_it_helps(
    done: Rehearsal, source: str, arguments: tuple[str, ...]
) -> None:
    (purpose,) = named(done, source, *arguments)
    assert purpose.startswith("which batch size")


def test_a_plan_is_made_without_the_scripts_deepspeed_file() -> None:
    done = replace(TOO_LARGE, changes=(), engine={"zero_stage": 2}, config_files=("ds.json",))
    for words in (("--deepspeed", "ds.json"), ("--deepspeed=ds.json",)):
        assert named(done, PARSES, *words, "--bf16", "True") == {
            "which batch size, checkpointing, ZeRO stage and offload fit in place of ds.json":
                "zerokit plan --gpus 1 --gpu a100-80gb -- train.py --bf16 True"
        }  # fmt: skip
    assert named(done, PARSES) == {}  # a file that no argument names


def test_a_plan_that_is_here_is_not_replaced() -> None:
    done = replace(TOO_LARGE, changes=())
    for taken in ("zerokit-plan", "zerokit-plan-train"):
        Path(taken).mkdir()
        out = "zerokit-plan-train" if taken == "zerokit-plan" else "zerokit-plan-train-2"
        (command,) = named(done).values()
        assert f" --out {out} -- train.py" in command


def test_nothing_is_named_where_it_fits_or_no_plan_reaches_the_script() -> None:
    assert named(replace(TOO_LARGE, fits=True)) == {} == named(replace(TOO_LARGE, fits=None))
    assert named(TOO_LARGE, "import torch\ntorch.nn.Linear(2, 2)") == {}
    assert not any("plan" in command for command in named(replace(TOO_LARGE, fully_sharded=True)).values())
