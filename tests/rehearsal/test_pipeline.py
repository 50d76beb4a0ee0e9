"""A pipeline: what a rehearsal of one stage says of the others."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.rehearsals import SCRIPTS, rehearse

pytest.importorskip("deepspeed")


@pytest.mark.slow
def test_the_first_stage_does_not_speak_for_the_others(tmp_path: Path) -> None:
    config = tmp_path / "ds.json"
    config.write_text('{"train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 2,'
                      ' "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}}}')  # fmt: skip
    script = SCRIPTS.parents[1] / "scripts" / "pipeline.py"
    _, said, _ = rehearse(
        tmp_path,
        "--gpu",
        "h200",
        "--gpus",
        "2",
        str(script),
        "--deepspeed_config",
        str(config),
        "--deepspeed",
    )
    assert any(
        "stage 1 of 2" in warning and "counts no waiting" in warning for warning in said["warnings"]
    ), said
