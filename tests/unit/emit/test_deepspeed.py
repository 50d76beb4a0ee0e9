"""Strategy → DeepSpeed JSON: the inverse of ``settings.from_config``, accepted by DeepSpeed's classes."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from zerokit.domain.deepspeed_settings import DeepSpeedSettings, Offload, ZeroSettings, from_config
from zerokit.domain.job import Job
from zerokit.domain.strategy import Strategy
from zerokit.emit.deepspeed import VARIANTS, deepspeed_config, emit_deepspeed, trainer_arguments
from zerokit.errors import InputError

JOB = Job()


@st.composite
def legal_strategies(draw: st.DrawFn) -> Strategy:
    """Strategies over the whole space that a planner may draw from."""
    stage = draw(st.integers(0, 3))
    precision = draw(st.sampled_from(["bf16", "fp16", "fp32"]))
    devices = {0: ["none"], 1: ["none", "cpu"], 2: ["none", "cpu"], 3: ["none", "cpu", "nvme"]}[stage]
    optimizer_device = draw(st.sampled_from(devices))
    param_device = draw(st.sampled_from(["none", "cpu", "nvme"])) if stage == 3 else "none"
    size = st.integers(10**5, 10**9)
    offload_optimizer, offload_param = Offload(), Offload(buffer_count=5)
    if optimizer_device != "none":
        nvme = optimizer_device == "nvme"
        offload_optimizer = Offload(
            device=optimizer_device,
            pin_memory=draw(st.booleans()),
            nvme_path="/local/nvme" if nvme else None,
            buffer_count=draw(st.integers(4, 9)) if nvme else 4,
            pipeline_read=nvme and draw(st.booleans()),
            pipeline_write=nvme and draw(st.booleans()),
            ratio=draw(st.sampled_from([1.0, 0.5])) if stage == 3 and not nvme else 1.0,
        )
    if param_device != "none":
        nvme = param_device == "nvme"
        offload_param = Offload(
            device=param_device,
            nvme_path="/local/nvme" if nvme else None,
            buffer_count=draw(st.integers(3, 9)) if nvme else 5,
            buffer_size=draw(size) if nvme else 10**8,
            max_in_cpu=draw(size) if nvme else 10**9,
        )
    zero = ZeroSettings(
        stage=stage,
        reduce_bucket_size=draw(size) if stage else 500_000_000,
        allgather_bucket_size=draw(size) if stage in (1, 2) else 500_000_000,
        overlap_comm=draw(st.sampled_from([None, True, False])) if stage else None,
        sub_group_size=draw(size) if stage == 3 else 10**9,
        prefetch_bucket_size=draw(size) if stage == 3 else 50_000_000,
        param_persistence_threshold=draw(st.integers(0, 10**6)) if stage == 3 else 100_000,
        max_live_parameters=draw(size) if stage == 3 else 10**9,
        zero_quantized_weights=stage == 3 and draw(st.booleans()),
        offload_optimizer=offload_optimizer,
        offload_param=offload_param,
    )
    tensor_parallel = draw(st.sampled_from([1, 1, 2, 4]))
    optimizer = draw(st.sampled_from(["AdamW", "Adam", "Lion", "SGD", "Adagrad", None]))
    return Strategy(
        settings=DeepSpeedSettings(
            precision=precision,
            micro_batch=draw(st.integers(1, 64)),
            gradient_accumulation=draw(st.integers(1, 64)),
            gradient_clipping=draw(st.sampled_from([0.0, 0.5, 1.0])),
            grad_accum_dtype=draw(st.sampled_from([None, "fp32"])),
            communication_data_type=draw(st.sampled_from([None, "fp32", "bf16"])),
            optimizer=optimizer,
            torch_adam=optimizer in ("Adam", "AdamW") and draw(st.booleans()),
            torch_autocast=draw(st.sampled_from([None, "bfloat16"])) if precision == "fp32" else None,
            autotp_size=tensor_parallel,
            bf16_master_weights_and_grads=precision == "bf16" and stage > 0 and draw(st.booleans()),
            zero_force_ds_cpu_optimizer=draw(st.booleans()),
            zero=zero,
        ),
        data_parallel=draw(st.integers(1, 64)),
        tensor_parallel=tensor_parallel,
    )


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
    arguments = trainer_arguments(strategy)
    pairs = dict(zip(arguments[::2], arguments[1::2], strict=True))
    assert pairs["--per_device_train_batch_size"] == "2"
    assert pairs["--gradient_accumulation_steps"] == "8"
    assert pairs["--bf16"] == "True" and pairs["--gradient_checkpointing"] == "True"


def _leaves(config: dict[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for key, value in config.items():
        if isinstance(value, dict):
            found += _leaves(value, f"{prefix}{key}.")
        else:
            found.append((prefix + key, value))
    return found
