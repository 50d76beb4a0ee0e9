"""How a script is told of a plan's batch and checkpointing: only by what it declares or the user wrote."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.scripts_read import (
    FIXED_TRAINER,
    NO_TRAINER,
    PLANNED,
    RAW,
    TRAINER,
    joined,
    options,
    strategy,
)
from zerokit.errors import InputError
from zerokit.launcher.plan_agreement import contradictions
from zerokit.script.arguments import PLACEHOLDERS, refuse_misspelt

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
    assert found.fixed() == []


def test_what_the_user_gives_is_fixed_and_not_given_twice(tmp_path: Path) -> None:
    found = options(tmp_path, RAW, "--gradient-checkpointing", "--micro-batch-size=2")
    assert [(one.setting.option, one.value) for one in found.fixed()] == [
        ("checkpointing", "full"), ("micro-batch", 2),
    ]  # fmt: skip
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
    assert found.fixed() == []
    assert found.arguments(strategy()) == ("--bs=4", "--acc", "2", "--ckpt", "true", '{"a": 1}')
    assert found.arguments(strategy("none"))[4] == "false"


def test_a_script_that_cannot_be_told_fixes_checkpointing(tmp_path: Path) -> None:
    (fixed,) = options(tmp_path, PLAIN_RAW).fixed()
    assert fixed.value == "none" and "no option" in fixed.where
    enabled = PLAIN_RAW + "    model.gradient_checkpointing_enable()\n"
    assert options(tmp_path, enabled).fixed()[0].value == "full"


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
    assert contradictions(found, PLANNED, added=True) == []
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


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("{microbatch}", "{micro_batch}"),
        ("--batch={micro-batch}", "{micro_batch}"),
        ("{Micro_Batch}", "{micro_batch}"),
        ("{micro_batch_size}", "{micro_batch}"),
        ("{grad_accumulation}", "{gradient_accumulation}"),
        ("{gradient_accumulation_steps}", "{gradient_accumulation}"),
        ("run-{checkpointng}", "{checkpointing}"),
    ],
)
def test_a_misspelt_placeholder_is_refused(typed: str, meant: str) -> None:
    with pytest.raises(InputError) as refused:
        refuse_misspelt(["--batch", *PLACEHOLDERS, typed])
    braces = typed[typed.index("{") :]
    assert str(refused.value).startswith(braces) and str(refused.value).endswith(f"did you mean {meant}?")


@pytest.mark.parametrize(
    "own",
    ["{epoch}", "{batch}", "{checkpoint}", "{step}-{loss:.2f}", '{"microbatch": 2}', "microbatch", "{}"],
)
def test_other_braces_are_the_scripts_own(own: str) -> None:
    refuse_misspelt([*PLACEHOLDERS, own, f"--name={own}"])


def test_a_trainer_that_parses_its_arguments_gets_them(tmp_path: Path) -> None:
    found = options(tmp_path, TRAINER, "--output_dir", "out")
    assert found.fixed() == []
    assert found.arguments(strategy()) == (
        "--output_dir", "out", "--per_device_train_batch_size", "4", "--gradient_accumulation_steps", "2",
        "--bf16", "True", "--gradient_checkpointing", "True",
    )  # fmt: skip
    assert "--bf16" not in found.arguments(strategy(precision="fp32"))
    placed = options(tmp_path, TRAINER, "--per_device_train_batch_size", "{micro_batch}")
    assert placed.arguments(strategy())[:2] == ("--per_device_train_batch_size", "4")
    assert placed.arguments(strategy()).count("--per_device_train_batch_size") == 1


def test_a_trainer_fed_from_a_file_is_not_added_to(tmp_path: Path) -> None:
    given = str(tmp_path / "arguments.json")
    Path(given).write_text("{}")
    found = options(tmp_path, TRAINER, given)
    assert found.arguments(strategy()) == (given,)


@pytest.mark.parametrize("given", [("no.json",), ("no.yaml",), ("--config", "no.yaml"), ("--config=no.yml",)])
def test_a_file_of_arguments_that_does_not_exist_is_named(tmp_path: Path, given: tuple[str, ...]) -> None:
    with pytest.raises(InputError, match=rf"{' '.join(given).replace('=', ' ')}: .*/no\.\w+ does not exist"):
        options(tmp_path, TRAINER, *given)
    # a loop of the user's own may look for it elsewhere
    assert options(tmp_path, RAW, *given).user_arguments == given


@pytest.mark.parametrize(
    ("arguments", "precision"),
    [
        ("", "fp32"),
        ("bf16=True", "bf16"),
        ("fp16=True", "fp16"),
        ("bf16=False", "fp32"),
        ("bf16=can()", None),
    ],
)
def test_a_trainer_decides_its_precision(tmp_path: Path, arguments: str, precision: str | None) -> None:
    text = FIXED_TRAINER.replace("gradient_checkpointing=True", arguments)
    fixed = {one.setting.name: one.value for one in options(tmp_path, text).fixed()}
    assert fixed.get("precision") == precision
    assert options(tmp_path, TRAINER).fixed() == []
    assert "precision" not in {one.setting.name for one in options(tmp_path, RAW, "--bf16").fixed()}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (FIXED_TRAINER, {"checkpointing": "full", "micro-batch": 4}),
        # the Trainer's defaults
        (
            FIXED_TRAINER.replace("per_device_train_batch_size=4, gradient_checkpointing=True", ""),
            {"checkpointing": "none", "micro-batch": 8},
        ),
        # computed: only the run will tell
        (
            FIXED_TRAINER.replace("size=4", "size=compute()"),
            {"checkpointing": "full"},
        ),
    ],
)
def test_a_trainer_without_options_fixes_its_batch(
    tmp_path: Path, text: str, expected: dict[str, object]
) -> None:
    found = options(tmp_path, text)
    assert {one.setting.option: one.value for one in found.fixed()} == {
        **expected, "gradient-accumulation": 1, "precision": "fp32",
    }  # fmt: skip
    assert found.arguments(strategy()) == ()
