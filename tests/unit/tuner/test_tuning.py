"""What a trial of a few steps measured, and when it counts for nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.ranks import run_limited
from tests.support.reports import report_of
from zerokit.tuner.tuning import differences, measured


def rank(number: int, **changed: Any) -> dict[str, Any]:
    return {"rank": number, "steps": 6, "median_step_seconds": 1.0, "engine": None, "timed": None, **changed}


def test_a_trial_is_as_slow_as_its_slowest_rank() -> None:
    ranks = [rank(0, timed={"step_seconds": 1.5}), rank(1, timed={"step_seconds": 2.0})]
    found = measured({"outcome": "stopped", "exit_code": 0, "ranks": ranks}, {}, Path())
    assert found.step_seconds == 2.0 and found.counts
    # a script that ended by itself before the limit has medians
    found = measured({"outcome": "ok", "exit_code": 0, "ranks": [rank(0), rank(1)]}, {}, Path())
    assert found.step_seconds == 1.0 and found.counts


@pytest.mark.parametrize("outcome", ["oom", "rank_failed", "hung", "timed_out", "interrupted"])
def test_a_trial_that_did_not_end_well_does_not_count(outcome: str) -> None:
    report = {"outcome": outcome, "exit_code": 10, "ranks": [rank(0, timed={"step_seconds": 0.1})],
              "first_failure": {"error": "out of memory\nmore", "phase": "backward", "step": 2}}  # fmt: skip
    found = measured(report, {}, Path())
    assert not found.counts
    assert found.problem == "out of memory in backward, step 2"


def test_too_few_steps_time_nothing() -> None:
    found = measured({"outcome": "ok", "exit_code": 0, "ranks": [rank(0, steps=2)]}, {}, Path())
    assert not found.counts and "only 2 optimizer steps" in str(found.problem)


def test_what_ran_otherwise_than_planned_is_named() -> None:
    chosen = {"zero_stage": 2, "micro_batch": 4, "gradient_accumulation": 2, "tensor_parallel": 1,
              "activation_checkpointing": "full"}  # fmt: skip
    engine = {"zero_stage": 2, "micro_batch": 4, "gradient_accumulation": 2, "tensor_parallel": 1,
              "batch_rows": 4, "gradient_checkpointing": True}  # fmt: skip
    assert differences(chosen, engine) == []
    # the loader decides what is fed, whatever the engine was told
    assert differences(chosen, {**engine, "batch_rows": 8}) == ["batch size per GPU 8 ran, not 4"]
    assert (
        "did not turn activation checkpointing on"
        in differences(chosen, {**engine, "gradient_checkpointing": False})[0]
    )
    assert differences(chosen, {**engine, "gradient_checkpointing": None}) == []
    planned = {**chosen, "precision": "bf16"}
    assert differences(planned, {**engine, "dtype": "bfloat16"}) == []
    assert differences(planned, {**engine, "dtype": "uint8"}) == []  # 4-bit weights, packed
    assert differences(planned, {**engine, "dtype": "float32"}) == ["the weights were in fp32, not bf16"]


def test_sequences_laid_end_to_end_are_no_other_batch() -> None:
    chosen = {"zero_stage": 2, "micro_batch": 4, "gradient_accumulation": 1}
    engine = {
        "zero_stage": 2,
        "micro_batch": 4,
        "gradient_accumulation": 1,
        "batch_rows": 1,
        "batch_columns": 500,
    }
    report = {"outcome": "stopped", "exit_code": 0, "ranks": [rank(0, engine=engine)]}
    packed = measured(report, chosen, Path(), seq_len=128)
    assert packed.counts and packed.batch_columns is None
    assert not measured(report, chosen, Path(), seq_len=500).counts


def test_records_of_a_trial_are_read_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_limited(tmp_path, monkeypatch, "5")
    report = report_of(tmp_path, 1, stop_ordered=True)
    assert report["ranks"][0]["timed"]["steps"] == 3
    assert json.loads(json.dumps(report))["outcome"] == "stopped"
