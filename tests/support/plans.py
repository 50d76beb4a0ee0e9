"""A small plan for the tests: real files, as ``zerokit plan`` writes them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from zerokit.domain.deepspeed_settings import DeepSpeedSettings, ZeroSettings
from zerokit.domain.job import Job
from zerokit.domain.strategy import Strategy
from zerokit.emit import plan_file
from zerokit.emit.deepspeed import deepspeed_config


def write_plan(
    folder: Path, *, ranks: int = 2, stage: int = 2, precision: str = "bf16", micro_batch: int = 2,
    accumulation: int = 1,
) -> Path:  # fmt: skip
    """Write plan.yaml and ds_config.json into ``folder``; returns the folder."""
    settings = DeepSpeedSettings(
        precision=precision,
        micro_batch=micro_batch,
        gradient_accumulation=accumulation,
        gradient_clipping=1.0,
        zero=ZeroSettings(stage=stage),
    )
    strategy = Strategy(settings=settings, data_parallel=ranks)
    config = deepspeed_config(strategy, Job(seq_len=32))
    peak = 123_456_789
    rank = {
        "peak_allocated_bytes": peak,
        "peak_phase": "step",
        "phases": {"init": 1, "forward": 2, "backward": 3, "step": peak},
        "components": {"weights": peak},
    }
    chosen: dict[str, Any] = {
        "zero_stage": stage,
        "offload_optimizer": "none",
        "offload_param": "none",
        "data_parallel": ranks,
        "tensor_parallel": 1,
        "pipeline_parallel": 1,
        "sequence_parallel": 1,
        "micro_batch": micro_batch,
        "gradient_accumulation": accumulation,
        "activation_checkpointing": "none",
        "precision": precision,
        "environment": {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"},
        "deepspeed_config": config,
        "estimate": {
            "schema": "zerokit.estimate/1",
            "fits": True,
            "peak_allocated_bytes": peak,
            "min_vram_bytes": 2 * peak,
            "host_bytes_per_node": 1 << 30,
            "step_seconds": 0.5,
            "tokens_per_second_per_gpu": 1000.0,
            "per_rank": [{"rank": r, **rank} for r in range(ranks)],
            "assumptions": [],
        },
        "why": "for the tests",
    }
    plan_file.write(folder, {"params": "100k", "gpus": ranks}, chosen)
    (folder / "ds_config.json").write_text(json.dumps(config, indent=2))
    return folder
