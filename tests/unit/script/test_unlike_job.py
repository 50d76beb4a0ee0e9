"""What a Trainer's user asks for besides what the plan decides."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.scripts_read import RAW, TRAINER, options
from zerokit.script import unlike_job

CONFIG = {"optimizer": {"type": "AdamW"}}
DPO = TRAINER.replace("Trainer(args=args)", "trl.DPOTrainer(args=args)")
FIXED = """
    from transformers import Trainer, TrainingArguments
    args = TrainingArguments(output_dir="out", optim="{}")
    Trainer(args=args).train()
"""
GRPO = TRAINER.replace("Trainer(args=args)", "trl.GRPOTrainer(args=args)")


@pytest.mark.parametrize(
    ("text", "arguments", "said"),
    [
        (TRAINER, "--fsdp full_shard", "--fsdp full_shard: FSDP and DeepSpeed exclude each other"),
        (TRAINER, "--optim adafactor", "--optim adafactor, but the plan has AdamW"),
        (TRAINER, "--optim adamw_torch_fused", None),
        (TRAINER, "--optim adamw_8bit", "--optim adamw_8bit, but the plan has AdamW"),
        (TRAINER, "--optim adamw_torch_4bit", "--optim adamw_torch_4bit, but the plan has AdamW"),
        (FIXED.format("adamw_bnb_8bit"), "", "train.py sets optim adamw_bnb_8bit, but the plan has AdamW"),
        (FIXED.format("adamw_torch"), "", None),
        (RAW, "--optim adafactor", None),  # the script's own matter
    ],
)
def test_what_deepspeed_excludes_or_overrides(
    tmp_path: Path, text: str, arguments: str, said: str | None
) -> None:
    found = unlike_job.conflicts(options(tmp_path, text, *arguments.split()), CONFIG)
    assert [said in one for one in found] == [True] if said else found == []


def test_an_optimizer_of_the_users_is_free_where_the_plan_has_none(tmp_path: Path) -> None:
    assert unlike_job.conflicts(options(tmp_path, TRAINER, "--optim", "adafactor"), {}) == []


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
