"""Options of a command behind the script, which only look as if they were the command's."""

from __future__ import annotations

from pathlib import Path

import click
import pytest

from tests.support.ranks import write_script
from zerokit.cli.launch import command as launch
from zerokit.cli.plan import command as plan
from zerokit.cli.rehearse import command as rehearse
from zerokit.cli.tune import command as tune
from zerokit.errors import InputError
from zerokit.script.misplaced_options import COMMON, OPTIONS, misplaced
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
        (IN_CODE, ["--device", "cuda"], True),  # it reads no arguments at all
        (PARSER.format(""), ["--steps", "3", "--dry-run"], True),
        (PARSER.format(""), ["--run-dir=here"], True),
        (DATACLASS.format("fast"), ["--dry-run"], True),
        (ELSEWHERE, ["--dry-run"], False),  # a warning: its parser cannot be read
        (PARSER.format("p.add_argument('--dry-run')"), ["--dry-run"], None),
        (PARSER.format("p.add_argument('--dry_run')"), ["--dry-run"], None),
        (DATACLASS.format("dry_run"), ["--dry-run"], None),
        (PARSER.format(""), ["--steps", "3", "--", "--dry-run"], None),
        (PARSER.format(""), ["--device", "cuda"], True),
        (PARSER.format("import lib; lib.more(p)"), ["--device", "cuda"], None),  # may be the library's
    ],
)
def test_an_option_of_launch_behind_a_script_without_it(
    tmp_path: Path, text: str, arguments: list[str], refused: bool | None
) -> None:
    script = write_script(tmp_path, text)
    facts = read_script(script, None)
    if refused:
        with pytest.raises(InputError, match="stand before the script: zerokit launch --"):
            misplaced(facts, "train.py", arguments, "launch")
        return
    said = misplaced(facts, "train.py", arguments, "launch")
    assert said is None if refused is None else said is not None and said.startswith("warning: --dry-run")


@pytest.mark.parametrize(
    ("command", "option", "fix"),
    [
        ("plan", "--explain", "zerokit plan --explain … -- train.py"),
        ("tune", "--top=2", "zerokit tune --top … train.py"),
        ("rehearse", "--gpu", "zerokit rehearse --gpu … train.py"),
        ("rehearse", "--host-speed=0.9", "zerokit rehearse --host-speed … train.py"),
    ],
)
def test_each_command_knows_its_own(tmp_path: Path, command: str, option: str, fix: str) -> None:
    facts = read_script(write_script(tmp_path, PARSER.format("")), None)
    with pytest.raises(InputError, match=fix):
        misplaced(facts, "train.py", ["--steps", "3", option], command)
    assert misplaced(facts, "train.py", ["--steps", "3", option], "launch") is None


@pytest.mark.parametrize(
    ("name", "command"), [("launch", launch), ("plan", plan), ("rehearse", rehearse), ("tune", tune)]
)
def test_every_name_is_an_option_of_its_command(name: str, command: click.Command) -> None:
    assert {known for option in command.params for known in option.opts} >= {
        *OPTIONS[name],
        *COMMON[name],
    }
