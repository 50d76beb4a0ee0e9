"""What other tools say of the memory of a run: DeepSpeed's estimators, accelerate's, and a rule of thumb.

Each is asked as its documentation shows, about the same run. All of them know parameters and optimizer
states only; none sees batch, sequence, attention or checkpointing.
"""

from __future__ import annotations

import copy
import functools
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Row = Mapping[str, Any]
NAMES = {
    "deepspeed": "DeepSpeed `estimate_zero{2,3}_model_states_mem_needs`",
    "accelerate": "`accelerate estimate-memory`",
    "paper": "16 bytes a parameter, divided as the ZeRO paper does",
    "rule": "18 bytes a parameter",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """What the estimators are given of a model.

    Attributes:
        total: parameters, shared ones once.
        largest_layer: parameters that one module holds itself.
        body_bytes: of ``AutoModel`` in fp32, as accelerate counts: with its buffers, without a head.
    """

    total: int
    largest_layer: int
    body_bytes: int


@functools.cache
def _sizes(config_text: str, head: str) -> Sizes:
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    import torch
    import transformers
    from accelerate import init_empty_weights
    from accelerate.utils import calculate_maximum_sizes

    from benchmarks.measure.models import AUTO_CLASSES

    values = json.loads(config_text)
    config = transformers.AutoConfig.for_model(values.pop("model_type"), **values)
    with init_empty_weights():
        body = transformers.AutoModel.from_config(copy.deepcopy(config), dtype=torch.float32)
        whole = getattr(transformers, AUTO_CLASSES[head]).from_config(config, dtype=torch.float32)
    own = [sum(p.numel() for p in module.parameters(recurse=False)) for module in whole.modules()]
    return Sizes(
        total=sum(p.numel() for p in whole.parameters()),
        largest_layer=max(own),
        body_bytes=int(calculate_maximum_sizes(body)[0]),
    )


def sizes(row: Row) -> Sizes:
    """Of a run's model, built on the meta device."""
    return _sizes(json.dumps(row["hf_config"], sort_keys=True), row["head"])


def deepspeed(row: Row) -> int | None:
    """Bytes on each GPU by DeepSpeed's estimator; ``None``: it has none for stages 0 and 1."""
    zero = row["deepspeed_config"].get("zero_optimization", {})
    optimizer, parameters = ((zero.get(f"offload_{kind}") or {}).get("device", "none") == "cpu"
                             for kind in ("optimizer", "param"))  # fmt: skip
    found, gpus = sizes(row), row["world_size"]
    if zero.get("stage") == 2:
        from deepspeed.runtime.zero.stage_1_and_2 import estimate_zero2_model_states_mem_needs

        return int(estimate_zero2_model_states_mem_needs(found.total, gpus, cpu_offload=optimizer)[1])
    if zero.get("stage") == 3:
        from deepspeed.runtime.zero.stage3 import estimate_zero3_model_states_mem_needs

        needs = estimate_zero3_model_states_mem_needs(
            found.total, found.largest_layer, gpus, cpu_offload=optimizer, cpu_offload_params=parameters
        )
        return int(needs[1])
    return None


def accelerate(row: Row) -> int:
    """Bytes for training with Adam by ``accelerate estimate-memory``; it knows one GPU."""
    from accelerate.commands.estimate import estimate_training_usage

    usage = estimate_training_usage(sizes(row).body_bytes, _precision(row))
    return int(max(usage.values()))


def paper(row: Row) -> int:
    """Bytes on each GPU by the ZeRO paper's table (Rajbhandari et al., 2020, figure 1; K = 12).

    Frozen parameters, as under LoRA, take 2 bytes each.
    """
    stage = row["deepspeed_config"].get("zero_optimization", {}).get("stage", 0)
    trainable, frozen = row["trainable_params"], row["params"] - row["trainable_params"]
    ranks = row["world_size"] // row["tensor_parallel"]
    weights, gradients, states = 2 * (trainable + frozen), 2 * trainable, 12 * trainable
    parts = (weights / (ranks if stage >= 3 else 1), gradients / (ranks if stage >= 2 else 1),
             states / (ranks if stage >= 1 else 1))  # fmt: skip
    return int(sum(parts) / row["tensor_parallel"])


def rule(row: Row) -> int:
    """18 bytes a parameter, over the GPUs where ZeRO-3 shards them. Bytes."""
    stage = row["deepspeed_config"].get("zero_optimization", {}).get("stage", 0)
    return int(18 * row["params"] / (row["world_size"] if stage >= 3 else 1))


def _precision(row: Row) -> str:
    for key, name in (("bf16", "bfloat16"), ("fp16", "float16")):
        if row["deepspeed_config"].get(key, {}).get("enabled"):
            return name
    return "float32"


def all_of(row: Row) -> dict[str, int | None]:
    """Every peer's answer, under the keys of ``NAMES``."""
    return {
        "deepspeed": deepspeed(row),
        "accelerate": accelerate(row),
        "paper": paper(row),
        "rule": rule(row),
    }
