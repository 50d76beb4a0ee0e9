"""Misspelt options of a script, told where its whole list of options is known."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.support.ranks import write_script
from zerokit.script.argument_warnings import misplaced_options
from zerokit.script.option_list import installed_fields, parser_calls
from zerokit.script.reader import read_script

EXAMPLES = Path(__file__).parents[3] / "examples"
ARGPARSE = """
import argparse, deepspeed
def add(group):
    group.add_argument("--seq-len", type=int)
p = argparse.ArgumentParser(description="trains")
add(p)
deepspeed.add_config_arguments(p)
p.add_argument("--fast", action=argparse.BooleanOptionalAction)
args = p.parse_args()
"""
MADE = """
import argparse
from library import train
def made():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seq-len", type=int)
    return parser
def main():
    options = made().parse_args()
    train(options, parser=None)
"""
FIELDS = """
from dataclasses import dataclass
from transformers import HfArgumentParser
@dataclass
class Base:
    seed: int = 0
@dataclass
class Job(Base):
    four_bit: bool = True
job, = HfArgumentParser((Job,)).parse_args_into_dataclasses()
"""


SCHEDULED = (
    "import argparse\np = argparse.ArgumentParser()\n"
    "p.add_argument('--lr_decay')\np.add_argument('--lr_end')\np.parse_args()\n"
)


def said(script: Path, *arguments: str) -> list[str]:
    return misplaced_options(read_script(script, None), "train.py", arguments, "launch")


def test_the_beginning_of_options_may_be_an_option_of_zerokit(tmp_path: Path) -> None:
    """--out of `emit sbatch` writes the job into a file."""
    text = SCHEDULED.replace("'--lr_decay'", "'--output_dir'").replace("'--lr_end'", "'--outputs'")
    facts = read_script(write_script(tmp_path, text), None)
    (said,) = misplaced_options(facts, "train.py", ["--out", "job.sh"], "emit sbatch")
    assert said.endswith(
        "which may be the beginning of --output_dir, --outputs: write it out; options of zerokit stand "
        "before the script: zerokit emit sbatch --out … train.py …"
    )
    (said,) = misplaced_options(facts, "train.py", ["--outp", "job.sh"], "emit sbatch")
    assert said.endswith(": write it out")


@pytest.mark.parametrize(
    ("text", "arguments", "meant"),
    [
        (ARGPARSE, "--seqlen 128", "did you mean --seq-len?"),
        (ARGPARSE, "--seq-len 1 --batch-size=4", "has no option --batch-size, and ends where it gets one: `"),
        (MADE, "--seq_len 3", "did you mean --seq-len?"),
        (FIELDS, "--fourbit", "did you mean --four_bit?"),
        (
            SCHEDULED,
            "--lr 1",
            "ends at --lr, which may be the beginning of --lr_decay, --lr_end: write it out",
        ),
        (SCHEDULED, "--lr_d=3 --lr_end 4", None),
        (ARGPARSE, "--seq 128 --no-fast --deepspeed_config x -v --help", None),  # a beginning is enough
        (ARGPARSE, "--seq-len 1 -- --batch-size", None),
        (FIELDS, "--four-bit --no_four_bit --seed=2", None),
    ],
)
def test_an_option_that_the_script_has_not(
    tmp_path: Path, text: str, arguments: str, meant: str | None
) -> None:
    found = said(write_script(tmp_path, text), *arguments.split())
    if meant is None:
        assert found == []
    else:
        assert len(found) == 1 and found[0].startswith(
            ("warning: train.py has no option --", "warning: train.py ends at --")
        )
        assert meant in found[0]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("p.parse_args()", "p.parse_known_args()"),
        ("p.parse_args()", "p.parse_args(words())"),
        ("p.parse_args()", "p.parse_args()\nimport sys\nprint(sys.argv)"),
        ("add(p)", "from library import add_more\nadd_more(p)"),
        ("add(p)", "p.add_subparsers()"),
        ("add(p)", "for name in names:\n    p.add_argument(name)"),
        ('description="trains"', "parents=[other]"),
        ('description="trains"', 'fromfile_prefix_chars="@"'),
        ("p = argparse.ArgumentParser", "from library import made\np = made"),
        ("import argparse", "import argparse, broken"),
        ("args = p.parse_args()", ""),
    ],
)
def test_where_other_options_may_be_nothing_is_said(tmp_path: Path, old: str, new: str) -> None:
    (tmp_path / "broken.py").write_text("this is no Python")
    assert old in ARGPARSE
    script = write_script(tmp_path, ARGPARSE.replace(old, new))
    assert said(script, "--batch-size", "4") == []


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("(Base)", "(Unread)"),
        ("(Job,)", "(Job, Unread)"),
        (".parse_args_into_dataclasses()", ".parse_args_into_dataclasses(return_remaining_strings=True)"),
        ("bool = True", 'bool = field(metadata={"aliases": ["--batch-size"]})'),
    ],
)
def test_fields_of_classes_that_are_not_read_may_be_any(tmp_path: Path, old: str, new: str) -> None:
    assert old in FIELDS
    assert said(write_script(tmp_path, FIELDS.replace(old, new)), "--batch-size", "4") == []


def test_the_examples() -> None:
    causal, lora = EXAMPLES / "train_causal_lm.py", EXAMPLES / "train_lora.py"
    assert said(causal, "--model", "x", "--deepspeed_config", "x", "--local_rank=0", "--steps", "3") == []
    assert "has no option --epochs" in said(causal, "--epochs", "3")[0]
    if installed_fields("TrainingArguments"):
        assert "did you mean --four_bit?" in said(lora, "--fourbit")[0]
        assert said(lora, "--four_bit", "--max_steps", "3", "--output_dir", "out", "--report_to", "no") == []


def test_an_option_that_lacks_a_word_is_found(tmp_path: Path) -> None:
    text = (
        "from transformers import HfArgumentParser, TrainingArguments\n"
        "HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()\n"
    )
    facts = read_script(write_script(tmp_path, text), None)
    (said,) = misplaced_options(facts, "train.py", ["--per_device_batch_size", "4"], "launch")
    meant = said.partition("did you mean ")[2]
    assert meant == "--per_device_eval_batch_size or --per_device_train_batch_size?"
    (said,) = misplaced_options(facts, "train.py", ["--nothing_like_it", "4"], "launch")
    assert "did you mean" not in said


@pytest.mark.parametrize("begun", ["--lr", "--learning", "--per_device_train", "--warmup", "--learning_rate"])
def test_a_beginning_is_ambiguous_where_the_real_parser_says_so(begun: str, tmp_path: Path) -> None:
    """A Trainer's options have two spellings each, which newer versions of Python do not take for two."""
    transformers = pytest.importorskip("transformers")
    script = write_script(
        tmp_path,
        "from transformers import HfArgumentParser, TrainingArguments\n"
        "args, = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()\n",
    )
    parser = transformers.HfArgumentParser(transformers.TrainingArguments)
    try:
        parser.parse_known_args([begun, "1"])
        is_refused = False
    except SystemExit:
        is_refused = True
    assert bool(said(script, begun, "1")) == is_refused


TEXT = """
parser.add_argument("-s", "--seq-len", type=int, default=128)
parser.add_argument("--model", default=Path(__file__).with_name("tiny.json"))
parser.add_argument("--rate", default=computed())
parser.add_argument("--fast", action="store_true")
"""


def test_options_flags_and_literal_defaults() -> None:
    found = parser_calls(ast.parse(TEXT), Path("folder/train.py"))
    assert found.options == {"-s", "--seq-len", "--model", "--rate", "--fast"}
    assert found.flags == {"--fast"}
    assert found.defaults == {"s": 128, "seq_len": 128, "model": "folder/tiny.json"}
    assert not found.has_subcommands
