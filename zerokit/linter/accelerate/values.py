"""What kind of value each key of an accelerate YAML takes (accelerate/commands/launch.py, 1.15.0)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_TEXT: Mapping[str, Any] = {"kind": "text"}
_BOOLEAN: Mapping[str, Any] = {"kind": "boolean"}
_BLOCK: Mapping[str, Any] = {"kind": "block"}
_LIST: Mapping[str, Any] = {"kind": "list"}

TOP_LEVEL: Mapping[str, Mapping[str, Any]] = {
    "num_processes": {"kind": "integer", "minimum": 1},
    "num_machines": {"kind": "integer", "minimum": 1},
    "machine_rank": {"kind": "integer", "minimum": 0},
    "main_process_port": {"kind": "integer", "minimum": 0, "maximum": 65535},
    **dict.fromkeys(
        (
            "use_cpu", "debug", "same_network", "enable_cpu_affinity", "downcast_bf16", "tpu_use_cluster",
            "tpu_use_sudo",
        ),
        _BOOLEAN,
    ),
    **dict.fromkeys(
        (
            "gpu_ids", "main_process_ip", "rdzv_backend", "main_training_function", "mixed_precision",
            "compute_environment", "distributed_type", "tpu_name", "tpu_zone", "command_file",
        ),
        _TEXT,
    ),
    **dict.fromkeys(
        (
            "deepspeed_config", "fsdp_config", "parallelism_config", "megatron_lm_config", "mpirun_config",
            "fp8_config", "dynamo_config",
        ),
        _BLOCK,
    ),
    **dict.fromkeys(("commands", "tpu_vm", "tpu_env"), _LIST),
}  # fmt: skip


def fits(key: str, value: object) -> bool:
    """Whether ``value`` is of the kind that the top-level ``key`` takes."""
    entry = TOP_LEVEL.get(key, {"kind": "any"})
    if entry["kind"] == "integer":
        is_integer = isinstance(value, int) and not isinstance(value, bool)
        return is_integer and entry["minimum"] <= value <= entry.get("maximum", value)
    kinds: Mapping[str, type | tuple[type, ...]] = {
        "boolean": bool,
        "text": str,
        "block": dict,
        "list": list,
        "any": object,
    }
    return isinstance(value, kinds[str(entry["kind"])])
