"""A script that saves its model under a plan whose ZeRO-3 gathers nothing for that."""

from __future__ import annotations

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
        (SAVES, _config(), "lora", "the script's save_model writes no adapters that load: the plan's ZeRO-3"),
        (SAVES, _config(), "full", "the script's save_model writes no weights that load"),
        (SAVES, _config(stage3_gather_16bit_weights_on_model_save=True), "lora", ""),
        (SAVES, _config(2), "lora", ""),
        (SAVES, {}, "full", ""),
        (TRAINER, _config(), "full", ""),  # its checkpoints are all that it writes
        (ACCELERATED, _config(), "full", "the script's get_state_dict ends with an error"),
    ],
)
def test_a_save_that_would_lose_the_result_is_named(
    tmp_path: Path, text: str, config: dict[str, Any], method: str, said: str
) -> None:
    found = warnings(options(tmp_path, text).facts, config, method)
    assert len(found) == bool(said)
    assert not said or (said in found[0] and "python zero_to_fp32.py" in found[0])
