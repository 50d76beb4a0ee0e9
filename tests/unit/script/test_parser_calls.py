"""What calls of argparse say."""

from __future__ import annotations

import ast
from pathlib import Path

from zerokit.script.parser_calls import parser_calls

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
