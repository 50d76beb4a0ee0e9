"""Strategies drawn so that every pair of choices occurs together wherever it is legal."""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping
from typing import Any

from zerokit.domain.deepspeed_settings import DeepSpeedSettings, Offload, ZeroSettings
from zerokit.domain.strategy import Strategy
from zerokit.rules import first_violation

FACTORS: Mapping[str, tuple[Any, ...]] = {
    "stage": (0, 1, 2, 3),
    "offload_optimizer": ("none", "cpu", "nvme"),
    "offload_param": ("none", "cpu", "nvme"),
    "pin_memory": (True, False),
    "precision": ("bf16", "fp16", "fp32"),
    "optimizer": ("AdamW", "Adam", "Lion", "Adagrad", "SGD", "Lamb", None),
    "torch_adam": (False, True),
    "tensor_parallel": (1, 2, 4),
    "pipeline_parallel": (1, 2),
    "sequence_parallel": (1, 2),
    "data_parallel": (1, 2, 4),
    "micro_batch": (1, 8),
    "gradient_accumulation": (1, 16),
    "gradient_clipping": (0.0, 1.0),
    "bucket": (10**6, 5 * 10**8),
    "overlap_comm": (None, True, False),
    "grad_accum_dtype": (None, "fp32"),
    "communication_data_type": (None, "fp32"),
    "hpz": (1, 2),
    "quantized_weights": (False, True),
    "ratio": (1.0, 0.5),
    "master_in_bf16": (False, True),
    "checkpointing": ("none", "selective", "full"),
}
KEY_VALUE_HEADS = 8


def build(choice: Mapping[str, Any]) -> Strategy:
    """The strategy of one choice per factor, legal or not."""
    nvme = {
        name: "/local/nvme" if choice[name] == "nvme" else None
        for name in ("offload_optimizer", "offload_param")
    }
    zero = ZeroSettings(
        stage=choice["stage"],
        reduce_bucket_size=choice["bucket"],
        overlap_comm=choice["overlap_comm"],
        zero_hpz_partition_size=choice["hpz"],
        zero_quantized_weights=choice["quantized_weights"],
        offload_optimizer=Offload(
            device=choice["offload_optimizer"],
            pin_memory=choice["pin_memory"],
            nvme_path=nvme["offload_optimizer"],
            ratio=choice["ratio"],
        ),
        offload_param=Offload(
            device=choice["offload_param"],
            pin_memory=choice["pin_memory"],
            nvme_path=nvme["offload_param"],
            buffer_count=5,
        ),
    )
    settings = DeepSpeedSettings(
        precision=choice["precision"],
        micro_batch=choice["micro_batch"],
        gradient_accumulation=choice["gradient_accumulation"],
        gradient_clipping=choice["gradient_clipping"],
        grad_accum_dtype=choice["grad_accum_dtype"],
        communication_data_type=choice["communication_data_type"],
        optimizer=choice["optimizer"],
        torch_adam=choice["torch_adam"],
        autotp_size=choice["tensor_parallel"],
        bf16_master_weights_and_grads=choice["master_in_bf16"],
        zero=zero,
    )
    return Strategy(
        settings=settings,
        data_parallel=choice["data_parallel"],
        tensor_parallel=choice["tensor_parallel"],
        pipeline_parallel=choice["pipeline_parallel"],
        sequence_parallel=choice["sequence_parallel"],
        checkpointing=choice["checkpointing"],
    )


def legal(choice: Mapping[str, Any]) -> bool:
    """Whether a planner may choose it: no rule broken, and nothing set that has no meaning there."""
    if choice["torch_adam"] and choice["optimizer"] not in ("Adam", "AdamW"):
        return False
    if choice["ratio"] < 1 and (
        choice["offload_optimizer"] != "cpu" or choice["optimizer"] not in ("Adam", "AdamW")
    ):
        return False
    if choice["offload_optimizer"] != "none" and choice["optimizer"] is None:
        return False  # the script's own optimizer would have to be DeepSpeed's
    if choice["master_in_bf16"] and choice["precision"] != "bf16":
        return False
    parallel = [choice[name] > 1 for name in ("tensor_parallel", "pipeline_parallel", "sequence_parallel")]
    if sum(parallel) > 1:
        return False
    strategy = build(choice)
    return (
        strategy.world_size <= 8
        and first_violation(strategy, gpus_per_node=8, key_value_heads=KEY_VALUE_HEADS) is None
    )


def pairs(choice: Mapping[str, Any]) -> set[tuple[Any, ...]]:
    """All pairs of (factor, value) of one choice."""
    items = [(name, choice[name]) for name in FACTORS]
    return set(itertools.combinations(items, 2))


def pairwise(count: int, *, seed: int = 0) -> tuple[list[Strategy], float]:
    """``count`` legal strategies, and the share of all pairs seen legal that they cover.

    Each is the one of 40 random legal choices that brings most pairs not yet covered.
    """
    source = random.Random(seed)
    observed: set[tuple[Any, ...]] = set()
    covered: set[tuple[Any, ...]] = set()
    chosen: list[Strategy] = []
    while len(chosen) < count:
        candidates: list[dict[str, Any]] = []
        while len(candidates) < 40:
            choice = {name: source.choice(values) for name, values in FACTORS.items()}
            # half of the space has no offload and no low-precision tricks; without help draws die there
            if source.random() < 0.5:
                choice.update(
                    offload_param="none", hpz=1, quantized_weights=False, ratio=1.0, master_in_bf16=False
                )
            if legal(choice):
                candidates.append(choice)
        for choice in candidates:
            observed |= pairs(choice)
        best = max(candidates, key=lambda choice: len(pairs(choice) - covered))
        covered |= pairs(best)
        chosen.append(build(best))
    return chosen, len(covered) / len(observed)
