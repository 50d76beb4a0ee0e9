"""What a script's calls of argparse declare, and whether that is all that it takes."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.support.ranks import write_script
from zerokit.errors import InputError
from zerokit.script.argument_warnings import misplaced
from zerokit.script.entry_points import Target
from zerokit.script.parser_calls import parser_calls
from zerokit.script.reader import read_script

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


def is_refused(script: Path) -> bool:
    """Whether an option of launch among its arguments is known to be none of the script's."""
    facts = read_script(script, None)
    try:
        return (
            misplaced(facts, Target(script="train.py", module=None, arguments=("--recipe", "4")), "launch")
            != []
        )
    except InputError:
        return True


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("p.parse_args()", "p.parse_known_args()"),
        ("p.parse_args()", "p.parse_args()\nimport sys\nprint(sys.argv)"),
        ("add(p)", "from library import add_more\nadd_more(p)"),
        ("add(p)", "p.add_subparsers()"),
        ("add(p)", "for name in names:\n    p.add_argument(name)"),
        ('description="trains"', "parents=[other]"),
        ('description="trains"', 'fromfile_prefix_chars="@"'),
        ("import argparse", "import argparse, broken"),
        ("args = p.parse_args()", ""),
    ],
)
def test_where_other_options_may_be_nothing_is_said(tmp_path: Path, old: str, new: str) -> None:
    (tmp_path / "broken.py").write_text("this is no Python")
    assert old in ARGPARSE
    assert is_refused(write_script(tmp_path, ARGPARSE))
    assert not is_refused(write_script(tmp_path, ARGPARSE.replace(old, new)))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("(Base)", "(Unread)"),
        ("(Job,)", "(Job, Unread)"),
        ("(Base)", "(TrainingArguments, Unread)"),
        (".parse_args_into_dataclasses()", ".parse_args_into_dataclasses(return_remaining_strings=True)"),
    ],
)
def test_fields_of_classes_that_are_not_read_may_be_any(tmp_path: Path, old: str, new: str) -> None:
    assert old in FIELDS
    assert is_refused(write_script(tmp_path, FIELDS))
    assert not is_refused(write_script(tmp_path, FIELDS.replace(old, new)))


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
