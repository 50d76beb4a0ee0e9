"""Strategy → DeepSpeed JSON: the inverse of ``settings.from_config``, accepted by DeepSpeed's classes."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from tests.support.strategies import legal_strategies
from zerokit.domain.deepspeed_settings import DeepSpeedSettings, ZeroSettings, from_config
from zerokit.domain.job import Job
from zerokit.domain.strategy import Strategy
from zerokit.emit.deepspeed import VARIANTS, deepspeed_config, emit_deepspeed, trainer_arguments
from zerokit.errors import InputError

JOB = Job()


def resolved(strategy: Strategy) -> DeepSpeedSettings:
    """The strategy's settings with ``overlap_comm`` written out, as emit writes it."""
    settings = strategy.settings
    if settings.zero.stage == 0:
        return settings
    zero = dataclasses.replace(settings.zero, overlap_comm=settings.zero.overlaps)
    return dataclasses.replace(settings, zero=zero)


@given(legal_strategies())
@hypothesis_settings(max_examples=150, deadline=None)
def test_raw_config_reads_back_as_the_same_settings(strategy: Strategy) -> None:
    config = json.loads(json.dumps(deepspeed_config(strategy, JOB)))
    assert from_config(config) == resolved(strategy)


@pytest.mark.parametrize(
    ("old", "new"), [("cpu_offload", "offload_optimizer"), ("cpu_offload_param", "offload_param")]
)
def test_a_deprecated_offload_flag_is_the_block_that_deepspeed_makes_of_it(old: str, new: str) -> None:
    stage_3 = {"stage": 3}
    as_block = from_config({"zero_optimization": {**stage_3, new: {"device": "cpu"}}})
    assert from_config({"zero_optimization": {**stage_3, old: True}}) == as_block
    assert from_config({"zero_optimization": {**stage_3, old: False}}) != as_block


@given(legal_strategies(), st.sampled_from(VARIANTS))
@hypothesis_settings(max_examples=60, deadline=None)
def test_every_key_has_a_reason(strategy: Strategy, variant: str) -> None:
    emitted = emit_deepspeed(strategy, JOB, variant=variant)
    assert {key for key, _ in _leaves(emitted.config)} == set(emitted.reasons)
    assert all(emitted.reasons.values())


@given(legal_strategies())
@hypothesis_settings(max_examples=60, deadline=None)
def test_raw_has_no_auto_and_trainer_only_where_the_trainer_fills(strategy: Strategy) -> None:
    for variant in ("raw", "accelerate"):
        assert "auto" not in dict(_leaves(deepspeed_config(strategy, JOB, variant=variant))).values()
    filled = {k for k, v in _leaves(deepspeed_config(strategy, JOB, variant="trainer")) if v == "auto"}
    assert filled <= {
        "train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "train_batch_size",
        "gradient_clipping", "optimizer.params.lr", "optimizer.params.betas", "optimizer.params.eps",
        "optimizer.params.weight_decay",
    }  # fmt: skip


def test_train_batch_size_is_left_out_with_tensor_or_sequence_parallel() -> None:
    for degrees in ({"tensor_parallel": 2}, {"sequence_parallel": 2}):
        strategy = Strategy(settings=DeepSpeedSettings(), data_parallel=4, **degrees)
        assert "train_batch_size" not in deepspeed_config(strategy, JOB)
    strategy = Strategy(settings=DeepSpeedSettings(micro_batch=3, gradient_accumulation=5), data_parallel=4)
    assert deepspeed_config(strategy, JOB)["train_batch_size"] == 60


def test_accelerate_variant_leaves_the_optimizer_to_the_script() -> None:
    strategy = Strategy(settings=DeepSpeedSettings(zero=ZeroSettings(stage=2)), data_parallel=2)
    assert "optimizer" in deepspeed_config(strategy, JOB)
    assert "optimizer" not in deepspeed_config(strategy, JOB, variant="accelerate")


def test_contradictions_and_unknown_variants_are_refused() -> None:
    strategy = Strategy(settings=DeepSpeedSettings(autotp_size=4), data_parallel=2, tensor_parallel=2)
    with pytest.raises(InputError, match="autotp_size 4 contradicts tensor_parallel 2"):
        deepspeed_config(strategy, JOB)
    with pytest.raises(InputError, match="raw, trainer, accelerate"):
        deepspeed_config(Strategy(settings=DeepSpeedSettings(), data_parallel=1), JOB, variant="lightning")


def test_trainer_arguments_name_what_the_trainer_must_be_told() -> None:
    strategy = Strategy(
        settings=DeepSpeedSettings(precision="bf16", micro_batch=2, gradient_accumulation=8),
        data_parallel=2,
        checkpointing="full",
    )
    arguments = trainer_arguments(strategy, JOB)
    pairs = dict(zip(arguments[::2], arguments[1::2], strict=True))
    assert pairs["--per_device_train_batch_size"] == "2"
    assert pairs["--gradient_accumulation_steps"] == "8"
    assert pairs["--bf16"] == "True" and pairs["--gradient_checkpointing"] == "True"
    unchecked = trainer_arguments(dataclasses.replace(strategy, checkpointing="none"), Job(trainer="trl"))
    assert unchecked[-2:] == ["--gradient_checkpointing", "False"]  # SFTConfig's own is True
    assert trainer_arguments(strategy, Job(loss="liger")) == [*arguments, "--use_liger_kernel", "True"]


@pytest.mark.parametrize(("clipping", "arguments"), [(1.0, []), (0.5, ["--max_grad_norm", "0.5"])])
def test_a_trainer_is_told_of_clipping_that_is_not_its_default(clipping: float, arguments: list[str]) -> None:
    settings = DeepSpeedSettings(precision="fp32", gradient_clipping=clipping)
    told = trainer_arguments(Strategy(settings=settings, data_parallel=2), JOB)
    assert told[4:] == arguments


def _leaves(config: dict[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for key, value in config.items():
        if isinstance(value, dict):
            found += _leaves(value, f"{prefix}{key}.")
        else:
            found.append((prefix + key, value))
    return found
