"""What a Trainer decides by itself, whatever the plan says."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.scripts_read import (
    FIXED_TRAINER,
    PLANNED,
    RAW,
    TRAINER,
    joined,
    options,
    strategy,
)
from zerokit.script.arguments import ScriptOptions
from zerokit.script.reader import read_script
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
    found = options(tmp_path, TRAINER, "arguments.json")
    assert found.arguments(strategy()) == ("arguments.json",)


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
    assert options(tmp_path, text).precision("fp16") == ("fp16", ())
    assert (
        options(tmp_path, TRAINER).precision("auto")
        == options(tmp_path, RAW).precision("auto")
        == ("auto", ())
    )


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


def test_trls_own_defaults_and_configuration_file_count(tmp_path: Path) -> None:
    """bf16 and checkpointing are on in TRL's classes; its parser reads ``--config``."""
    trl = pytest.importorskip("trl")
    facts = read_script(Path(trl.__file__).parent / "scripts" / "sft.py", None)
    assert facts.style == "trainer"
    (tmp_path / "x.yaml").write_text("gradient_accumulation_steps: 4\nmax_length: 512\n")
    found = ScriptOptions.read(
        facts, facts.style, ("--dataset_name", "d", "--config", str(tmp_path / "x.yaml"))
    )
    assert found.defaults["max_length"] == 512
    assert joined(found) == "--per_device_train_batch_size 4 --max_grad_norm 0.5"
    assert joined(found, precision="fp32", checkpointing="none") == (
        "--per_device_train_batch_size 4 --max_grad_norm 0.5 --bf16 False --gradient_checkpointing False"
    )
    (conflict,) = found.conflicts(PLANNED, added=True)
    assert (
        "x.yaml: gradient_accumulation_steps: 4, but the plan has gradient_accumulation_steps 2" in conflict
    )
    assert found.pins(Pins())[0].micro_batch is None and found.pins(Pins())[0].gradient_accumulation == 4
