"""What an estimate makes of a DeepSpeed file that leaves values to the Trainer."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from zerokit.errors import InputError
from zerokit.planner import estimate
from zerokit.planner.documents import Estimate

OPEN = {
    "train_batch_size": "auto",
    "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": "auto",
    "bf16": {"enabled": "auto"},
    "fp16": {"enabled": "auto"},
    "zero_optimization": {
        "stage": 3, "reduce_bucket_size": "auto", "stage3_prefetch_bucket_size": "auto",
        "stage3_param_persistence_threshold": "auto",
    },
}  # fmt: skip


def estimated(folder: Path, config: Mapping[str, Any], gpu: str = "a100-80gb", **options: Any) -> Estimate:
    path = folder / "ds.json"
    path.write_text(json.dumps(config))
    asked = {"model": "llama-3.1-8b", "gpus": 8, "gpu": gpu, "seq_len": 2048, **options}
    return estimate(asked, deepspeed=path)


@pytest.mark.parametrize(
    ("config", "gpu", "precision", "argument"),
    [
        (OPEN, "a100-80gb", "bf16", "--bf16 or --fp16"),
        (OPEN, "v100-32gb", "fp16", "--bf16 or --fp16"),
        ({**OPEN, "fp16": {"enabled": False}}, "v100-32gb", "fp32", "--bf16"),
        ({**OPEN, "bf16": {"enabled": False}}, "a100-80gb", "fp32", "--fp16"),
        ({**OPEN, "fp16": {"enabled": True}}, "a100-80gb", "fp16", None),
        ({"zero_optimization": {"stage": 3}}, "a100-80gb", "fp32", None),  # DeepSpeed's default
    ],
)
def test_an_open_precision_is_what_the_gpu_runs_best_and_is_said(
    config: dict[str, Any], gpu: str, precision: str, argument: str | None, tmp_path: Path
) -> None:
    found = estimated(tmp_path, config, gpu)
    assert found.planned.strategy.settings.precision == precision
    said = [note for note in found.assumptions if note.startswith("precision")]
    if argument is None:
        assert said == []
    else:
        assert said == [
            f'precision {precision}: the file says "auto", so the Trainer\'s {argument} decides; '
            "give precision"
        ]


def test_options_settle_what_the_file_leaves_open(tmp_path: Path) -> None:
    found = estimated(tmp_path, OPEN, precision="fp16", gradient_accumulation=4, micro_batch=2)
    settings = found.planned.strategy.settings
    assert (settings.precision, settings.micro_batch, settings.gradient_accumulation) == ("fp16", 2, 4)
    assert not any('"auto", so' in note or "; give " in note for note in found.assumptions)
    with pytest.raises(InputError, match="the file of deepspeed decides it"):
        estimated(tmp_path, {**OPEN, "bf16": {"enabled": True}}, precision="fp16")
    with pytest.raises(InputError, match="leaves only bf16 open"):
        estimated(tmp_path, {**OPEN, "fp16": {}}, precision="fp16")
    with pytest.raises(InputError, match="the file of deepspeed decides it"):
        estimated(tmp_path, {**OPEN, "gradient_accumulation_steps": 2}, gradient_accumulation=4)


def test_open_sizes_are_filled_from_the_hidden_size(tmp_path: Path) -> None:
    """With the numbers that Transformers 5.23 gives a hidden size of 4,096."""
    zero = estimated(tmp_path, OPEN).planned.strategy.settings.zero
    assert zero.reduce_bucket_size == 16_777_216
    assert zero.prefetch_bucket_size == 15_099_494
    assert zero.param_persistence_threshold == 40_960
    below = {**OPEN, "zero_optimization": {"stage": 2, "reduce_bucket_size": "auto"}}
    found = estimated(tmp_path, below)
    assert found.planned.strategy.settings.zero.reduce_bucket_size == 16_777_216
    assert any('"auto" for reduce_bucket_size: ' in note for note in found.assumptions)
