"""What is predicted for a run that did another job than its plan's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import zerokit
from zerokit.domain.job import Lora
from zerokit.emit import plan_file
from zerokit.launcher.replan import predict_again, predictor
from zerokit.report.what_ran import Difference

JOB = {
    "model": "llama-3.2-1b", "gpus": 2, "gpu": "h200", "zero": 2,
    "offload_optimizer": "none", "offload_param": "none",
}  # fmt: skip

SAME = {"reduce_bucket": "100m", "overlap_comm": "off"}
"""What a search would choose otherwise for other trained parameters."""


def planned(folder: Path, **job: Any) -> dict[str, Any]:
    """The plan as a launch reads it back from its folder."""
    zerokit.plan(**JOB, **job, out=folder)
    read = plan_file.read(str(folder))
    return {"request": read.request, "chosen": read.chosen}


def ran(option: str | None, value: object) -> Difference:
    """One difference."""
    lora = value if isinstance(value, Lora) else None
    return Difference(what=str(option), planned="?", ran=str(value), option=option, text="", lora=lora)


def test_a_longer_batch_with_accumulation_gets_the_estimate_of_a_plan_for_it(tmp_path: Path) -> None:
    plan = planned(tmp_path / "a", seq_len=1024, micro_batch=1, global_batch=2, checkpointing="none")
    wanted = planned(tmp_path / "b", seq_len=2048, micro_batch=4, global_batch=16, checkpointing="none")
    again = predict_again(
        plan, [ran("seq-len", 2048), ran("micro-batch", 4), ran("gradient-accumulation", 2)]
    )
    assert again.plan is not None
    expected, got = wanted["chosen"]["estimate"], again.plan["chosen"]["estimate"]
    assert got["peak_allocated_bytes"] == expected["peak_allocated_bytes"]
    assert got["peak_allocated_bytes"] > 2 * plan["chosen"]["estimate"]["peak_allocated_bytes"]
    assert got["step_seconds"] == pytest.approx(expected["step_seconds"])


def test_checkpointing_that_the_script_left_off_is_predicted_without_it(tmp_path: Path) -> None:
    plan = planned(tmp_path / "a", seq_len=2048, micro_batch=2, global_batch=4, checkpointing="full")
    without = planned(tmp_path / "b", seq_len=2048, micro_batch=2, global_batch=4, checkpointing="none")
    again = predict_again(plan, [ran("checkpointing", "none")])
    assert again.plan is not None
    expected = without["chosen"]["estimate"]["peak_allocated_bytes"]
    assert again.plan["chosen"]["estimate"]["peak_allocated_bytes"] == expected


@pytest.mark.parametrize(
    ("asked", "differing", "ran_as"),
    [
        ({"gradient_accumulation": 2, "micro_batch": 1}, ("gradient-accumulation", 4),
         {"gradient_accumulation": 4, "micro_batch": 1}),
        ({"reduce_bucket": "100m", "overlap_comm": "off", "micro_batch": 1}, ("seq-len", 2048),
         {"reduce_bucket": "100m", "overlap_comm": "off", "micro_batch": 1, "seq_len": 2048}),
        ({"micro_batch": 1}, ("optimizer", "SGD"), {"micro_batch": 1, "optimizer": "SGD"}),
        ({"micro_batch": 1, "method": "lora", "lora_rank": 8}, ("method", "all"), {"micro_batch": 1}),
        ({"micro_batch": 1, **SAME}, ("method", Lora(rank=8)),
         {"micro_batch": 1, "method": "lora", "lora_rank": 8, **SAME}),
        ({"micro_batch": 1, "method": "lora", "lora_rank": 8}, ("method", Lora(rank=64)),
         {"micro_batch": 1, "method": "lora", "lora_rank": 64}),
    ],
    ids=["a given accumulation", "given buckets", "another optimizer", "all weights for adapters",
         "adapters for all weights", "adapters of another rank"],
)  # fmt: skip
def test_what_was_asked_for_does_not_hinder_it(
    tmp_path: Path, asked: dict[str, Any], differing: tuple[str, object], ran_as: dict[str, Any]
) -> None:
    job = {"seq_len": 1024, "checkpointing": "none"}
    plan, wanted = planned(tmp_path / "a", **(job | asked)), planned(tmp_path / "b", **(job | ran_as))
    again = predict_again(plan, [ran(*differing)])
    assert again.plan is not None
    expected = wanted["chosen"]["estimate"]["peak_allocated_bytes"]
    assert again.plan["chosen"]["estimate"]["peak_allocated_bytes"] == expected


@pytest.mark.parametrize(
    "difference",
    [
        ran(None, 2),
        ran("model", 7_000_000_000),
        ran("method", 851_968),
        ran("seq-len", "many"),
        ran("optimizer", "OfMyOwn"),
    ],
    ids=["a second engine", "another model", "adapters", "no number", "an unknown optimizer"],
)
def test_what_a_plan_cannot_say_is_not_predicted(tmp_path: Path, difference: Difference) -> None:
    plan = planned(tmp_path / "a", seq_len=1024, micro_batch=1, global_batch=2)
    assert predict_again(plan, [ran("micro-batch", 2), difference]).plan is None


def test_a_broken_plan_is_not_predicted() -> None:
    assert predict_again({"request": True, "chosen": {}}, [ran("micro-batch", 2)]).plan is None


def test_only_a_trainer_is_known_to_feed_more_rows_than_its_batch() -> None:
    pairs = [None, {"micro_batch": 2, "batch_rows": 4}]
    assert predictor("trainer", pairs) is None and predictor("raw", pairs) is not None
    assert predictor("trainer", [{"micro_batch": 2, "batch_rows": 2}, {"batch_rows": 4}]) is not None
    row = {"micro_batch": 2, "batch_rows": 1, "batch_columns": 4096}
    assert predictor("trainer", [row]) is not None
