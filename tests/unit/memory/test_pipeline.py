"""Pipelines: the division is DeepSpeed's own, stages differ as its schedule has them differ."""

from __future__ import annotations

import random

import pytest

from zerokit.catalog import gpus, profiles
from zerokit.domain.deepspeed_settings import from_config
from zerokit.domain.hardware import Cluster
from zerokit.domain.job import Job
from zerokit.domain.strategy import Strategy
from zerokit.memory.estimate import covers, estimate_traced
from zerokit.memory.pipeline import partition_balanced


def test_layers_are_divided_as_deepspeed_divides_them() -> None:
    theirs = pytest.importorskip("deepspeed.runtime.utils").partition_balanced
    draw = random.Random(7)
    for _ in range(150):
        weights = [draw.choice([5, 10, 10, 10, 50, draw.randint(1, 99)]) for _ in range(draw.randint(2, 40))]
        parts = draw.randint(1, 9)
        assert partition_balanced(weights, parts) == [int(p) for p in theirs(weights, parts)]


def _estimate(stages: int, micro_batches: int, stage: int = 1, data_parallel: int = 2):  # type: ignore[no-untyped-def]
    profile = profiles.load("llama-3.1-8b")
    assert profile is not None
    config = {
        "bf16": {"enabled": True},
        "optimizer": {"type": "AdamW", "params": {}},
        "zero_optimization": {"stage": stage},
        "gradient_accumulation_steps": micro_batches,
        "train_micro_batch_size_per_gpu": 1,
    }
    strategy = Strategy(settings=from_config(config), data_parallel=data_parallel, pipeline_parallel=stages)
    job = Job(seq_len=2048)
    assert covers(profile, job, strategy) == (stage < 2)
    if stage >= 2:
        return None
    cluster = Cluster(gpu=gpus.load("h200"), gpus=stages * data_parallel, nodes=1)
    return estimate_traced(profile, job, strategy, cluster)


def test_every_rank_is_in_one_stage() -> None:
    found = _estimate(4, 8)
    covered = [rank for entry in found.ranks for rank in range(entry.first, entry.last + 1)]
    assert covered == list(range(8))


def test_the_first_stage_keeps_the_most_micro_batches() -> None:
    """Stage s of p holds min(p − s, micro-batches): differences are whole micro-batches of a layer stack."""
    peaks = [entry.peak_allocated_bytes for entry in _estimate(4, 8).ranks if entry.first % 2 == 0]
    assert peaks[0] > peaks[2] and peaks[1] > peaks[2]
    one = [entry.peak_allocated_bytes for entry in _estimate(4, 1).ranks if entry.first % 2 == 0]
    assert one[0] < peaks[0]
    enough = [entry.peak_allocated_bytes for entry in _estimate(4, 64).ranks if entry.first % 2 == 0]
    assert enough == peaks  # more micro-batches than stages are never in flight


def test_components_sum_to_the_peak_on_every_stage() -> None:
    for entry in _estimate(2, 4).ranks:
        assert sum(entry.components.values()) == entry.peak_allocated_bytes


def test_no_stage_2_under_a_pipeline() -> None:
    assert _estimate(2, 4, stage=2) is None
