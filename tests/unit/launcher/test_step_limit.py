"""Ranks that stop at a step limit: what they write, and that no report takes them for finished training."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.ranks import read_rank, run_rank, write_script
from tests.support.reports import report_of
from zerokit.launcher.verdict.report import report_of_folder
from zerokit.tuner.trial import differences, measured

SCRIPT = """
    import time

    # an engine as zerokit.launcher.rank.hooks takes hold of it, without torch or DeepSpeed
    from zerokit.launcher.rank import probe; from zerokit.launcher.rank import step_limit as steplimit

    limit = steplimit.of_environment(probe.ACTIVE)
    for step in range(100):
        time.sleep(0.02 if step < 2 else 0.01)
        probe.ACTIVE.step_done()
        if limit is not None:
            limit.step_done()
    print("trained to the end")
"""


def run_limited(folder: Path, monkeypatch: pytest.MonkeyPatch, steps: str | None) -> tuple[int, str]:
    if steps is not None:
        monkeypatch.setenv("ZEROKIT_STOP_AFTER_STEPS", steps)
    code, out, err = run_rank(folder, write_script(folder, SCRIPT))
    assert "Traceback" not in err, err
    return code, out


def test_a_rank_stops_at_its_last_step_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code, out = run_limited(tmp_path, monkeypatch, "6")
    assert (code, out) == (0, "")
    log = read_rank(tmp_path)
    end, timed = log.last("end"), log.last("timed")
    assert end is not None and (end["state"], end["exit_code"], end["steps"]) == ("stopped", 0, 6)
    assert timed is not None and timed["steps"] == 4
    assert 0.009 < timed["step_seconds"] < 0.2
    assert log.records[-1] is end


def test_without_a_limit_the_script_runs_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code, out = run_limited(tmp_path, monkeypatch, None)
    assert (code, out.strip()) == (0, "trained to the end")
    assert read_rank(tmp_path).last("end")["state"] == "finished"  # type: ignore[index]


def test_a_stopped_run_is_reported_as_stopped_and_never_as_ok(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_limited(tmp_path, monkeypatch, "4")
    again = report_of_folder(tmp_path).to_dict()
    assert (again["outcome"], again["ranks"][0]["state"]) == ("stopped", "stopped")
    # a peer that trained on, or that never reported, spoils it
    both = report_of(tmp_path, 2)
    assert (both["outcome"], both["exit_code"]) == ("launcher_lost", 12)


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
