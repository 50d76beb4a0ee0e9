"""How a script is told of a plan's batch and checkpointing: only by what it declares or the user wrote."""

from __future__ import annotations

from pathlib import Path

from tests.support.scripts_read import (
    NO_TRAINER,
    PLANNED,
    RAW,
    TRAINER,
    joined,
    options,
    strategy,
)
from zerokit.search.space import Pins

PLAIN_RAW = """
    import argparse, deepspeed
    parser = argparse.ArgumentParser()
    deepspeed.add_config_arguments(parser)
    deepspeed.initialize()
"""


def test_declared_options_are_given_and_the_users_come_first(tmp_path: Path) -> None:
    found = options(tmp_path, RAW, "--lr", "0.1", "--", "data.txt")
    assert found.arguments(strategy()) == (
        "--lr", "0.1", "--micro-batch-size", "4", "--gradient-checkpointing", "--", "data.txt",
    )  # fmt: skip
    assert "--gradient-checkpointing" not in found.arguments(strategy("none"))
    assert found.pins(Pins()) == (Pins(), ())


def test_what_the_user_gives_is_fixed_and_not_given_twice(tmp_path: Path) -> None:
    found = options(tmp_path, RAW, "--gradient-checkpointing", "--micro-batch-size=2")
    pins, notes = found.pins(Pins())
    assert (pins.checkpointing, pins.micro_batch) == ("full", 2) and len(notes) == 2
    assert found.arguments(strategy()) == found.user_arguments


def test_placeholders_are_filled_in(tmp_path: Path) -> None:
    given = (
        "--bs={micro_batch}",
        "--acc",
        "{gradient_accumulation}",
        "--ckpt",
        "{checkpointing}",
        '{"a": 1}',
    )
    found = options(tmp_path, PLAIN_RAW, *given)
    assert found.pins(Pins()) == (Pins(), ())
    assert found.arguments(strategy()) == ("--bs=4", "--acc", "2", "--ckpt", "true", '{"a": 1}')
    assert found.arguments(strategy("none"))[4] == "false"


def test_a_script_that_cannot_be_told_fixes_checkpointing(tmp_path: Path) -> None:
    pins, notes = options(tmp_path, PLAIN_RAW).pins(Pins())
    assert pins.checkpointing == "none" and "no option" in notes[0]
    enabled = PLAIN_RAW + "    model.gradient_checkpointing_enable()\n"
    assert options(tmp_path, enabled).pins(Pins())[0].checkpointing == "full"
    # what the user pinned stays
    assert options(tmp_path, PLAIN_RAW).pins(Pins(checkpointing="full")) == (Pins(checkpointing="full"), ())


ALPACA = """
    import transformers
    from dataclasses import dataclass, field
    @dataclass
    class TrainingArguments(transformers.TrainingArguments):
        optim: str = field(default="adamw_torch")
        per_device_train_batch_size: int = field(default=4)
    parser = transformers.HfArgumentParser((TrainingArguments,))
    (args,) = parser.parse_args_into_dataclasses()
    transformers.Trainer(args=args).train()
"""


def test_what_the_plan_decided_is_added_where_the_user_gave_nothing(tmp_path: Path) -> None:
    found = options(tmp_path, TRAINER, "--fp16", "False", "--gradient-accumulation-steps=2")
    assert joined(found) == (
        "--per_device_train_batch_size 4 --max_grad_norm 0.5 --bf16 True --gradient_checkpointing True"
    )
    assert found.conflicts(PLANNED, added=True) == []
    assert joined(options(tmp_path, TRAINER), precision="fp32", checkpointing="none") == (
        "--per_device_train_batch_size 4 --gradient_accumulation_steps 2 --max_grad_norm 0.5"
    )
    # the script's own class has the plan's batch already
    assert "--per_device_train_batch_size" not in joined(options(tmp_path, ALPACA))
    # bf16 on CPU ranks needs one more, or TrainingArguments refuse
    assert joined(found, on_cpu=True).endswith("--use_cpu True")
    assert joined(options(tmp_path, NO_TRAINER)) == (
        "--per_device_train_batch_size 4 --gradient_accumulation_steps 2"
    )
