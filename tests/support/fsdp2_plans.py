"""A small plan for FSDP2: real files, as ``zerokit plan --engine fsdp2`` writes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from zerokit.domain.fsdp2_settings import Fsdp2Settings
from zerokit.domain.job import Job
from zerokit.domain.strategy import Strategy
from zerokit.emit import plan_file
from zerokit.emit.files import emitter_of, plan_files

PEAK = 123_456_789


def write_fsdp2_plan(
    folder: Path, *, ranks: int = 2, nodes: int = 1, shared: int = 1, **settings: Any
) -> Path:
    """Write plan.yaml and its files into ``folder``, of bf16 and batches of two; returns the folder.
    ``shared``: ranks of a sequence."""
    strategy = Strategy(
        settings=Fsdp2Settings(
            **{"precision": "bf16", "micro_batch": 2, "gradient_clipping": 1.0, **settings}
        ),
        data_parallel=ranks // shared,
        sequence_parallel=shared,
    )
    files, job = plan_files(strategy, Job(seq_len=8), nodes=nodes, folder=folder), Job(seq_len=8)
    rank = {
        "rank": 0, "ranks": [0, ranks - 1], "peak_allocated_bytes": PEAK, "peak_phase": "step",
        "phases": {"init": 1, "forward": 2, "backward": 3, "step": PEAK}, "components": {"weights": PEAK},
    }  # fmt: skip
    chosen = {
        "engine": "fsdp2", "zero_stage": None, "offload_optimizer": "none", "offload_param": "none",
        "data_parallel": ranks // shared, "tensor_parallel": 1, "pipeline_parallel": 1,
        "sequence_parallel": 1, "context_parallel": shared,
        "micro_batch": 2, "gradient_accumulation": 1, "activation_checkpointing": "none",
        "gradient_clipping": 1.0, "precision": strategy.settings.precision,
        "sharding": ranks // strategy.settings.replicas,
        "reshard_after_forward": strategy.settings.reshard_after_forward,
        "estimate": {"peak_allocated_bytes": PEAK, "min_vram_bytes": 2 * PEAK, "step_seconds": 0.5,
                     "per_rank": [rank]},
        **emitter_of(strategy).config(strategy, job, nodes),
    }  # fmt: skip
    plan_file.write(
        folder, {"seq-len": "8", "gpus": str(ranks)}, chosen, cluster={"nodes": nodes, "gpu": "h200"}
    )
    for name, text in files.texts.items():
        (folder / name).write_text(text)
    return folder
