"""The measured runs of trainers' scripts, in the columns of the bare ones: ``scripts.jsonl``.

    python -m benchmarks.script_runs [NAME…]     # asks zerokit again, some seconds a row; needs torch

A row is what a run was given (the trainer's arguments as its file has them, the model's configuration, what
lies beside) with the peak that was measured and the one that its rehearsal said before. ``asked`` is what
zerokit reads in that file, ``zerokit`` the peak that ``zerokit estimate FILE`` says of it, and
``not_modelled`` the keys that it says it does not count; where it refuses the file, ``refused`` says why.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import zerokit
from benchmarks.trainer_files.compared import laid, rows
from zerokit.domain.deepspeed_settings import DeepSpeedSettings
from zerokit.errors import ZerokitError
from zerokit.memory.closed_form import trainable_parameters
from zerokit.planner.memory_source import silent
from zerokit.planner.request import resolve
from zerokit.planner.trainer_file import strategy_options
from zerokit.trainer_files.reading import read_trainer_file

ROWS = Path(__file__).resolve().parent / "measure" / "data" / "scripts.jsonl"


def asked(row: Mapping[str, Any]) -> dict[str, Any]:
    """``asked`` and ``zerokit`` of a row, or ``refused``."""
    with laid(row, row["config"]) as path:
        try:
            found = zerokit.estimate(file=Path(path), kind=row["trainer"], gpus=row["gpus"], gpu="h200")
            file = read_trainer_file(path, row["trainer"])
            options = strategy_options(file, {"gpus": row["gpus"], "gpu": "h200"})
            request = resolve(options, single=True, file=True, say=silent).request
        except ZerokitError as error:
            return {"refused": str(error).splitlines()[0]}
    job, strategy = found.planned.job, found.planned.candidate.strategy
    settings = strategy.settings
    config: dict[str, Any] = {} if settings.precision == "fp32" else {settings.precision: {"enabled": True}}
    if isinstance(settings, DeepSpeedSettings):
        offloads = {key: getattr(settings.zero, key).device for key in ("offload_optimizer", "offload_param")}
        config["zero_optimization"] = {
            "stage": settings.zero.stage,
            **{key: {"device": device} for key, device in offloads.items() if device != "none"},
        }
    return {
        "asked": {
            "params": request.shape.parameters, "trainable_params": trainable_parameters(request.shape, job),
            "seq_len": job.seq_len, "micro_batch": settings.micro_batch,
            "activation_checkpointing": strategy.checkpointing != "none",
            "quantized": job.method == "qlora", "deepspeed_config": config,
        },
        "not_modelled": sorted(file.not_modelled), "zerokit": found.peak_allocated_bytes,
    }  # fmt: skip


_TOLD = ("asked", "not_modelled", "zerokit", "refused")


def main() -> None:
    """Ask of all rows, or of those named, and write the file."""
    known = rows(ROWS)
    for number, row in enumerate(known):
        if not sys.argv[1:] or row["name"] in sys.argv[1:]:
            kept = {key: value for key, value in row.items() if key not in _TOLD}
            known[number] = row = {**kept, **asked(row)}
            error = f"{row['zerokit'] / row['measured'] - 1:+.3%}" if "zerokit" in row else row["refused"]
            print(f"{row['name']:<40} {error}", flush=True)
        ROWS.write_text("".join(json.dumps(one) + "\n" for one in known), encoding="utf-8")


if __name__ == "__main__":
    main()
