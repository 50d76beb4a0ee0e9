"""A script that saves its model under a plan whose ZeRO-3 gathers nothing for that."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.scripts_read import TRAINER, options
from zerokit.script.unsaved_weights import warnings

SAVES = TRAINER + "    Trainer(args=args).save_model()\n"
ACCELERATED = """
    from accelerate import Accelerator
    accelerator = Accelerator()
    accelerator.get_state_dict(model)
"""


def _config(stage: int = 3, **zero: bool) -> dict[str, Any]:
    return {"zero_optimization": {"stage": stage, **zero}}


@pytest.mark.parametrize(
    ("text", "config", "method", "said"),
    [
        (SAVES, _config(), "full", "the script's save_model writes no weights that load"),
        (SAVES, _config(stage3_gather_16bit_weights_on_model_save=True), "lora", ""),
        (SAVES, _config(2), "lora", ""),
        (SAVES, {}, "full", ""),
        (TRAINER, _config(), "full", ""),  # its checkpoints are all that it writes
        (ACCELERATED, _config(), "full", "the script's get_state_dict ends with an error"),
        (ACCELERATED, _config(), "qlora", "the script's get_state_dict ends with an error"),
    ],
)
def test_a_save_that_would_lose_the_result_is_named(
    tmp_path: Path, text: str, config: dict[str, Any], method: str, said: str
) -> None:
    found = warnings(options(tmp_path, text).facts, config, method)
    assert len(found) == bool(said)
    converts = "python zero_to_fp32.py" if method == "full" else "load_state_dict_from_zero_checkpoint("
    assert not said or (said in found[0] and converts in found[0])


@pytest.mark.parametrize(
    ("version", "said"), [("4.56.2", True), ("5.0.0", False), ("5.23.0", False), (None, True)]
)
def test_adapters_are_saved_all_the_same_by_a_trainer_of_transformers_5(
    version: str | None, said: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if version is not None:
        (tmp_path / f"transformers-{version}.dist-info").mkdir()
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    found = warnings(options(tmp_path, SAVES).facts, _config(), "lora")
    assert [" save_model writes no adapters that load" in text for text in found] == [True] * said
