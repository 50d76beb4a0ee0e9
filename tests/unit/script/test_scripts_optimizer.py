"""The optimizer that a Trainer's script makes: planned for, handed over, and held to the plan."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.scripts_read import FIXED_TRAINER, PLANNED, RAW, TRAINER, joined, options
from zerokit.errors import InputError
from zerokit.script.scripts_optimizer import conflicts, made_by_script, with_optimizer_of
from zerokit.values import replace

OF_8_BITS = replace(PLANNED, optimizer="adamw_8bit")
CONFIG = {"optimizer": {"type": "AdamW"}}
OF_CODE = """
    from transformers import Trainer, TrainingArguments
    args = TrainingArguments(output_dir="out", optim="{}")
    Trainer(args=args).train()
"""


def test_the_plans_optimizer_is_given_where_the_script_is_to_make_it(tmp_path: Path) -> None:
    assert "--optim adamw_8bit" in joined(options(tmp_path, TRAINER), optimizer="adamw_8bit")
    assert "--optim" not in joined(options(tmp_path, TRAINER))  # DeepSpeed's configuration has it
    given = options(tmp_path, TRAINER, "--optim", "adamw_torch")
    assert "--optim" not in joined(given, optimizer="adamw_8bit")


@pytest.mark.parametrize(
    ("text", "arguments", "said"),
    [
        (TRAINER, "--optim adamw_torch", "--optim adamw_torch, but the plan has optim adamw_8bit"),
        (TRAINER, "--optim=lion_8bit", "--optim lion_8bit, but the plan has optim adamw_8bit"),
        (TRAINER, "--optim adamw_bnb_8bit", None),  # transformers: two names of one optimizer
        (TRAINER, "", None),  # it is added
        (FIXED_TRAINER, "", "optim is adamw_torch_fused by default, but the plan has optim adamw_8bit"),
        (RAW, "--optim adamw_torch", None),  # the script's own matter
    ],
)
def test_another_optimizer_than_the_plans_is_refused(
    tmp_path: Path, text: str, arguments: str, said: str | None
) -> None:
    found = options(tmp_path, text, *arguments.split()).conflicts(OF_8_BITS, added=True)
    assert [one for one in found if "optim" in one] == ([said] if said else [])


def test_only_a_plan_without_deepspeeds_optimizer_leaves_it_to_the_script() -> None:
    request = {"optimizer": "adamw_8bit"}
    assert made_by_script(request, {}) == "adamw_8bit"
    assert made_by_script(request, {"optimizer": {"type": "AdamW"}}) is None
    assert made_by_script({"optimizer": "AdamW"}, {}) is None


def test_a_plan_for_a_script_takes_its_optimizer(tmp_path: Path) -> None:
    with_8_bits = options(tmp_path, TRAINER, "--optim", "adamw_8bit")
    assert with_optimizer_of(with_8_bits, {"gpus": "2"}) == {"gpus": "2", "optimizer": "adamw_8bit"}
    same = {"optimizer": "adamw_bnb_8bit"}
    assert with_optimizer_of(with_8_bits, same) == same
    assert with_optimizer_of(options(tmp_path, TRAINER, "--optim", "adamw_torch"), {}) == {}
    assert with_optimizer_of(options(tmp_path, RAW, "--optim", "adamw_8bit"), {}) == {}


@pytest.mark.parametrize(
    ("optim", "asked", "words"),
    [
        (
            "adamw_8bit",
            {"optimizer": "AdamW"},
            "⟨optimizer⟩ AdamW: --optim adamw_8bit; leave ⟨optimizer⟩ out",
        ),
        ("adamw_torch_4bit", {}, "--optim adamw_torch_4bit: not modelled: torch.compile makes its step"),
    ],
)
def test_a_plan_for_a_script_with_another_optimizer_is_refused(
    tmp_path: Path, optim: str, asked: dict[str, str], words: str
) -> None:
    with pytest.raises(InputError) as caught:
        with_optimizer_of(options(tmp_path, TRAINER, "--optim", optim), asked)
    assert caught.value.marked.startswith(words)


@pytest.mark.parametrize(
    ("text", "arguments", "said"),
    [
        (TRAINER, "--optim adafactor", "--optim adafactor, but the plan has AdamW"),
        (TRAINER, "--optim adamw_torch_fused", None),
        (TRAINER, "--optim adamw_8bit", "--optim adamw_8bit, but the plan has AdamW"),
        (TRAINER, "--optim adamw_torch_4bit", "--optim adamw_torch_4bit, but the plan has AdamW"),
        (OF_CODE.format("adamw_bnb_8bit"), "", "train.py sets optim adamw_bnb_8bit, but the plan has AdamW"),
        (OF_CODE.format("adamw_torch"), "", None),
        (RAW, "--optim adafactor", None),  # the script's own matter
    ],
)
def test_an_optimizer_that_deepspeeds_goes_before_is_named(
    tmp_path: Path, text: str, arguments: str, said: str | None
) -> None:
    found = conflicts(options(tmp_path, text, *arguments.split()), CONFIG)
    assert [said in one for one in found] == [True] if said else found == []


def test_an_optimizer_of_the_users_is_free_where_the_plan_has_none(tmp_path: Path) -> None:
    assert conflicts(options(tmp_path, TRAINER, "--optim", "adafactor"), {}) == []
