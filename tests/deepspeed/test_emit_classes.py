"""What is written for DeepSpeed, read by DeepSpeed's own classes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from tests.support.strategies import legal_strategies
from zerokit.domain.job import Job
from zerokit.domain.strategy import Strategy
from zerokit.emit.deepspeed import VARIANTS, deepspeed_config

JOB = Job()


@given(legal_strategies(), st.sampled_from(VARIANTS))
@hypothesis_settings(max_examples=60, deadline=None)
def test_deepspeeds_own_classes_accept_it(strategy: Strategy, variant: str) -> None:
    config_module = pytest.importorskip("deepspeed.runtime.config")
    config = deepspeed_config(strategy, JOB, variant=variant)
    config.pop("train_batch_size", None)  # checked against the world size, which is 1 here
    config = {key: value for key, value in config.items() if value != "auto"}
    config.setdefault("train_micro_batch_size_per_gpu", 1)
    read = config_module.DeepSpeedConfig(config)
    assert read.zero_optimization_stage == strategy.settings.zero.stage
    assert read.zero_config.overlap_comm == strategy.settings.zero.overlaps
    if variant == "raw":
        assert read.train_micro_batch_size_per_gpu == strategy.settings.micro_batch
