"""Rules about stages, offload, precision, optimizer and parallel degrees.

They read settings and degrees only, so the planner can ask them of every candidate.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from zerokit.rules.known import (
    DEEPSPEED_OPTIMIZERS,
    HOST_OPTIMIZERS,
    ONE_BIT_OPTIMIZERS,
    TORCH_OPTIMIZERS,
    ZERO_TESTED_OPTIMIZERS,
)
from zerokit.rules.types import Rule, Setup

_INSTEAD = "use Adam, AdamW, Adagrad, Lamb, Lion or Muon, or leave the block out and let the script build it"


def optimizer_kind(setup: Setup) -> str:
    """The optimizer's type in lower case; empty where none is named."""
    return (setup.settings.optimizer or "").lower()


def _is_known(setup: Setup) -> bool:
    """Whether DeepSpeed finds the optimizer by the name as written."""
    kind = optimizer_kind(setup)
    if not kind:
        return False
    return kind in DEEPSPEED_OPTIMIZERS or TORCH_OPTIMIZERS.get(kind) == setup.settings.optimizer


def autocast_with_precision(setup: Setup) -> dict[str, str] | None:
    """The weights' precision, where torch_autocast is on beside one of 16 bits."""
    precision = setup.settings.precision
    return None if setup.settings.torch_autocast is None or precision == "fp32" else {"precision": precision}


def _unknown_optimizer(setup: Setup) -> bool | Mapping[str, Any]:
    name, kind = setup.settings.optimizer, optimizer_kind(setup)
    if not kind or kind in ONE_BIT_OPTIMIZERS or _is_known(setup):
        return False
    right = TORCH_OPTIMIZERS.get(kind)
    return {"name": name, "instead": f"write {right}" if right else _INSTEAD}


def _slow_host_step(setup: Setup) -> bool | Mapping[str, Any]:
    settings = setup.settings
    if settings.zero.stage == 0 or settings.zero.offload_optimizer.device == "none" or not _is_known(setup):
        return False
    if optimizer_kind(setup) in HOST_OPTIMIZERS and not settings.torch_adam:
        return False
    if not settings.zero_force_ds_cpu_optimizer:
        return False  # it says so itself
    return {"name": "torch_adam" if settings.torch_adam else settings.optimizer}


def _low_precision_master(setup: Setup) -> bool:
    settings = setup.settings
    if settings.zero.stage == 0 or (optimizer_kind(setup) and not _is_known(setup)):
        return False
    offloaded = settings.zero.offload_optimizer.device != "none"
    wants_host = settings.fp16_master_weights_and_grads or (
        settings.bf16_master_weights_and_grads and not settings.bf16_optimizer_states
    )
    in_bf16_on_host = settings.bf16_optimizer_states and offloaded
    return (wants_host and not offloaded) or (
        (wants_host or in_bf16_on_host)
        and (settings.torch_adam or optimizer_kind(setup) not in ("", "adam", "adamw"))
    )


def _accumulation_dtype_at_stage_0(setup: Setup) -> bool | Mapping[str, Any]:
    settings = setup.settings
    dtype = settings.grad_accum_dtype
    if settings.zero.stage != 0 or dtype is None or dtype == settings.precision:
        return False
    return {"dtype": dtype, "precision": settings.precision}


def _indivisible_world(setup: Setup) -> bool | Mapping[str, Any]:
    degree = setup.tensor_parallel * setup.pipeline_parallel * setup.sequence_parallel
    if setup.world_size is None or setup.world_size % degree == 0:
        return False
    return {"degree": degree, "world_size": setup.world_size}


def _hpz(setup: Setup) -> bool | Mapping[str, Any]:
    size = setup.settings.zero.zero_hpz_partition_size
    if size <= 1 or setup.settings.zero.stage != 3 or not setup.world_size or setup.world_size % size == 0:
        return False
    return {"size": size, "world_size": setup.world_size}


def _hpz_across_nodes(setup: Setup) -> bool | Mapping[str, Any]:
    size = setup.settings.zero.zero_hpz_partition_size
    if size <= 1 or not setup.gpus_per_node or size <= setup.gpus_per_node:
        return False
    return {"size": size, "gpus_per_node": setup.gpus_per_node}


def _below_stage_3(name: str) -> dict[str, Any]:
    return {
        "broken": lambda setup: setup.settings.zero.stage < 3 and bool(getattr(setup.settings.zero, name))
    }


_rule = functools.partial(Rule, scope="strategy")

STRATEGY_RULES: tuple[Rule, ...] = (
    _rule(
        id="offload-param-below-stage-3",
        severity="warning",
        without_effect=True,
        silent=True,
        source="deepspeed/runtime/engine.py:2749",
        key="zero_optimization.offload_param",
        message="offload_param works at stage 3 only; at stage {stage} it is ignored and the weights stay on the GPU",
        fix='set "stage": 3, or remove offload_param',
        option_fix="give ⟨zero⟩ 3, or leave ⟨offload_param⟩ out",
        broken=lambda s: (
            s.settings.zero.offload_param.device != "none"
            and s.settings.zero.stage < 3
            and {"stage": s.settings.zero.stage}
        ),
    ),
    _rule(
        id="offload-optimizer-at-stage-0",
        severity="warning",
        without_effect=True,
        silent=True,
        source="deepspeed/runtime/engine.py:1562",
        key="zero_optimization.offload_optimizer",
        message="at stage 0 nothing is offloaded: the optimizer states stay on the GPU, stepped by the CPU optimizer",
        fix='set "stage" to 1, 2 or 3, or remove offload_optimizer',
        option_fix="give ⟨zero⟩ 1, 2 or 3, or leave ⟨offload_optimizer⟩ out",
        broken=lambda s: s.settings.zero.offload_optimizer.device != "none" and s.settings.zero.stage == 0,
    ),
    _rule(
        id="nvme-below-stage-3",
        severity="warning",
        without_effect=True,
        silent=True,
        source="deepspeed/runtime/zero/stage_1_and_2.py:220",
        key="zero_optimization.offload_optimizer.device",
        message="NVMe offload works at stage 3 only; at stage {stage} the states go to host memory instead",
        fix='set "stage": 3, or "device": "cpu"',
        option_fix="give ⟨zero⟩ 3, or ⟨offload_optimizer⟩ cpu",
        broken=lambda s: (
            s.settings.zero.offload_optimizer.device == "nvme"
            and s.settings.zero.stage in (1, 2)
            and {"stage": s.settings.zero.stage}
        ),
    ),
    _rule(
        id="nvme-optimizer-without-path",
        source="deepspeed/runtime/swap_tensor/optimizer_utils.py:33",
        key="zero_optimization.offload_optimizer.device",
        message="NVMe offload without nvme_path: the engine fails to start",
        fix='add "nvme_path": a folder on a local NVMe disk of every node',
        broken=lambda s: (
            s.settings.zero.stage == 3
            and s.settings.zero.offload_optimizer.device == "nvme"
            and not s.settings.zero.offload_optimizer.nvme_path
        ),
    ),
    _rule(
        id="nvme-param-without-path",
        source="deepspeed/runtime/zero/partition_parameters.py:1230",
        key="zero_optimization.offload_param.device",
        message="NVMe offload without nvme_path: the engine fails to start",
        fix='add "nvme_path": a folder on a local NVMe disk of every node',
        broken=lambda s: (
            s.settings.zero.stage == 3
            and s.settings.zero.offload_param.device == "nvme"
            and not s.settings.zero.offload_param.nvme_path
        ),
    ),
    _rule(
        id="offload-ratio-below-stage-3",
        source="deepspeed/runtime/zero/config.py:399",
        key="zero_optimization.offload_optimizer.ratio",
        message="partial offload (ratio below 1) works at stage 3 only; DeepSpeed refuses the file",
        fix='set "stage": 3, or "ratio": 1.0',
        broken=lambda s: s.settings.zero.offload_optimizer.ratio < 1.0 and s.settings.zero.stage < 3,
    ),
    _rule(
        id="offload-slow-host-step",
        severity="warning",
        silent=True,
        source="deepspeed/runtime/engine.py:2380",
        key="optimizer",
        message="the offloaded step runs {name} in plain torch on the host, several times slower than DeepSpeedCPUAdam",
        fix='use "AdamW" without torch_adam, or set "zero_force_ds_cpu_optimizer": false to say it is meant',
        broken=_slow_host_step,
    ),
    _rule(
        id="quantized-weights-below-stage-3",
        severity="warning",
        silent=True,
        source="deepspeed/runtime/engine.py:2788",
        key="zero_optimization.zero_quantized_weights",
        message="quantised weights (ZeRO++ qwZ) work at stage 3 only; ignored here",
        fix='set "stage": 3, or remove the key',
        **_below_stage_3("zero_quantized_weights"),
    ),
    _rule(
        id="quantized-gradients-below-stage-3",
        severity="warning",
        silent=True,
        source="deepspeed/runtime/engine.py:2159",
        key="zero_optimization.zero_quantized_gradients",
        message="quantised gradients (ZeRO++ qgZ) work at stage 3 only; ignored here",
        fix='set "stage": 3, or remove the key',
        **_below_stage_3("zero_quantized_gradients"),
    ),
    _rule(
        id="hpz-below-stage-3",
        severity="warning",
        silent=True,
        source="deepspeed/runtime/engine.py:2787",
        key="zero_optimization.zero_hpz_partition_size",
        message="the secondary partition (ZeRO++ hpZ) works at stage 3 only; ignored here",
        fix='set "stage": 3, or remove the key',
        broken=lambda s: s.settings.zero.stage < 3 and s.settings.zero.zero_hpz_partition_size > 1,
    ),
    _rule(
        id="hpz-divides-world",
        source="deepspeed/utils/groups.py:945",
        key="zero_optimization.zero_hpz_partition_size",
        message="zero_hpz_partition_size {size} does not divide the number of ranks, {world_size}: the engine fails to start",
        fix="use the number of GPUs per node",
        broken=_hpz,
    ),
    _rule(
        id="hpz-across-nodes",
        severity="warning",
        silent=True,
        source="deepspeed/utils/groups.py:931",
        key="zero_optimization.zero_hpz_partition_size",
        message="zero_hpz_partition_size {size} spans nodes (GPUs of each: {gpus_per_node}): the gathers it should keep "
        "inside a node cross the network",
        fix="use the number of GPUs per node",
        broken=_hpz_across_nodes,
    ),
    _rule(
        id="grad-accum-dtype-at-stage-0",
        since=(0, 18),
        source="deepspeed/runtime/engine.py:2323",
        key="data_types.grad_accum_dtype",
        message="stage 0 cannot accumulate {dtype} gradients of a {precision} model: the engine fails to start",
        fix="remove grad_accum_dtype, or use stage 1 to 3",
        broken=_accumulation_dtype_at_stage_0,
    ),
    _rule(
        id="stage-1-bf16-fp32-accumulation",
        severity="note",
        silent=True,
        source="deepspeed/runtime/engine.py:2310",
        key="data_types.grad_accum_dtype",
        message="stage 1 with bf16 and fp32 accumulation runs another optimizer (BF16_Optimizer), with its own memory",
        fix="use stage 2 for the usual optimizer",
        broken=lambda s: (
            s.settings.zero.stage == 1
            and s.settings.precision == "bf16"
            and s.settings.grad_accum_dtype == "fp32"
            and s.settings.zero.offload_optimizer.device == "none"
        ),
    ),
    _rule(
        id="master-weights-at-stage-0",
        since=(0, 18),
        source="deepspeed/runtime/config.py:705",
        key="{block}.{block}_master_weights_and_grads",
        message="low-precision master weights need ZeRO stage 1, 2 or 3; DeepSpeed refuses the file",
        fix="set a stage, or remove the key",
        broken=lambda s: (
            s.settings.zero.stage == 0
            and (s.settings.fp16_master_weights_and_grads or s.settings.bf16_master_weights_and_grads)
            and {"block": "fp16" if s.settings.fp16_master_weights_and_grads else "bf16"}
        ),
    ),
    _rule(
        id="bf16-states-without-master",
        since=(0, 18),
        source="deepspeed/runtime/config.py:714",
        key="bf16.bf16_optimizer_states",
        message="bf16_optimizer_states needs bf16_master_weights_and_grads; DeepSpeed refuses the file",
        fix='add "bf16_master_weights_and_grads": true',
        broken=lambda s: s.settings.bf16_optimizer_states and not s.settings.bf16_master_weights_and_grads,
    ),
    _rule(
        id="master-weights-without-cpu-adam",
        since=(0, 18),
        source="deepspeed/runtime/zero/stage_1_and_2.py:332",
        key="{block}.{block}_master_weights_and_grads",
        message="low-precision master weights need the optimizer offloaded and stepped by DeepSpeedCPUAdam: "
        "the engine fails to start",
        fix="add offload_optimizer with device cpu and an AdamW without torch_adam (bf16_optimizer_states also "
        "allows them on the GPU)",
        broken=lambda s: (
            _low_precision_master(s)
            and {"block": "fp16" if s.settings.fp16_master_weights_and_grads else "bf16"}
        ),
    ),
    _rule(
        id="unknown-optimizer",
        source="deepspeed/runtime/engine.py:2019",
        key="optimizer.type",
        message="{name} is neither a DeepSpeed optimizer nor in torch.optim: the engine fails to start",
        fix="{instead}",
        broken=_unknown_optimizer,
    ),
    _rule(
        id="untested-optimizer",
        source="deepspeed/runtime/engine.py:2300",
        key="optimizer.type",
        message="ZeRO refuses an optimizer that is not on its list",
        fix='add "zero_allow_untested_optimizer": true',
        broken=lambda setup: (
            setup.settings.zero.stage > 0
            and setup.settings.optimizer is not None
            and _is_known(setup)
            and optimizer_kind(setup) not in ZERO_TESTED_OPTIMIZERS
            and setup.raw is not None
            and setup.get("zero_allow_untested_optimizer") is not True
        ),
    ),
    _rule(
        id="muon-reduce-scatter",
        since=(0, 18),
        source="deepspeed/runtime/zero/stage3.py:361",
        key="optimizer.type",
        message="Muon at stage 3 cannot run with reduce_scatter, which is on unless turned off",
        fix='add "reduce_scatter": false to zero_optimization',
        broken=lambda s: (
            s.settings.zero.stage == 3 and optimizer_kind(s) == "muon" and s.settings.zero.reduce_scatter
        ),
    ),
    _rule(
        id="pipeline-with-stage-2",
        source="deepspeed/runtime/pipe/engine.py:77",
        key="zero_optimization.stage",
        message="pipeline parallelism cannot run with ZeRO stage 2 or 3: the engine fails to start",
        fix="use stage 1 or 0 with a pipeline",
        broken=lambda setup: setup.pipeline_parallel > 1 and setup.settings.zero.stage >= 2,
    ),
    _rule(
        id="degrees-divide-world",
        source="deepspeed/utils/groups.py:71",
        key="tensor_parallel.autotp_size",
        message="the number of ranks, {world_size}, is not a multiple of {degree} (tensor × pipeline × sequence parallel)",
        fix="change the degrees or the number of ranks",
        broken=_indivisible_world,
    ),
    _rule(
        id="autocast-with-precision",
        severity="warning",
        silent=True,
        source="deepspeed/runtime/engine.py:669",
        since=(0, 18),
        key="torch_autocast.enabled",
        message="torch_autocast together with {precision}: the weights are in {precision} already, so autocast "
        "only adds casts",
        fix="enable one of the two",
        broken=autocast_with_precision,
    ),
)
