"""What the accelerate checks share: the committed list of keys, and where Accelerate decides."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping
from typing import Any

from zerokit.domain.fsdp2_config import TRUE_WORDS
from zerokit.linter.deepspeed.tables import Tables
from zerokit.linter.finding import Row
from zerokit.rules.types import ACCELERATE_VERSION

TABLES = Tables(pathlib.Path(__file__).parent, "accelerate", ACCELERATE_VERSION)
key_list = TABLES.key_list
LAUNCH = f"Accelerate {ACCELERATE_VERSION}, commands/launch.py"
CONFIG = f"Accelerate {ACCELERATE_VERSION}, commands/config/config_args.py"
PLUGIN = f"Accelerate {ACCELERATE_VERSION}, utils/dataclasses.py, DeepSpeedPlugin"
TRUTH_WORDS = (*TRUE_WORDS, "n", "no", "f", "false", "off", "0")
"""Taken for true or false (utils/environment.py, ``str_to_bool``), whatever their case."""


STRATEGIES = ("FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD", "HYBRID_SHARD_ZERO2")
"""FSDP's of version 1, in the order of their numbers, from 1 (utils/constants.py, FSDP_SHARDING_STRATEGY)."""
POLICIES = ("TRANSFORMER_BASED_WRAP", "SIZE_BASED_WRAP", "NO_WRAP")
STATE_DICTS = ("FULL_STATE_DICT", "LOCAL_STATE_DICT", "SHARDED_STATE_DICT")
PREFETCHES = ("BACKWARD_PRE", "BACKWARD_POST", "NO_PREFETCH")
IGNORED_KEY = Row(
    "accelerate-ignored-key", "", "Accelerate ignores {key!r} in {block}", "{fix}", LAUNCH, "warning",
)  # fmt: skip


def is_file(path: str | pathlib.Path) -> bool:
    """Whether a file is there; false also for what can be no path."""
    try:
        return pathlib.Path(path).is_file()
    except (OSError, ValueError):
        return False


_KINDS: Mapping[str, tuple[type, str]] = {
    "boolean": (
        bool, "use_cpu debug same_network enable_cpu_affinity downcast_bf16 tpu_use_cluster tpu_use_sudo",
    ),
    "text": (
        str, "gpu_ids main_process_ip rdzv_backend main_training_function mixed_precision "
        "compute_environment distributed_type tpu_name tpu_zone command_file",
    ),
    "block": (
        dict, "deepspeed_config fsdp_config parallelism_config megatron_lm_config mpirun_config fp8_config "
        "dynamo_config",
    ),
    "list": (list, "commands tpu_vm tpu_env"),
}  # fmt: skip
TOP_LEVEL: Mapping[str, Mapping[str, Any]] = {
    "num_processes": {"kind": "integer", "minimum": 1},
    "num_machines": {"kind": "integer", "minimum": 1},
    "machine_rank": {"kind": "integer", "minimum": 0},
    "main_process_port": {"kind": "integer", "minimum": 0, "maximum": 65535},
    **{key: {"kind": kind} for kind, (_, keys) in _KINDS.items() for key in keys.split()},
}


def fits(key: str, value: object) -> bool:
    """Whether ``value`` is of the kind that the top-level ``key`` takes."""
    entry = TOP_LEVEL.get(key, {"kind": "any"})
    if entry["kind"] == "integer":
        is_integer = isinstance(value, int) and not isinstance(value, bool)
        return is_integer and entry["minimum"] <= value <= entry.get("maximum", value)
    return isinstance(value, _KINDS.get(entry["kind"], (object,))[0])
