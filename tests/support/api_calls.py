"""A job for the library's functions, and their results made comparable."""

from __future__ import annotations

import json
from typing import Any

JOB: dict[str, Any] = {"model": "llama-3.1-8b", "gpus": 8, "gpu": "h200", "seq_len": 4096}
DEEPSPEED = {
    "train_micro_batch_size_per_gpu": 1,
    "bf16": {"enabled": True},
    "zero_optimization": {"stage": 3},
}


def as_json(body: dict[str, Any]) -> dict[str, Any]:
    """A result without what differs between two runs, and between text and numbers in what was asked."""
    found: dict[str, Any] = json.loads(json.dumps(body))
    if "search" in found:
        found["search"].pop("seconds")
    if "request" in found:
        found["request"] = {name: str(value) for name, value in found["request"].items()}
    return found
