"""``zerokit doctor --measure``: starts one process per GPU, waits for them, keeps the result."""

from __future__ import annotations

import json
import os
import platform
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from zerokit.doctor.processes import run_all
from zerokit.machine.detect import Detected
from zerokit.machine.measured import SCHEMA, Measured, from_dict
from zerokit.temporary import temporary_folder

CPU_RANKS = 2
LIMIT_SECONDS = 600.0
_MOST_ADAM_PARAMETERS = 100_000_000
_ADAM_BYTES_PER_PARAMETER = 16  # as in measure_rank, which imports torch


def measure(detected: Detected, *, limit_seconds: float = LIMIT_SECONDS) -> Measured:
    """Measure this machine: about a minute, longer when DeepSpeed's CPU Adam is compiled first.

    Raises:
        RankFailed: a process failed; its last words are in the message.
        RunHung: they did not end within ``limit_seconds``.
    """
    device, world = ("cuda", len(detected.gpus)) if detected.gpus else ("cpu", CPU_RANKS)
    with temporary_folder("measure") as folder:
        orders = [_order(folder, rank, world, device, detected) for rank in range(world)]
        environment = {**os.environ, **({} if device == "cuda" else {"DS_ACCELERATOR": "cpu"})}
        run_all("zerokit.doctor.measure_rank", orders, environment, folder, limit_seconds)
        result = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    return from_dict(
        {
            "schema": SCHEMA,
            "host": platform.node(),
            "device": device,
            "ranks": world,
            "measured_at": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            **result,
        }
    )


def _order(folder: Path, rank: int, world: int, device: str, detected: Detected) -> dict[str, Any]:
    available = detected.host.ram_available_bytes
    parameters = _MOST_ADAM_PARAMETERS
    if available is not None:
        parameters = max(1_000_000, min(parameters, available // 4 // _ADAM_BYTES_PER_PARAMETER))
    return {
        "rank": rank,
        "world": world,
        "device": device,
        "store": str(folder / "store"),
        "result": str(folder / "result.json"),
        "adam_parameters": parameters,
    }
