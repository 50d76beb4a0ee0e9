"""No lever that the model counts makes a plan faster unseen: it is used, or offered with its gain."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import zerokit
from benchmarks.levers import JOBS, unnamed_gains
from zerokit.errors import NothingFits


@pytest.mark.parametrize("job", [{"model": "llama-3.1-8b", "gpus": 4, "gpu": "h100-sxm-80gb"}], ids=str)
def test_no_lever_is_missed(job: dict[str, Any], tmp_path: Path) -> None:
    assert not unnamed_gains(job, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("job", JOBS, ids=lambda job: "-".join(map(str, job.values())))
def test_no_lever_is_missed_over_the_catalogue(job: dict[str, Any], tmp_path: Path) -> None:
    assert not unnamed_gains(job, tmp_path)


def test_what_is_offered_is_what_asking_for_it_gives() -> None:
    job = {"model": "llama-3.1-8b", "gpus": 4, "gpu": "h100-sxm-80gb", "seq_len": 4096, "global_batch": 32}
    plan = zerokit.plan(**job)
    (gain,) = (one for one in plan.plan.gains if "adamw_8bit" in one.remedy.title)
    asked = zerokit.plan(**job, optimizer="adamw_8bit").chosen.estimate.step_seconds
    assert plan.chosen.estimate.step_seconds / asked - 1 == pytest.approx(gain.share, abs=0.01)


def test_the_simplest_of_equals_is_chosen() -> None:
    """70B on 16 H100s took weight offload for 0.4 % of a step; Llama-3.1-8B measured fastest under ZeRO-1."""
    large = zerokit.plan(model="llama-3.1-70b", gpus=16, gpu="h100-sxm-80gb").chosen.strategy
    assert large.settings.zero.offload_param.device == "none"
    quality = {"model": "llama-3.1-8b", "gpus": 4, "gpu": "h200", "seq_len": 4096, "global_batch": 16}
    assert zerokit.plan(**quality).chosen.strategy.settings.zero.stage == 1


def test_a_second_copy_of_the_weights_is_kept_where_the_network_is_slow() -> None:
    job = {"model": "llama-3.1-70b", "gpus": 64, "gpu": "h100-sxm-80gb"}
    slow = zerokit.plan(**job, network="100Gb/s").chosen
    assert slow.strategy.settings.zero.zero_hpz_partition_size == 8
    single = zerokit.plan(**{**job, "gpus": 8}).chosen
    assert single.strategy.settings.zero.zero_hpz_partition_size == 1


def test_an_fp32_job_names_bf16() -> None:
    plan = zerokit.plan(model="qwen2.5-3b", gpus=2, gpu="h100-sxm-80gb", precision="fp32")
    assert any("--precision bf16" in line for line in plan.to_dict()["faster_with"])


def test_an_evaluation_that_alone_does_not_fit_is_named() -> None:
    job: dict[str, Any] = {
        "model": "llama-3.2-1b",
        "method": "lora",
        "gpus": 1,
        "gpu": "h200",
        "vram": "24GiB",
    }
    assert zerokit.plan(**job)
    with pytest.raises(NothingFits) as stopped:
        zerokit.plan(**job, eval_batch=32)
    assert "eval_batch 1" in str(stopped.value)
    assert zerokit.plan(**job, eval_batch=1)
