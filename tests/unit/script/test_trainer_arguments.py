"""What a Trainer decides by itself, whatever the plan says."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.scripts_read import (
    FIXED_TRAINER,
    RAW,
    TRAINER,
    options,
    strategy,
)
from zerokit.errors import InputError


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
