"""What ``accelerate launch --config_file FILE`` tells each rank, for a rehearsal with such a file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from zerokit.errors import InputError
from zerokit.launcher.fsdp2_plan import as_variable, variables

_UNSAID: Mapping[str, Any] = {
    "fsdp_version": 1, "fsdp_offload_params": False, "fsdp_min_num_params": 100_000_000,
    "fsdp_sharding_strategy": "FULL_SHARD", "fsdp_reshard_after_forward": True,
    "fsdp_forward_prefetch": False, "fsdp_use_orig_params": True, "fsdp_cpu_ram_efficient_loading": True,
    "fsdp_sync_module_states": True, "fsdp_activation_checkpointing": False,
    "fsdp_activation_checkpointing_offload": False,
}  # fmt: skip
"""What ranks are told where an ``fsdp_config`` does not say it (commands/launch.py:514, Accelerate 1.15)."""
_OF_PLUGIN: Mapping[str, str] = {
    "zero_stage": "DEEPSPEED_ZERO_STAGE", "gradient_accumulation_steps": "GRADIENT_ACCUMULATION_STEPS",
    "gradient_clipping": "GRADIENT_CLIPPING",
    "offload_optimizer_device": "DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE",
    "offload_param_device": "DEEPSPEED_OFFLOAD_PARAM_DEVICE", "zero3_init_flag": "DEEPSPEED_ZERO3_INIT",
    "zero3_save_16bit_model": "DEEPSPEED_ZERO3_SAVE_16BIT_MODEL",
    "deepspeed_config_file": "DEEPSPEED_CONFIG_FILE",
    "deepspeed_moe_layer_cls_names": "DEEPSPEED_MOE_LAYER_CLS_NAMES",
}  # fmt: skip
"""Key of a ``deepspeed_config`` -> its variable after ``ACCELERATE_`` (utils/launch.py:565)."""


def read_accelerate(path: str) -> tuple[dict[str, str], int | None]:
    """The variables of a file, and its number of ranks. Raises InputError: it cannot be read, errors in it,
    or what no rehearsal starts."""
    from zerokit.planner.one_strategy import read_checked

    value = read_checked(path, ("accelerate",))[1]
    kind, processes = value.get("distributed_type") or "NO", value.get("num_processes")
    told = {"ACCELERATE_MIXED_PRECISION": str(value.get("mixed_precision") or "no")}
    if kind == "FSDP":
        block = {
            key if key.startswith("fsdp_") else f"fsdp_{key}": one
            for key, one in (value.get("fsdp_config") or {}).items()
        }
        told = variables({**value, "fsdp_config": {**_UNSAID, **block}})
    elif kind == "DEEPSPEED":
        block = value.get("deepspeed_config") or {}
        told |= {"ACCELERATE_USE_DEEPSPEED": "true", "ACCELERATE_CONFIG_DS_FIELDS": ",".join(block)}
        told |= {
            f"ACCELERATE_{_OF_PLUGIN[key]}": as_variable(one)
            for key, one in block.items()
            if key in _OF_PLUGIN and one is not None
        }
    elif kind not in ("MULTI_GPU", "NO"):
        raise InputError(f"⟨accelerate⟩ {path}: distributed_type {kind} is not rehearsed")
    told |= {f"ACCELERATE_{key.upper()}": str(one) for key, one in (value.get("dynamo_config") or {}).items()}
    return told, processes if isinstance(processes, int) and processes > 0 else None
