"""Whether a counted lever makes a plan faster unseen: ``python -m benchmarks.levers [NUMBER…]``.

Each of 30 jobs is planned; then its choice is estimated with one lever changed. What is more than 2 % faster
and fits must be named by the plan. Prints what is not; ends with 1 if there is some. About 5 s of CPU a job.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import zerokit
from zerokit.errors import ZerokitError
from zerokit.search.explain import NOISE

JOBS: tuple[Mapping[str, Any], ...] = (
    *(
        {"model": model, "gpus": gpus, "gpu": gpu, "method": method}
        for model in ("qwen2.5-3b", "llama-3.1-8b", "qwen2.5-14b", "mistral-7b-v0.1", "llama-3.1-70b")
        for gpus, gpu, method in (
            (1, "h200", "lora"), (4, "h100-sxm-80gb", "full"), (8, "rtx-4090", "full"), (8, "l40s", "lora"),
            (16, "h100-sxm-80gb", "full"), (64, "a100-80gb", "full"),
        )
    ),
    {"model": "qwen3-32b", "gpus": 16, "gpu": "h200", "method": "full"},
    {"model": "qwen3-30b-a3b", "gpus": 8, "gpu": "h100-sxm-80gb", "method": "lora"},
)  # fmt: skip
"""Two of them fit nowhere, 30 do."""
_ZERO: Mapping[str, object] = {
    "zero_hpz_partition_size": 8, "round_robin_gradients": True, "overlap_comm": True,
    "reduce_bucket_size": 500_000_000, "stage3_prefetch_bucket_size": 500_000_000,
    "contiguous_gradients": False, "reduce_scatter": False, "zero_quantized_weights": True,
    "zero_quantized_gradients": True,
}  # fmt: skip
_BLOCKS: Mapping[str, Mapping[str, object]] = {
    "bf16_optimizer_states": {
        "bf16": {"enabled": True, "bf16_master_weights_and_grads": True, "bf16_optimizer_states": True}
    },
    "bf16_master_weights": {"bf16": {"enabled": True, "bf16_master_weights_and_grads": True}},
    "grad_accum_dtype": {"data_types": {"grad_accum_dtype": "fp32"}},
}
_OPTIONS: Mapping[str, Mapping[str, str]] = {
    "loss": {"loss": "chunked"},
    "liger": {"loss": "liger"},
    "adamw_8bit": {"optimizer": "adamw_8bit"},
    "lora-dropout": {"lora_dropout": "0"},
}
"""Name, as the plan must say it → what it changes."""


def _changes(config: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any], Mapping[str, str]]]:
    for name, value in _ZERO.items():
        yield name, {**config, "zero_optimization": {**config["zero_optimization"], name: value}}, {}
    for name, blocks in _BLOCKS.items():
        yield name, {**config, **blocks}, {}
    for name, options in _OPTIONS.items():
        left = {key: value for key, value in config.items() if key != "optimizer" or key not in options}
        yield name, left, options


def unnamed_gains(job: Mapping[str, Any], folder: Path) -> list[tuple[str, float]]:
    """Levers with which an estimate of the plan is faster, though the plan does not name them."""
    plan = zerokit.plan(**job)
    chosen, body = plan.chosen, plan.to_dict()
    seconds = chosen.estimate.step_seconds
    assert seconds is not None
    found = []
    for name, config, options in _changes(body["chosen"]["deepspeed_config"]):
        file = folder / "ds.json"
        file.write_text(json.dumps(config))
        try:
            asked = {**job, **options, "checkpointing": chosen.strategy.checkpointing}
            estimate = zerokit.estimate(deepspeed=file, **asked)
        except ZerokitError:
            continue  # refused: no lever of this plan
        faster = seconds / (estimate.step_seconds or seconds) - 1
        if estimate.fits and faster > NOISE and not any(name in line for line in body["faster_with"]):
            found.append((name, round(faster, 3)))
    return found


def main(numbers: list[str]) -> int:
    """Print what is missed, a line for each job."""
    missed = 0
    for number, job in enumerate(JOBS):
        if numbers and str(number) not in numbers:
            continue
        try:
            with tempfile.TemporaryDirectory() as folder:
                found = unnamed_gains(job, Path(folder))
        except ZerokitError as error:
            print(number, job, str(error).partition(":")[0], flush=True)
            continue
        missed += len(found)
        print(number, job, found or "ok", flush=True)
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
