"""The training job of ``autotuner.py``: an ordinary DeepSpeed script, run with every answer's configuration.

    deepspeed benchmarks/autotuner_job.py --model llama-3.2-1b --notes FOLDER --deepspeed_config FILE

The micro-batch and the accumulation are those of the DeepSpeed configuration. It comes as a file, or as
base64 of its JSON, as the autotuner hands it on. Step times and peaks are left in ``--notes``.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import deepspeed
import torch

from benchmarks.measure.case import DEFAULTS
from benchmarks.measure.meter import Note
from benchmarks.measure.worker import noted
from zerokit.catalog import models

CHECKPOINTING = {"none": False, "false": False, "full": True, "true": True, "selective": "selective"}


def arguments() -> argparse.Namespace:
    """The script's options, and those that DeepSpeed adds."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", required=True, help="a name of the catalogue, or a config.json")
    parser.add_argument("--seq-len", type=int, default=2048)
    parser.add_argument("--steps", type=int, default=12, help="optimizer steps")
    parser.add_argument("--checkpointing", choices=tuple(CHECKPOINTING), default="none")
    parser.add_argument("--limit-bytes", type=int, help="hold the allocator of each rank to so much")
    parser.add_argument("--notes", type=Path, required=True, help="the folder for rank-N.json")
    parser.add_argument("--local_rank", type=int, default=-1, help="given by the launcher")
    deepspeed.add_config_arguments(parser)
    return parser.parse_args()


def hf_config(model: str) -> dict[str, Any]:
    """A model's Transformers configuration."""
    if model.endswith(".json"):
        found: dict[str, Any] = json.loads(Path(model).read_text(encoding="utf-8"))
        return found
    return dict(models.load(model).hf_config)


def deepspeed_config(given: str) -> dict[str, Any]:
    """The configuration in a file, or in the argument itself."""
    is_file = given.endswith(".json")
    text = Path(given).read_bytes() if is_file else base64.urlsafe_b64decode(given)
    found: dict[str, Any] = json.loads(text)
    return found


def main() -> None:
    """Train as the options and the configuration say."""
    options = arguments()
    config = deepspeed_config(options.deepspeed_config)
    case = DEFAULTS | {
        "hf_config": hf_config(options.model),
        "deepspeed_config": config,
        "world_size": int(os.environ["WORLD_SIZE"]),
        "micro_batch": config["train_micro_batch_size_per_gpu"],
        "gradient_accumulation": config.get("gradient_accumulation_steps", 1),
        "seq_len": options.seq_len,
        "activation_checkpointing": CHECKPOINTING[options.checkpointing],
        "steps": options.steps,
        "shared": False,
        "limit_bytes": options.limit_bytes,
    }
    options.notes.mkdir(parents=True, exist_ok=True)
    with suppress(SystemExit):  # how the engine ends a run of the autotuner
        noted(case, Note(options.notes / f"rank-{os.environ['RANK']}.json"))
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
