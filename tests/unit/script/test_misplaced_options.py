"""Options of ``zerokit launch`` behind the script, which only looks as if they were launch's."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.ranks import write_script
from zerokit.cli.launch import command
from zerokit.errors import InputError
from zerokit.script.misplaced_options import OF_LAUNCH, misplaced
from zerokit.script.reader import read_script

IN_CODE = (
    "from transformers import Trainer, TrainingArguments\nTrainer(args=TrainingArguments('out')).train()"
)
PARSER = "import argparse\np = argparse.ArgumentParser()\np.add_argument('--steps')\n{}\np.parse_args()"
DATACLASS = "from transformers import HfArgumentParser\nclass A:\n    {}: bool\nHfArgumentParser(A)"
ELSEWHERE = (
    "import sys\nfrom transformers import Trainer\nimport settings_of_ours\nsettings_of_ours.read(sys.argv)"
)


@pytest.mark.parametrize(
    ("text", "arguments", "refused"),
    [
        (IN_CODE, ["--accept-mismatch"], True),
        (PARSER.format(""), ["--steps", "3", "--dry-run"], True),
        (PARSER.format(""), ["--run-dir=here"], True),
        (DATACLASS.format("fast"), ["--dry-run"], True),
        (ELSEWHERE, ["--dry-run"], False),  # a warning: its parser cannot be read
        (PARSER.format("p.add_argument('--dry-run')"), ["--dry-run"], None),
        (PARSER.format("p.add_argument('--dry_run')"), ["--dry-run"], None),
        (DATACLASS.format("dry_run"), ["--dry-run"], None),
        (PARSER.format(""), ["--steps", "3", "--", "--dry-run"], None),
        (PARSER.format(""), ["--device", "cuda"], None),  # may well be meant for a library of the script
    ],
)
def test_an_option_of_launch_behind_a_script_without_it(
    tmp_path: Path, text: str, arguments: list[str], refused: bool | None
) -> None:
    script = write_script(tmp_path, text)
    facts = read_script(script, None)
    if refused:
        with pytest.raises(InputError, match="stand before the script: zerokit launch --"):
            misplaced(facts, "train.py", arguments)
        return
    said = misplaced(facts, "train.py", arguments)
    assert said is None if refused is None else said is not None and said.startswith("warning: --dry-run")


def test_every_name_is_an_option_of_launch() -> None:
    assert {name for option in command.params for name in option.opts} >= set(OF_LAUNCH)
