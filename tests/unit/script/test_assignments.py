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
    said = unlike_plan(found, PLANNED, PLANNED, "zerokit plan --micro-batch 4")
    assert said[0] == (
        "warning: train.py:3 sets args.per_device_train_batch_size to 4 after the arguments are read: 4 is "
        "what runs, not the plan's 2, and the run ends as not planned, with exit code 9"
    )
    assert [text.split()[1] for text in said] == ["train.py:3", "train.py:5", "train.py:6"]  # 7 is computed
    assert "sets training_args.args.bf16 to False" in said[1]
    assert said[2].endswith(
        "exit code 9; remove those lines, or plan for what it does: `zerokit plan --micro-batch 4`"
    )


def test_what_ends_no_run_is_not_said_to() -> None:
    found = list(assignments(ast.parse("args.gradient_checkpointing = False"), Path("train.py")))
    (said,) = unlike_plan(found, {"gradient_checkpointing": True}, (), "")
    assert said.endswith("False is what runs, not the plan's True; remove that line, or plan for it")
