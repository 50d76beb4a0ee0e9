"""Every rule, against DeepSpeed itself: what the table says raises does, what it calls silent passes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from zerokit.domain.deepspeed_settings import (
    DEEPSPEED_VERSION,
    DeepSpeedSettings,
    Offload,
    ZeroSettings,
    from_config,
)
from zerokit.domain.strategy import Strategy
from zerokit.linter.deepspeed.deep import DeepCase, DeepResult, run_deep
from zerokit.linter.deepspeed.tables import minor
from zerokit.rules import RULES, Setup, first_violation, rule, violations

ON = {"enabled": True}
CPU = {"device": "cpu"}
ADAM = {"type": "AdamW", "params": {"lr": 1e-4}}


@dataclass
class Provocation:
    """A configuration that breaks one rule.

    ``says``: part of DeepSpeed's own message, for the rules that are not silent; ``None``: it only warns.
    """

    config: dict[str, Any]
    says: str | None = ""
    world_size: int = 1
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    mode: str = "initialize"
    more: dict[str, Any] = field(default_factory=dict)


def z(stage: object, says: str | None = "", /, **zero: Any) -> Provocation:
    """Stage and keys of zero_optimization, in bf16 with AdamW."""
    return top(says, zero_optimization={"stage": stage, **zero})


def top(says: str | None = "", /, **keys: Any) -> Provocation:
    config = {"train_micro_batch_size_per_gpu": 1, "optimizer": ADAM, "bf16": ON, **keys}
    return Provocation(config, says)


def with_(provocation: Provocation, **changes: Any) -> Provocation:
    for name, value in changes.items():
        setattr(provocation, name, value)
    return provocation


def removed(key: str, value: object = False, /, **zero: Any) -> Provocation:
    return with_(top("removed", **({"zero_optimization": zero} if zero else {key: value})), mode="classes")


Z2, Z3 = {"stage": 2}, {"stage": 3}
MUON = {"type": "Muon", "params": {"lr": 1e-4}}
SGD = {"type": "SGD", "params": {"lr": 0.1}}

PROVOCATIONS: dict[str, Provocation] = {
    "offload-param-below-stage-3": z(2, offload_param=CPU),
    "offload-optimizer-at-stage-0": z(0, offload_optimizer=CPU),
    "nvme-below-stage-3": z(2, offload_optimizer={"device": "nvme", "nvme_path": "/nvme"}),
    "nvme-optimizer-without-path": z(3, "PathLike", offload_optimizer={"device": "nvme"}),
    "nvme-param-without-path": z(3, "nvme_path", offload_param={"device": "nvme"}),
    "offload-ratio-below-stage-3": z(2, "Partial offloading", offload_optimizer={**CPU, "ratio": 0.5}),
    "offload-slow-host-step": top(
        zero_optimization={**Z2, "offload_optimizer": CPU},
        optimizer={"type": "AdamW", "params": {"lr": 1e-4, "torch_adam": True}},
    ),
    "quantized-weights-below-stage-3": z(2, zero_quantized_weights=True),
    "quantized-gradients-below-stage-3": z(2, zero_quantized_gradients=True),
    "hpz-below-stage-3": z(2, zero_hpz_partition_size=2),
    "hpz-divides-world": with_(z(3, "divisible", zero_hpz_partition_size=3), world_size=4),
    "hpz-across-nodes": with_(z(3, zero_hpz_partition_size=4), world_size=4, more={"gpus_per_node": 2}),
    "grad-accum-dtype-at-stage-0": top("unsupported mix", data_types={"grad_accum_dtype": "fp32"}),
    "stage-1-bf16-fp32-accumulation": top(
        zero_optimization={"stage": 1}, data_types={"grad_accum_dtype": "fp32"}
    ),
    "master-weights-at-stage-0": top(
        "only supported with ZeRO", bf16={**ON, "bf16_master_weights_and_grads": True}
    ),
    "bf16-states-without-master": top(
        "requires bf16_master", zero_optimization=Z2, bf16={**ON, "bf16_optimizer_states": True}
    ),
    "master-weights-without-cpu-adam": top(
        "Master weights feature", zero_optimization=Z2, bf16={**ON, "bf16_master_weights_and_grads": True}
    ),
    "unknown-optimizer": top("not a supported", optimizer={"type": "AdamW8bit", "params": {"lr": 1e-4}}),
    "untested-optimizer": top("untested", zero_optimization=Z2, optimizer=SGD),
    "muon-reduce-scatter": top(
        "reduce scatter", zero_optimization=Z3, optimizer={"type": "Muon", "params": {"lr": 1e-4}}
    ),
    "pipeline-with-stage-2": with_(z(2, "pipeline"), pipeline_parallel=2, world_size=2),
    "degrees-divide-world": with_(
        top("", zero_optimization={"stage": 1}, tensor_parallel={"autotp_size": 3}),
        tensor_parallel=3,
        world_size=4,
    ),
    "tensor-parallel-beyond-heads": with_(
        top(zero_optimization={"stage": 1}, tensor_parallel={"autotp_size": 4}),
        tensor_parallel=4,
        world_size=4,
        more={"key_value_heads": 2},
    ),
    "autocast-with-precision": top(
        zero_optimization=Z2, torch_autocast={"enabled": True, "dtype": "bfloat16"}
    ),
    "batch-size-missing": Provocation(
        {"gradient_accumulation_steps": 2}, "needs to be provided", mode="classes"
    ),
    "batch-size-not-positive": with_(top("greater than 0", train_micro_batch_size_per_gpu=0), mode="classes"),
    "batch-arithmetic": with_(
        top("not equal", train_batch_size=3, gradient_accumulation_steps=1), world_size=2, mode="classes"
    ),
    "batch-contradiction": with_(
        top("not equal", train_batch_size=5, gradient_accumulation_steps=2), world_size=2, mode="classes"
    ),
    "train-batch-size-with-autotp": with_(
        top("", zero_optimization={"stage": 1}, train_batch_size=1, tensor_parallel={"autotp_size": 2}),
        tensor_parallel=2,
        world_size=2,
        mode="classes",
    ),
    "fp16-and-bf16": with_(top("simultaneously", fp16=ON), mode="classes"),
    "no-zero-optimization": top(None),
    "zero-without-stage": top(zero_optimization={"overlap_comm": True}),
    "precision-without-enabled": top(bf16={"immediate_grad_update": True}),
    "precision-never-enabled": with_(
        top(fp16={"enabled": "auto"}, bf16={"immediate_grad_update": True}), mode="classes"
    ),
    "activation-checkpointing-not-read": top(activation_checkpointing={"partition_activations": True}),
    "loss-scale-limit": top(
        "must be > 0", bf16={"enabled": False}, fp16={**ON, "loss_scale_window": 0}, zero_optimization=Z2
    ),
    "scheduler-without-params": top("must be a mapping", scheduler={"type": "WarmupLR"}),
    "cycle-without-limits": top(
        "cycle_max_lr", scheduler={"type": "OneCycle", "params": {"cycle_min_lr": 1e-5}}
    ),
    "batch-size-left-out": Provocation(
        {"bf16": ON, "zero_optimization": Z2}, "needs to be provided", mode="classes"
    ),
    "zero-not-an-object": with_(top(None, zero_optimization=True), mode="classes"),
    "offload-null": Provocation(
        {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 2, "offload_optimizer": None}},
        None,
    ),
    "cpu-offload-with-scripts-optimizer": Provocation(
        {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 2, "cpu_offload": True}},
        "client provided optimizer",
    ),
    "zero-as-boolean": with_(top(None, zero_optimization=True), mode="classes"),
    "max-grad-norm-in-optimizer": top(
        "max_grad_norm", optimizer={"type": "AdamW", "params": {"lr": 1e-4, "max_grad_norm": 1.0}}
    ),
    "unknown-scheduler": top("LR scheduler", scheduler={"type": "cosine", "params": {}}),
    "torch-scheduler-parameters": top(
        "step_size",
        scheduler={"type": "StepLR", "params": {}},
        zero_optimization={"stage": 0},
        bf16={"enabled": False},
    ),
    "keep-in-fp32-modules": top("must be", data_types={"keep_in_fp32_modules": True}),
    "scheduler-without-total-steps": top(
        "total_num_steps", scheduler={"type": "WarmupDecayLR", "params": {}}
    ),
    "warmup-not-positive": top(
        "warmup_num_steps", scheduler={"type": "WarmupLR", "params": {"warmup_num_steps": 0}}
    ),
    "scaling-with-reduce-scatter": top("pre-scale", zero_optimization=Z2, prescale_gradients=True),
    "grad-norm-off": with_(z(3, "compute_grad_norm", compute_grad_norm=False), mode="classes"),
    "allreduce-sum-at-stage-3": with_(
        top("not supported with ZeRO stage 3", zero_optimization=Z3, gradient_allreduce_op="sum"),
        mode="classes",
    ),
    "gradient-allreduce-op": with_(
        top("invalid gradient_allreduce_op", gradient_allreduce_op="avg"), mode="classes"
    ),
    "bfloat16-beside-bf16": with_(
        top(bf16={"enabled": False}, bfloat16=ON, fp16=ON), mode="classes"
    ),  # fp16 is accepted: bfloat16 was not looked at
    "warmup-beyond-total": top(
        None,
        scheduler={"type": "WarmupDecayLR", "params": {"total_num_steps": 5, "warmup_num_steps": 10}},
    ),
    "offload-without-device": z(3, offload_optimizer={"pin_memory": True}),
    "pipeline-block-with-stage-2": with_(
        top("pipeline", zero_optimization=Z2, pipeline={"stages": 2}), pipeline_parallel=2, world_size=2
    ),
    "deprecated-beside-new": with_(
        z(2, "deprecated parameter 'cpu_offload'", cpu_offload=True, offload_optimizer=CPU), mode="classes"
    ),
    "communication-data-type": with_(
        top("communication_data_type", communication_data_type="bfloat16"), mode="classes"
    ),
    "param-dtype-mismatch": top("param_dtype", data_types={"param_dtype": "fp16"}),
    "lamb-static-scale": top(
        "dynamic loss scaling",
        bf16={"enabled": False},
        fp16={**ON, "loss_scale": 128},
        optimizer={"type": "Lamb", "params": {"lr": 1e-3}},
    ),
    "superoffload-below-stage-3": z(2, offload_optimizer={**CPU, "super_offload": True}),
    "zenflow-without-offload": z(2, "cpu offload", zenflow={"topk_ratio": 0.1}),
    "deprecated-cpu-offload": with_(z(2, None, cpu_offload=True), mode="classes"),
    "deprecated-cpu-offload-param": with_(z(3, None, cpu_offload_param=True), mode="classes"),
    "deprecated-cpu-offload-use-pin-memory": with_(
        z(2, None, cpu_offload_use_pin_memory=True), mode="classes"
    ),
    "deprecated-gather-fp16": with_(
        z(3, None, stage3_gather_fp16_weights_on_model_save=True), mode="classes"
    ),
    "stage-3-key-ignored": z(2, stage3_max_live_parameters=1000),
    "removed-mics-shard-size": removed("", mics_shard_size=2),
    "removed-mics-hierarchical-params-gather": removed("", mics_hierarchical_params_gather=False),
    "removed-zeropp-loco-param": removed("", zeropp_loco_param={}),
    "removed-one-bit-optimizer": top(
        "not a supported", optimizer={"type": "OneBitAdam", "params": {"lr": 1e-4}}
    ),
    "removed-legacy-stage-1": z(1, "deprecated version", legacy_stage1=True),
    "older-fp16-master-weights": Provocation(
        {
            "train_micro_batch_size_per_gpu": 1,
            "fp16": {**ON, "fp16_master_weights_and_grads": True},
            "optimizer": ADAM,
            "zero_optimization": {**Z3, "offload_optimizer": CPU},
        },
        "only supported with ZeRO Stage 2",
    ),
    "older-autocast-with-precision": top(
        "cannot enable both", zero_optimization=Z2, torch_autocast={**ON, "dtype": "bfloat16"}
    ),
    "older-muon-at-stage-3": top("not yet compatible", zero_optimization=Z3, optimizer=MUON),
    "older-muon-untested": top("untested ZeRO Optimizer", zero_optimization=Z2, optimizer=MUON),
    "older-muon": top("only supports 2D", zero_optimization=Z2, optimizer=MUON),
}
for key in (
    "amp", "compression_training", "curriculum_learning", "eigenvalue", "elasticity", "graph_harvesting",
    "nebula", "progressive_layer_drop", "quantize_training", "sparse_attention", "sparse_gradients",
):  # fmt: skip
    PROVOCATIONS[f"removed-{key.replace('_', '-')}"] = removed(key)


@pytest.fixture(scope="module")
def answers() -> dict[str, DeepResult]:
    """What DeepSpeed says to every provocation, asked in one process."""
    pytest.importorskip("deepspeed")
    return dict(zip(PROVOCATIONS, run_deep(list(cases().values())), strict=True))


def cases() -> dict[str, DeepCase]:
    """Every provocation as DeepSpeed is asked about it."""
    return {
        rule_id: DeepCase(
            config=one.config,
            world_size=one.world_size,
            tensor_parallel=one.tensor_parallel,
            pipeline_parallel=one.pipeline_parallel,
            mode=one.mode,
            key_value_heads=one.more.get("key_value_heads"),
        )
        for rule_id, one in PROVOCATIONS.items()
    }


def broken_by(provocation: Provocation) -> set[str]:
    config = provocation.config
    plain = {
        key: value for key, value in config.items() if not isinstance(config.get("zero_optimization"), bool)
    }
    setup = Setup(
        settings=from_config(plain),
        raw=config,
        # a contradiction is what is left when the number of ranks is not known
        world_size=None if config.get("train_batch_size") == 5 else provocation.world_size,
        tensor_parallel=provocation.tensor_parallel,
        pipeline_parallel=provocation.pipeline_parallel,
        **provocation.more,
    )
    return {violation.rule.id for violation in violations(setup)}


def test_every_rule_is_provoked() -> None:
    assert set(PROVOCATIONS) == {candidate.id for candidate in RULES if candidate.scope != "layout"}
    assert len({candidate.id for candidate in RULES}) == len(RULES)


@pytest.mark.parametrize("rule_id", PROVOCATIONS)
def test_rule_sees_its_provocation(rule_id: str) -> None:
    assert rule_id in broken_by(PROVOCATIONS[rule_id])


@pytest.mark.parametrize("rule_id", PROVOCATIONS)
def test_deepspeed_does_what_the_rule_says(rule_id: str, answers: dict[str, DeepResult]) -> None:
    provocation, answer = PROVOCATIONS[rule_id], answers[rule_id]
    if not rule(rule_id).holds_in(minor(DEEPSPEED_VERSION)):
        assert provocation.says not in str(answer.error)
    elif rule(rule_id).silent or provocation.says is None:
        assert answer.ok, answer.error
    else:
        assert not answer.ok
        assert provocation.says.lower() in str(answer.error).lower()


def test_a_plain_configuration_breaks_no_rule(answers: dict[str, DeepResult]) -> None:
    for stage in range(4):
        assert not broken_by(z(stage))


def test_texts_of_every_rule_are_complete() -> None:
    for provocation in PROVOCATIONS.values():
        setup = Setup(
            settings=from_config(
                {
                    k: v
                    for k, v in provocation.config.items()
                    if not isinstance(v, bool) or k != "zero_optimization"
                }
            ),
            raw=provocation.config,
            world_size=provocation.world_size,
            tensor_parallel=provocation.tensor_parallel,
            pipeline_parallel=provocation.pipeline_parallel,
            **provocation.more,
        )
        for violation in violations(setup):
            assert (
                violation.message
                and violation.fix
                and violation.rule.source.startswith(("deepspeed/", "deepspeed-", "accelerate/"))
            )
            for text in (violation.message, violation.fix, violation.key):
                assert not any("{" + name + "}" in text for name in violation.details), text


def test_sources_still_say_it() -> None:
    """The lines exist in the installed DeepSpeed, when it is the version the rules were read from."""
    deepspeed = pytest.importorskip("deepspeed")
    from pathlib import Path

    if deepspeed.__version__ != DEEPSPEED_VERSION:
        pytest.skip(f"rules were read from {DEEPSPEED_VERSION}")
    root = Path(deepspeed.__file__).parents[1]
    for candidate in RULES:
        file, _, line = candidate.source.rpartition(":")
        if not file.startswith("deepspeed/"):
            continue
        lines = (root / file).read_text().splitlines()
        assert int(line) <= len(lines) and lines[int(line) - 1].strip(), candidate.id


def test_first_violation_is_for_planners() -> None:
    """Settings and degrees are enough: no dictionary."""

    def strategy(stage: int, **degrees: int) -> Strategy:
        return Strategy(
            settings=DeepSpeedSettings(zero=ZeroSettings(stage=stage)), data_parallel=2, **degrees
        )

    assert first_violation(strategy(3)) is None
    found = first_violation(strategy(2, pipeline_parallel=2))
    assert found is not None and found.rule.id == "pipeline-with-stage-2"
    found = first_violation(strategy(1, tensor_parallel=8), key_value_heads=4)
    assert found is not None and "at most 4" in found.fix
    offload = ZeroSettings(stage=2, offload_param=Offload(device="cpu"))
    found = first_violation(Strategy(settings=DeepSpeedSettings(zero=offload), data_parallel=1))
    assert found is not None and found.rule.silent
