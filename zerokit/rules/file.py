"""Rules about what stands in a DeepSpeed JSON and never in a plan."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from zerokit.domain.deepspeed_settings import DEPRECATED_OFFLOADS
from zerokit.rules.types import FRAMEWORKS, Edit, Rule, Setup

_SILENT_STAGE_KEYS = (
    "stage3_max_live_parameters", "stage3_max_reuse_distance", "stage3_prefetch_bucket_size",
    "stage3_param_persistence_threshold", "stage3_model_persistence_threshold",
    "stage3_gather_16bit_weights_on_model_save", "sub_group_size",
)  # fmt: skip
_DTYPES = {"fp32": "fp32", "float32": "fp32", "float": "fp32", "torch.float32": "fp32", "fp16": "fp16",
           "float16": "fp16", "half": "fp16", "torch.float16": "fp16", "bf16": "bf16", "bfloat16": "bf16",
           "torch.bfloat16": "bf16"}  # fmt: skip


def _is_object_without(setup: Setup, block: str, key: str) -> bool:
    return isinstance(setup.get(block), Mapping) and not setup.has(f"{block}.{key}")


def _precision_not_enabled(setup: Setup) -> bool | Mapping[str, Any]:
    if setup.settings.precision != "fp32" or setup.settings.torch_autocast is not None:
        return False
    if "auto" in (setup.get("fp16.enabled"), setup.get("bf16.enabled")):
        return False
    for name in ("bf16", "fp16"):
        if _is_object_without(setup, name, "enabled"):
            return {"name": name}
    return False


def _precision_never_enabled(setup: Setup) -> bool | Mapping[str, Any]:
    """One precision is left to TrainingArguments, the other cannot be turned on by them."""
    for name, other in (("bf16", "fp16"), ("fp16", "bf16")):
        if _is_object_without(setup, name, "enabled") and setup.get(f"{other}.enabled") == "auto":
            return {"name": name}
    return False


def _loss_scale_limit(setup: Setup) -> bool | Mapping[str, Any]:
    if setup.settings.precision != "fp16" or setup.get("fp16.loss_scale", 0) != 0:
        return False
    for name in ("loss_scale_window", "min_loss_scale"):
        value = setup.get(f"fp16.{name}")
        if isinstance(value, int | float) and not isinstance(value, bool) and value < 1:
            return {"name": name, "value": value}
    return False


def _offload_without_device(setup: Setup) -> bool | Mapping[str, Any]:
    for name in ("offload_optimizer", "offload_param"):
        block = setup.get(f"zero_optimization.{name}")
        if isinstance(block, Mapping) and "device" not in block:
            return {"name": name}
    return False


# zero/config.py: deprecated key -> the one that replaces it, refused together
_REPLACED = {
    **{old: new for new, old in DEPRECATED_OFFLOADS.items()},
    "stage3_gather_fp16_weights_on_model_save": "stage3_gather_16bit_weights_on_model_save",
}


def _deprecated_beside_new(setup: Setup) -> bool | Mapping[str, Any]:
    for old, new in _REPLACED.items():
        if setup.has(f"zero_optimization.{old}") and setup.has(f"zero_optimization.{new}"):
            return {"old": old, "new": new}
    return False


def _offload_flag(old: str, new: str, line: int) -> Rule:
    device = {"device": "cpu"}
    return Rule(
        id=f"deprecated-{old.replace('_', '-')}",
        severity="warning",
        source=f"deepspeed/runtime/zero/config.py:{line}",
        key=f"zero_optimization.{old}",
        message=f"{old} is deprecated (DeepSpeed warns and turns it into {new})",
        fix=f'write "{new}": {json.dumps(device)}',
        broken=lambda s: (
            bool(s.get(f"zero_optimization.{old}"))
            and not s.has(f"zero_optimization.{new}")
            and not (old == "cpu_offload" and s.readers <= FRAMEWORKS and keeps_the_scripts_optimizer(s))
        ),
        edits=(
            Edit(kind="rename", key=f"zero_optimization.{old}", value=new),
            Edit(kind="set", key=f"zero_optimization.{new}", value=device),
        ),
    )


def _offload_flag_off(setup: Setup) -> bool | Mapping[str, Any]:
    for new, old in DEPRECATED_OFFLOADS.items():
        is_off = setup.has(f"zero_optimization.{old}") and not setup.get(f"zero_optimization.{old}")
        if is_off and not setup.has(f"zero_optimization.{new}"):
            return {"name": old}
    return False


def _stage_key_ignored(setup: Setup) -> bool | Mapping[str, Any]:
    zero = setup.get("zero_optimization")
    if not isinstance(zero, Mapping) or setup.settings.zero.stage == 3:
        return False
    for name in _SILENT_STAGE_KEYS:
        if name in zero:
            return {"name": name, "stage": setup.settings.zero.stage}
    return False


def _precision_mismatch(setup: Setup) -> bool | Mapping[str, Any]:
    param_dtype = setup.get("data_types.param_dtype")
    if not isinstance(param_dtype, str) or "auto" in (setup.get("bf16.enabled"), setup.get("fp16.enabled")):
        return False
    if _DTYPES.get(param_dtype) in (None, setup.settings.precision):
        return False
    return {"wanted": param_dtype, "precision": setup.settings.precision}


def _norm_off(setup: Setup) -> bool | Mapping[str, Any]:
    if setup.get("zero_optimization.compute_grad_norm") is not False:
        return False
    settings = setup.settings
    if settings.zero.stage not in (1, 2):
        return {"why": "works at stage 1 and 2 only"}
    if settings.gradient_clipping > 0:
        return {"why": "contradicts gradient_clipping"}
    if settings.zero.offload_optimizer.device != "none":
        return {"why": "cannot run with optimizer offload"}
    return False


FILE_RULES: tuple[Rule, ...] = (
    Rule(
        id="fp16-and-bf16",
        source="deepspeed/runtime/config.py:512",
        key="fp16.enabled",
        message="fp16 and bf16 are both enabled: DeepSpeed refuses the file",
        fix="enable one of the two (bf16 on Ampere and newer)",
        broken=lambda setup: setup.settings.precision == "bf16" and setup.get("fp16.enabled") is True,
    ),
    Rule(
        id="bfloat16-beside-bf16",
        silent=True,
        source="deepspeed/runtime/precision_config.py:35",
        key="bfloat16",
        message="bfloat16 is the old name, and ignored beside bf16",
        fix="keep bf16 alone, and say there what is meant",
        broken=lambda s: s.get("bf16") is not None and s.has("bfloat16"),
    ),
    Rule(
        id="zero-without-stage",
        missing="stage",
        silent=True,
        source="deepspeed/runtime/zero/config.py:95",
        key="zero_optimization",
        message="zero_optimization names no stage: stage 0 runs, and nothing in it takes effect",
        fix='add "stage": 1, 2 or 3, or remove the block',
        broken=lambda s: (
            bool(s.get("zero_optimization")) and _is_object_without(s, "zero_optimization", "stage")
        ),
    ),
    Rule(
        id="precision-without-enabled",
        missing="enabled",
        silent=True,
        source="deepspeed/runtime/precision_config.py:46",
        key="{name}",
        message="{name} does not say enabled: it is off, and the model trains in fp32",
        fix='add "enabled": true, or remove the block',
        broken=_precision_not_enabled,
    ),
    Rule(
        id="precision-never-enabled",
        missing="enabled",
        severity="warning",
        silent=True,
        source="deepspeed/runtime/precision_config.py:46",
        key="{name}",
        message="{name} does not say enabled: it stays off, even when the training arguments ask for it",
        fix='add "enabled": "auto", or remove the block',
        broken=_precision_never_enabled,
    ),
    Rule(
        id="loss-scale-limit",
        since=(0, 19),
        source="deepspeed/runtime/precision_config.py:191",
        key="fp16.{name}",
        message="{name} is {value}: with a dynamic loss scale DeepSpeed refuses the file",
        fix="use a whole number of at least 1",
        broken=_loss_scale_limit,
    ),
    Rule(
        id="zero-as-boolean",
        severity="warning",
        source="deepspeed/runtime/zero/config.py:62",
        key="zero_optimization",
        message="true means stage 1 here, in a form that is deprecated; the Trainer and Accelerate fail on it",
        fix='write {"stage": 1}, or the stage that is meant',
        broken=lambda s: isinstance(s.get("zero_optimization"), bool) and not s.readers <= FRAMEWORKS,
    ),
    Rule(
        id="offload-without-device",
        missing="device",
        severity="warning",
        silent=True,
        source="deepspeed/runtime/zero/offload_config.py:58",
        key="zero_optimization.{name}",
        message="{name} names no device: nothing is offloaded",
        fix='add "device": "cpu", or remove {name}',
        broken=_offload_without_device,
    ),
    Rule(
        id="pipeline-block-with-stage-2",
        severity="warning",
        source="deepspeed/runtime/pipe/engine.py:77",
        key="pipeline",
        message="a pipeline cannot run with ZeRO stage 2 or 3: the engine fails to start with a PipelineModule, "
        "and without one the block is ignored",
        fix="use stage 1 or 0, or remove the block",
        broken=lambda s: s.has("pipeline") and s.settings.zero.stage >= 2,
    ),
    Rule(
        id="grad-norm-off",
        source="deepspeed/runtime/zero/config.py:392",
        key="zero_optimization.compute_grad_norm",
        message="compute_grad_norm: false {why}; DeepSpeed refuses it",
        fix="remove the key",
        broken=_norm_off,
    ),
    Rule(
        id="param-dtype-mismatch",
        since=(0, 19),
        source="deepspeed/runtime/engine.py:1827",
        key="data_types.param_dtype",
        message="param_dtype {wanted} contradicts the enabled precision ({precision}): the engine fails to start",
        fix="enable the matching block, or remove param_dtype",
        broken=_precision_mismatch,
    ),
    Rule(
        id="superoffload-below-stage-3",
        since=(0, 18),
        severity="warning",
        silent=True,
        source="deepspeed/runtime/engine.py:2749",
        key="zero_optimization.offload_optimizer.super_offload",
        message="SuperOffload works at stage 3 (and on NVIDIA GPUs) only; ordinary optimizer offload runs here",
        fix='set "stage": 3, or remove super_offload',
        broken=lambda s: (
            s.get("zero_optimization.offload_optimizer.super_offload") is True and s.settings.zero.stage < 3
        ),
    ),
    Rule(
        id="zenflow-without-offload",
        since=(0, 17),
        source="deepspeed/runtime/zenflow/zenflow_stage_1_and_2.py:116",
        key="zero_optimization.zenflow",
        message="ZenFlow needs the optimizer offloaded to the CPU: the engine fails to start",
        fix='add "offload_optimizer": {"device": "cpu"}',
        broken=lambda s: (
            s.get("zero_optimization.zenflow") is not None
            and s.settings.zero.stage in (1, 2)
            and s.settings.zero.offload_optimizer.device == "none"
        ),
    ),
    Rule(
        id="deprecated-beside-new",
        source="deepspeed/runtime/config_utils.py:91",
        key="zero_optimization.{old}",
        message="{old} is deprecated, and DeepSpeed refuses the file when {new} is given as well",
        fix="remove {old}",
        broken=_deprecated_beside_new,
        edits=(Edit(kind="remove", key="zero_optimization.{old}", safe=False),),
    ),
    _offload_flag("cpu_offload", "offload_optimizer", 209),
    _offload_flag("cpu_offload_param", "offload_param", 188),
    Rule(
        id="deprecated-offload-flag-off",
        severity="warning",
        source="deepspeed/runtime/zero/config.py:188",
        key="zero_optimization.{name}",
        message="{name} is deprecated, and offloads nothing where it is false (DeepSpeed warns)",
        fix="remove it",
        broken=_offload_flag_off,
        edits=(Edit(kind="remove", key="zero_optimization.{name}"),),
    ),
    Rule(
        id="deprecated-cpu-offload-use-pin-memory",
        severity="warning",
        source="deepspeed/runtime/zero/config.py:199",
        key="zero_optimization.cpu_offload_use_pin_memory",
        message="cpu_offload_use_pin_memory is deprecated, and does nothing (DeepSpeed warns and reads it nowhere)",
        fix='remove it; "pin_memory": true in offload_optimizer or offload_param pins what they offload',
        broken=lambda s: s.has("zero_optimization.cpu_offload_use_pin_memory"),
        edits=(Edit(kind="remove", key="zero_optimization.cpu_offload_use_pin_memory"),),
    ),
    Rule(
        id="deprecated-gather-fp16",
        severity="warning",
        source="deepspeed/runtime/zero/config.py:287",
        key="zero_optimization.stage3_gather_fp16_weights_on_model_save",
        message="this name is deprecated (DeepSpeed warns and renames it)",
        fix="rename it to stage3_gather_16bit_weights_on_model_save",
        broken=lambda s: s.has("zero_optimization.stage3_gather_fp16_weights_on_model_save"),
        edits=(
            Edit(
                kind="rename",
                key="zero_optimization.stage3_gather_fp16_weights_on_model_save",
                value="stage3_gather_16bit_weights_on_model_save",
            ),
        ),
    ),
    Rule(
        id="stage-3-key-ignored",
        severity="note",
        silent=True,
        source="deepspeed/runtime/engine.py:2655",
        key="zero_optimization.{name}",
        message="{name} is read at stage 3 only; ignored at stage {stage}",
        fix='remove it, or set "stage": 3',
        broken=_stage_key_ignored,
    ),
)


def _offload_null(setup: Setup) -> bool:
    zero = setup.get("zero_optimization")
    present = isinstance(zero, Mapping) and "offload_optimizer" in zero and zero["offload_optimizer"] is None
    return present and not setup.has("optimizer")


def keeps_the_scripts_optimizer(setup: Setup) -> bool:
    """Whether both leave torch's optimizer to an offload that only DeepSpeed's can do. They replace it where
    there is an ``offload_optimizer``, and do not know its old name."""
    offloads = setup.get("zero_optimization.cpu_offload") is True and setup.settings.zero.stage > 0
    forced = setup.get("zero_force_ds_cpu_optimizer") is not False
    renamed = setup.has("zero_optimization.offload_optimizer")
    return offloads and forced and not renamed and not setup.has("optimizer")


FRAMEWORK_RULES: tuple[Rule, ...] = (
    Rule(
        id="no-zero-optimization",
        missing="zero_optimization",
        source="accelerate/utils/dataclasses.py, DeepSpeedPlugin.__post_init__",
        key="",
        message="there is no zero_optimization: the Trainer and Accelerate refuse the file, deepspeed.initialize runs "
        "stage 0",
        fix='add "zero_optimization": {"stage": 0}, or the stage that is meant',
        # DeepSpeed's autotuner writes the block of every trial (autotuning/autotuner.py:753)
        broken=lambda s: not (s.has("zero_optimization") or s.get("autotuning.enabled") is True),
        readers=FRAMEWORKS,
        otherwise="note",
    ),
    Rule(
        id="zero-not-an-object",
        source="accelerate/utils/dataclasses.py, DeepSpeedPlugin.__post_init__",
        key="zero_optimization",
        message="zero_optimization is true or false: the Trainer and Accelerate fail on it",
        fix='write {"stage": 1}, or the stage that is meant',
        broken=lambda s: isinstance(s.get("zero_optimization"), bool),
        readers=FRAMEWORKS,
        otherwise=None,
    ),
    Rule(
        id="offload-null",
        source="accelerate/accelerator.py, _prepare_deepspeed",
        key="zero_optimization.offload_optimizer",
        message="offload_optimizer is null: the Trainer and Accelerate ask it for a device, and fail where the file "
        "has no optimizer",
        fix="remove it",
        broken=_offload_null,
        readers=FRAMEWORKS,
    ),
    Rule(
        id="cpu-offload-with-scripts-optimizer",
        source="deepspeed/runtime/engine.py:2344",
        key="zero_optimization.cpu_offload",
        message="cpu_offload is the old name: the Trainer and Accelerate look for offload_optimizer, keep torch's "
        "optimizer, and DeepSpeed refuses to offload that",
        fix='write "offload_optimizer": {"device": "cpu"}',
        broken=keeps_the_scripts_optimizer,
        readers=FRAMEWORKS,
        otherwise=None,
    ),
    Rule(
        id="activation-checkpointing-not-read",
        severity="warning",
        silent=True,
        source="deepspeed/runtime/activation_checkpointing/checkpointing.py:1152",
        key="activation_checkpointing",
        message="nobody reads activation_checkpointing: only a script that calls deepspeed.checkpointing.configure "
        "does; the Trainer and Accelerate do not",
        fix="remove it, and turn gradient_checkpointing on in the training arguments or the script",
        broken=lambda s: bool(s.get("activation_checkpointing")),
        readers=FRAMEWORKS,
        otherwise="note",
    ),
)
