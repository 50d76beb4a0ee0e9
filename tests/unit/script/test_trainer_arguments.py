"""What a Trainer decides by itself, whatever the plan says."""

from __future__ import annotations

from dataclasses import replace
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
from zerokit.search.space import Pins


def test_a_trainer_that_parses_its_arguments_gets_them(tmp_path: Path) -> None:
    found = options(tmp_path, TRAINER, "--output_dir", "out")
    assert found.pins(Pins()) == (Pins(search_tensor=True), ())
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
        ("bf16=can()", "auto"),
    ],
)
def test_a_trainer_decides_its_precision(tmp_path: Path, arguments: str, precision: str) -> None:
    text = FIXED_TRAINER.replace("gradient_checkpointing=True", arguments)
    assert options(tmp_path, text).precision("auto")[0] == precision
    assert (
        options(tmp_path, TRAINER).precision("auto")
        == options(tmp_path, RAW).precision("auto")
        == ("auto", ())
    )
    assert options(tmp_path, TRAINER).precision("fp16") == ("fp16", ())


def test_what_the_script_decides_cannot_be_asked_for_otherwise(tmp_path: Path) -> None:
    """Its rehearsal would be of the script's values, and the launch would refuse the plan."""
    found = options(tmp_path, FIXED_TRAINER.replace("gradient_checkpointing=True", "bf16=False"))
    with pytest.raises(InputError, match=r"precision bf16: .*trains in fp32; leave precision out"):
        found.precision("bf16")
    assert found.precision("fp32") == ("fp32", ())
    with pytest.raises(InputError, match=r"micro_batch 3: .*sets per_device_train_batch_size 4"):
        found.pins(Pins(micro_batch=3))
    assert found.pins(Pins(micro_batch=4))[0].micro_batch == 4
    with pytest.raises(InputError, match=r"gradient_accumulation 4: .*gradient_accumulation_steps"):
        found.pins(Pins(gradient_accumulation=4))
    given = options(tmp_path, TRAINER, "--per_device_train_batch_size", "8")
    with pytest.raises(InputError, match=r"micro_batch 4: .*per_device_train_batch_size 8"):
        given.pins(Pins(micro_batch=4))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (FIXED_TRAINER, Pins(micro_batch=4, gradient_accumulation=1, checkpointing="full")),
        # the Trainer's defaults
        (
            FIXED_TRAINER.replace("per_device_train_batch_size=4, gradient_checkpointing=True", ""),
            Pins(micro_batch=8, gradient_accumulation=1, checkpointing="none"),
        ),
        # computed: only the run will tell
        (
            FIXED_TRAINER.replace("size=4", "size=compute()"),
            Pins(micro_batch=None, gradient_accumulation=1, checkpointing="full"),
        ),
    ],
)
def test_a_trainer_without_options_fixes_its_batch(tmp_path: Path, text: str, expected: Pins) -> None:
    found = options(tmp_path, text)
    assert found.pins(Pins())[0] == replace(expected, search_tensor=True)
    assert found.arguments(strategy()) == ()
