"""A run folder of two ranks, and the commands that read a plan beside it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

PLAN_COMMANDS = (
    ("launch", "--plan", "plan", "--device", "cpu", "--dry-run", "t.py"),
    ("launch", "--deepspeed", "plan/ds_config.json", "--device", "cpu", "--dry-run", "t.py"),
    ("emit", "sbatch", "--plan", "plan", "t.py"),
    ("emit", "kubernetes", "--image", "i", "--plan", "plan", "t.py"),
    ("emit", "hostfile", "--plan", "plan", "a", "b"),
    ("emit", "deepspeed", "--plan", "plan"),
    ("emit", "accelerate", "--plan", "plan"),
    ("plan", "--recipe", "plan/plan.yaml", "--out", "out"),
    ("check", "plan"),
    ("recipes", "show", "plan/plan.yaml"),
    ("recipes", "check", "plan/plan.yaml"),
)
BEGAN = {
    "type": "start", "schema": "zerokit.rank/1", "rank": 0, "local_rank": 0, "world_size": 2, "host": "h",
    "pid": 7, "device": "cuda", "script": "t.py", "python": "3.11.7", "time": 1e9,
}  # fmt: skip
ENGINE = {
    "zero_stage": 2, "micro_batch": 2, "gradient_accumulation": 1, "dtype": "bfloat16", "optimizer": "Adam",
    "parameters": 10**5, "trainable_parameters": 10**5, "batch_rows": 2, "batch_columns": 32,
}  # fmt: skip
ENDED = {
    "type": "end", "rank": 0, "pid": 7, "time": 1e9 + 9, "uptime_seconds": 9.0, "phase": "step", "steps": 3,
    "micro_steps": 3, "state": "finished", "exit_code": 0, "peak_allocated_bytes": 10**8,
    "peak_host_rss_bytes": 10**9, "engine": ENGINE, "step_seconds": 0.5,
    "phases": {"init": 1, "forward": 2, "backward": 3, "step": 10**8},
}  # fmt: skip


def write_run(folder: Path) -> None:
    """Two ranks that finished; the plan of ``plan/`` beside them."""
    folder.mkdir(exist_ok=True)
    for rank in (0, 1):
        records = [BEGAN | {"rank": rank}, {**ENDED, "type": "tick", "rank": rank}, ENDED | {"rank": rank}]
        text = "".join(json.dumps(record) + "\n" for record in records)
        (folder / f"rank-{rank:05d}.jsonl").write_text(text)
    shutil.copy("plan/plan.yaml", folder)
