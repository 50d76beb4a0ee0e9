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
        (RESUMES, "--output_dir out --resume_from_checkpoint True", False),
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
