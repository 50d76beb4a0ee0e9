"""An ordinary DeepSpeed training script for a case: what ``zerokit launch`` is given to run.

    zerokit launch --plan PLAN --style raw -m benchmarks.measure.train --case CASE.json --notes FOLDER
    deepspeed --module benchmarks.measure.train --case CASE.json --notes FOLDER --deepspeed_config FILE

It knows nothing of zerokit. Two environment variables are its own: ``MEASURE_LIMIT_BYTES`` holds the
allocator of each rank to a smaller card, and ``MEASURE_GATE`` names a folder in which a rank leaves
``ready-RANK`` once its model is built in host memory, and waits for ``go`` before it touches its GPU; it
leaves ``done-RANK`` after its last step.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path

import deepspeed
import torch

from benchmarks.measure.meter import Note
from benchmarks.measure.worker import noted


def wait_for_turn() -> None:
    """Say that this rank is ready, and wait until the runs before it have left the GPUs."""
    leave_sign("ready")
    gate = os.environ.get("MEASURE_GATE")
    while gate and not (Path(gate) / "go").exists():
        time.sleep(0.05)


def leave_sign(sign: str) -> None:
    """Tell who keeps the gate, if there is one, how far this rank is."""
    gate = os.environ.get("MEASURE_GATE")
    if gate:
        (Path(gate) / f"{sign}-{os.environ['RANK']}").touch()


def main() -> None:
    """Train the case's steps; the notes of this rank are in ``--notes``."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--case", type=Path, required=True, help="the case, as JSON")
    parser.add_argument("--notes", type=Path, required=True, help="the folder for rank-N.json")
    parser.add_argument("--local_rank", type=int, default=-1, help="given by the launcher")
    deepspeed.add_config_arguments(parser)
    options = parser.parse_args()
    case = json.loads(options.case.read_text(encoding="utf-8"))
    config = json.loads(Path(options.deepspeed_config).read_text(encoding="utf-8"))
    limit = os.environ.get("MEASURE_LIMIT_BYTES")
    told = case | {"deepspeed_config": config, "limit_bytes": int(limit) if limit else None}
    noted(told, Note(options.notes / f"rank-{os.environ['RANK']}.json"), wait_for_turn)
    leave_sign("done")
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
