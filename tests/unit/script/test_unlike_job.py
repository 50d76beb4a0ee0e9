"""What a Trainer's user asks for besides what the plan decides."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.scripts_read import TRAINER, options
from zerokit.script import unlike_job

DPO = TRAINER.replace("Trainer(args=args)", "trl.DPOTrainer(args=args)")
GRPO = TRAINER.replace("Trainer(args=args)", "trl.GRPOTrainer(args=args)")


@pytest.mark.parametrize(
    ("text", "arguments", "method", "said"),
    [
        (TRAINER, "", "full", []),
        (TRAINER, "--use_peft", "full", ["--use_peft trains adapters, and the plan trains all weights"]),
        (TRAINER, "--use_peft --load_in_4bit", "lora", ["--load_in_4bit holds the weights in 4 bits"]),
        (TRAINER, "--use_peft --load_in_4bit", "qlora", []),
        (DPO, "", "full", ["DPOTrainer may hold a reference"]),
        (DPO, "--use_peft", "lora", []),  # its reference is the model without the adapters
        (GRPO, "", "full", ["GRPOTrainer generates between its steps"]),
    ],
)
def test_another_job_than_the_plans_is_named(
    tmp_path: Path, text: str, arguments: str, method: str, said: list[str]
) -> None:
    found = unlike_job.warnings(options(tmp_path, text, *arguments.split()), method)
    assert len(found) == len(said), found
    assert all(part in one for part, one in zip(said, found, strict=True)), found
