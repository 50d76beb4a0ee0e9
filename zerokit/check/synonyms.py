"""What a key of another tool is called in DeepSpeed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_SYNONYMS = {
    "micro_batch_size": "train_micro_batch_size_per_gpu",
    "micro_batch_size_per_gpu": "train_micro_batch_size_per_gpu",
    "per_device_train_batch_size": "train_micro_batch_size_per_gpu",
    "train_micro_batch_size": "train_micro_batch_size_per_gpu",
    "batch_size": "train_batch_size",
    "global_batch_size": "train_batch_size",
    "gradient_accumulation": "gradient_accumulation_steps",
    "grad_accum_steps": "gradient_accumulation_steps",
    "max_grad_norm": "gradient_clipping",
    "clip_grad": "gradient_clipping",
    "zero": "zero_optimization",
    "zero_config": "zero_optimization",
    "zero_stage": "stage",
    "lr_scheduler": "scheduler",
    "learning_rate": "lr",
    "path": "nvme_path",
    "pinned_memory": "pin_memory",
    "wall_clock": "wall_clock_breakdown",
    "autotp": "tensor_parallel",
    "tp_size": "autotp_size",
    "thread_count": "intra_op_parallelism",
}


def synonym(key: str, known: Mapping[str, Any]) -> str | None:
    """The known key that ``key`` is called elsewhere, if there is one."""
    meant = _SYNONYMS.get(key.lower())
    if meant is None and f"stage3_{key}" in known:
        meant = f"stage3_{key}"
    return meant if meant in known else None
