"""What breaks each rule about DeepSpeed: a configuration, and what DeepSpeed says to it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from zerokit.linter.deepspeed.deep import DeepCase

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
    "random-ltd": top("total_layer_num", data_efficiency={"data_routing": {"random_ltd": ON}}),
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
    "deprecated-offload-flag-off": with_(z(2, None, cpu_offload=False), mode="classes"),
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
