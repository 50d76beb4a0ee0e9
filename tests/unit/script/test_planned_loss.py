"""A plan with another loss than the model's own: a Trainer is told, other scripts are warned of."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.scripts_read import FIXED_TRAINER, NO_TRAINER, RAW, TRAINER, options
from zerokit.errors import InputError
from zerokit.script.agreement import Agreement, agree
from zerokit.script.planned_loss import why_left_out

SFT = TRAINER.replace("Trainer(args", "SFTTrainer(args")
CHOSEN = {"micro_batch": 4, "gradient_accumulation": 1, "activation_checkpointing": "none"}


def agreed(
    folder: Path, text: str, *given: str, loss: str = "liger", on_cpu: bool = False, **chosen: Any
) -> Agreement:
    return agree(
        options(folder, text, *given), CHOSEN | chosen, {"bf16": {"enabled": True}}, request={"loss": loss},
        seq_len=128, method="full", lora=None, plan_folder=folder / "plan", on_cpu=on_cpu, no_arguments=False,
        accept_mismatch=False, writes_here=False,
    )  # fmt: skip


def warned(found: Agreement) -> list[str]:
    return [note for note in found.notes if "the plan counts on ⟨loss⟩" in note]


def test_a_trainer_is_told_to_fuse_head_and_loss(tmp_path: Path) -> None:
    found = agreed(tmp_path, TRAINER)
    assert "--use_liger_kernel True" in " ".join(found.added) and not warned(found)
    assert "use_liger" not in " ".join(agreed(tmp_path, TRAINER, loss="standard").added)
    # Liger's kernels are a GPU's
    assert "use_liger" not in " ".join(agreed(tmp_path, TRAINER, on_cpu=True).added)
    given = agreed(tmp_path, TRAINER, "--use_liger_kernel", "True")
    assert "use_liger" not in " ".join(given.added)
    # a script that was rehearsed was rehearsed with its own loss
    assert "use_liger" not in " ".join(agreed(tmp_path, TRAINER, rehearsed={"script": "train.py"}).added)


def test_a_trainer_that_does_not_fuse_them_contradicts_the_plan(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="--use_liger_kernel False, but the plan has use_liger_kernel True"):
        agreed(tmp_path, TRAINER, "--use_liger_kernel", "False")
    fixed = FIXED_TRAINER.replace("gradient_checkpointing=True", "bf16=True")
    with pytest.raises(InputError, match="use_liger_kernel is False by default"):
        agreed(tmp_path, fixed)
    agreed(tmp_path, fixed.replace("bf16=True", "bf16=True, use_liger_kernel=True"))


@pytest.mark.parametrize(
    ("text", "loss", "is_warned"),
    [
        (RAW, "liger", True),
        (
            RAW + "    from liger_kernel.transformers import LigerForCausalLMLoss as L\n    L()\n",
            "liger",
            False,
        ),
        (NO_TRAINER, "cut", True),
        (NO_TRAINER + "    linear_cross_entropy(1, 2)\n", "cut", False),
        (SFT, "liger", True),
        (SFT, "chunked", False),
        (TRAINER, "chunked", True),
        (RAW, "standard", False),
    ],
)
def test_a_script_without_a_sign_of_the_loss_is_warned_of(
    text: str, loss: str, is_warned: bool, tmp_path: Path
) -> None:
    found = agreed(tmp_path, text, loss=loss)
    assert bool(warned(found)) is is_warned, found.notes
    assert "use_liger" not in " ".join(found.added)


@pytest.mark.parametrize(
    ("text", "arguments", "loss", "is_left_out"),
    [
        (TRAINER, "", "liger", True),
        (TRAINER, "--use_liger_kernel False", "liger", True),
        (TRAINER, "--use_liger_kernel True", "liger", False),
        (FIXED_TRAINER.replace("size=4", "size=4, use_liger_kernel=True"), "", "liger", False),
        (SFT, "--use_liger_kernel True", "liger", True),
        (SFT, "", "chunked", False),
        (RAW, "", "cut", True),
        (RAW + "    linear_cross_entropy(1, 2)\n", "", "cut", False),
        (RAW, "", "standard", False),
    ],
)
def test_a_loss_that_a_rehearsal_will_not_run_is_left_out_of_its_plan(
    tmp_path: Path, text: str, arguments: str, loss: str, is_left_out: bool
) -> None:
    why = why_left_out(options(tmp_path, text, *arguments.split()), loss)
    assert (why is not None) is is_left_out
    assert why is None or why.startswith(f"⟨loss⟩ {loss} left out: the script shows no sign of it")
