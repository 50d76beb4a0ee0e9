"""What a script sets in its own code after its arguments are read is named before the run."""

from __future__ import annotations

import ast
import textwrap
from pathlib import Path

from zerokit.script.assignments import assignments, unlike_plan

SCRIPT = textwrap.dedent(
    """
    args = parser.parse_args()
    args.per_device_train_batch_size = 4
    if args.small:
        training_args.args.bf16 = False
    setattr(args, "gradient_accumulation_steps", 8)
    args.gradient_accumulation_steps = steps()
    args.per_device_train_batch_size = 2
    args.output_dir = "out"

    class Options:
        def __init__(self):
            self.bf16 = False
    """
)
PLANNED = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 1, "bf16": True}


def test_literals_that_differ_from_the_plan_are_named_with_their_line() -> None:
    found = list(assignments(ast.parse(SCRIPT), Path("train.py")))
    said = "\n".join(unlike_plan(found, PLANNED))
    assert "train.py:3 sets args.per_device_train_batch_size to 4 after" in said and "the plan has 2" in said
    assert "train.py:5 sets training_args.args.bf16 to False" in said
    assert "train.py:6 sets args.gradient_accumulation_steps to 8" in said
    assert "train.py:7" not in said  # computed: only the run tells
    assert "train.py:8" not in said and "self.bf16" not in said and "output_dir" not in said
