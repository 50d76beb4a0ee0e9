"""Scripts that are given a checkpoint, and Trainers that never hear of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.scripts_read import TRAINER, options
from zerokit.script.resuming import reads_checkpoint, why_not_resumed

RESUMES = TRAINER.replace(".train()", ".train(resume_from_checkpoint=args.resume_from_checkpoint)")


@pytest.mark.parametrize(
    ("text", "arguments", "is_said"),
    [
        (TRAINER, "--output_dir out --resume_from_checkpoint True", True),
        (TRAINER, "--output_dir out --resume_from_checkpoint=out/checkpoint-4", True),
        (TRAINER, "--output_dir out --resume_from_checkpoint False", False),
        (TRAINER, "--output_dir out", False),
        (RESUMES, "--output_dir out --resume_from_checkpoint last", False),
        ("import deepspeed\ndeepspeed.initialize()\n", "--resume_from_checkpoint True", False),
    ],
)
def test_a_checkpoint_that_no_code_reads_is_told(
    tmp_path: Path, text: str, arguments: str, is_said: bool
) -> None:
    said = why_not_resumed(options(tmp_path, text).facts, arguments.split())
    assert (said is not None) is is_said
    assert said is None or ("never reads --resume_from_checkpoint" in said and "training begins anew" in said)


def test_only_code_that_reads_the_option_takes_a_checkpoint_by_it(tmp_path: Path) -> None:
    assert reads_checkpoint(options(tmp_path, RESUMES).facts)
    assert not reads_checkpoint(options(tmp_path, TRAINER).facts)


@pytest.mark.parametrize(
    ("given", "fix"),
    [
        ("True", "give it the checkpoint's folder: --resume_from_checkpoint {out}/checkpoint-20"),
        ("False", "leave it out"),
    ],
)
def test_the_word_true_is_a_folder_to_a_trainer(tmp_path: Path, given: str, fix: str) -> None:
    for name in ("checkpoint-4", "checkpoint-20", "checkpoint-best"):
        (tmp_path / "out" / name).mkdir(parents=True)
    arguments = ["--output_dir", str(tmp_path / "out"), "--resume_from_checkpoint", given]
    said = why_not_resumed(options(tmp_path, RESUMES).facts, arguments)
    assert said == (
        f"a Trainer takes --resume_from_checkpoint {given} for a folder named {given}; "
        + fix.format(out=tmp_path / "out")
    )


def test_a_folder_that_is_not_there_is_told_with_the_newest_that_is(tmp_path: Path) -> None:
    facts, out = options(tmp_path, RESUMES).facts, tmp_path / "out"
    typed = f"--resume_from_checkpoint {out}/checkpoint-20"
    arguments = ["--output_dir", str(out), *typed.split()]
    assert why_not_resumed(facts, arguments) == f"{typed}: there is no such folder"
    (out / "checkpoint-4").mkdir(parents=True)
    assert why_not_resumed(facts, arguments) == (
        f"{typed}: there is no such folder; the newest checkpoint is {out}/checkpoint-4"
    )
    (out / "checkpoint-20").mkdir()
    assert why_not_resumed(facts, arguments) is None


def test_where_no_checkpoint_is_yet_the_form_of_its_name_is_told(tmp_path: Path) -> None:
    arguments = [f"--output_dir={tmp_path / 'new'}", "--resume_from_checkpoint", "true"]
    said = why_not_resumed(options(tmp_path, RESUMES).facts, arguments)
    assert said is not None and said.endswith(f"--resume_from_checkpoint {tmp_path / 'new'}/checkpoint-STEP")


def test_true_in_a_file_of_arguments_is_a_switch(tmp_path: Path) -> None:
    (tmp_path / "args.json").write_text('{"output_dir": "out", "resume_from_checkpoint": true}')
    facts = options(tmp_path, RESUMES + "    HfArgumentParser(A).parse_json_file(path)\n").facts
    assert why_not_resumed(facts, [str(tmp_path / "args.json")]) is None
