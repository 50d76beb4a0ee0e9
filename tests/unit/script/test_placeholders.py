"""Misspelt placeholders are refused; other braces are the script's own."""

from __future__ import annotations

import pytest

from zerokit.errors import InputError
from zerokit.script.placeholders import PLACEHOLDERS, refuse_misspelt


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
