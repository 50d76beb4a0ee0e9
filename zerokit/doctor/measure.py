"""``zerokit doctor --measure``: starts one process per GPU, waits for them, keeps the result."""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from zerokit.doctor.processes import run_all
from zerokit.errors import RunHung
from zerokit.machine.detect import Detected
from zerokit.machine.measured import SCHEMA, Measured, from_dict
from zerokit.temporary import temporary_folder

CPU_RANKS = 2
LIMIT_SECONDS = 150.0
"""Of all parts; what was not measured by then is said."""
COMPILE_SECONDS = 300.0
"""More, where DeepSpeed's CPU Adam must be compiled first."""
START = "start"
"""Imports from a slow disk, the GPUs' contexts, the first connections."""
_BUDGETS = {
    START: 90.0,
    "matrix product": 15.0,
    "memory": 15.0,
    "pinned copies": 15.0,
    "host speed": 50.0,
    "host memory": 20.0,
    "casts in host memory": 20.0,
    "collectives": 50.0,
    "CPU Adam": 40.0,
}
"""Seconds after which a part is taken to hang. On H200s all parts together took 29 s (two GPUs). The host's
speed is 8 s of probing and imports Transformers; CPU Adam imports DeepSpeed."""
PARTS = tuple(name for name in _BUDGETS if name != START)
"""In the order in which they are measured: CPU Adam, which may have to be compiled, last."""
_COLLECTIVE_SECONDS = 25.0
"""After which no other message size is begun."""
_MOST_ADAM_PARAMETERS = 100_000_000
_ADAM_BYTES_PER_PARAMETER = 16  # as in measure_rank, which imports torch


class Progress:
    """What the ranks have measured so far, by the file that rank 0 writes after each part; ``budgets``:
    seconds of each."""

    def __init__(self, path: Path, budgets: Mapping[str, float]) -> None:
        self._path = path
        self._budgets = budgets
        self._began = time.monotonic()
        self.done: list[str] | None = None
        self.values: dict[str, Any] = {}

    @property
    def part(self) -> str | None:
        """What is being measured; None: all is."""
        if self.done is None:
            return START
        return next((name for name in PARTS if name not in self.done), None)

    def read(self) -> None:
        """Look at the file."""
        try:
            found = json.loads(self._path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return
        if found["done"] != self.done:
            self.done, self.values = found["done"], found["values"]
            self._began = time.monotonic()

    def overdue(self) -> str | None:
        """What is wrong where the part that is being measured has used up its time."""
        self.read()
        budget = self._budgets[self.part] if self.part is not None else None
        if budget is None or time.monotonic() - self._began <= budget:
            return None
        return f"{self.part} did not end within {budget:g} s"


def measure(
    detected: Detected,
    *,
    compiles: bool = False,
    budgets: Mapping[str, float] | None = None,
    limit_seconds: float = LIMIT_SECONDS,
) -> Measured:
    """Measure this machine: about half a minute, longer on a busy one, at most ``limit_seconds``, and
    ``COMPILE_SECONDS`` more where DeepSpeed's CPU Adam must be compiled first.

    Each part has a budget of seconds. One that does not end within it is given up with those after it; they
    stand under ``not_measured``.

    Raises:
        RankFailed: a process failed; its last words are in the message.
        RunHung: they measured nothing within their time.
    """
    device, world = ("cuda", len(detected.gpus)) if detected.gpus else ("cpu", CPU_RANKS)
    allowed = {**_BUDGETS, **(budgets or {})}
    if compiles:
        allowed["CPU Adam"] += COMPILE_SECONDS
        limit_seconds += COMPILE_SECONDS
    with temporary_folder("measure") as folder:
        orders = [_order(folder, rank, world, device, detected) for rank in range(world)]
        environment = {**os.environ, **({} if device == "cuda" else {"DS_ACCELERATOR": "cpu"})}
        progress = Progress(folder / "result.json", allowed)
        not_measured: dict[str, str] = {}
        try:
            run_all(
                "zerokit.doctor.measure_rank", orders, environment, folder, limit_seconds,
                overdue=progress.overdue,
            )  # fmt: skip
            progress.read()
        except RunHung as error:
            if not progress.done:
                raise
            rest = [name for name in PARTS if name not in progress.done]
            not_measured = {rest[0]: str(error), **dict.fromkeys(rest[1:], "no time was left for it")}
    return from_dict(
        {
            "schema": SCHEMA,
            "host": platform.node(),
            "device": device,
            "ranks": world,
            "measured_at": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            "collectives": [],
            **progress.values,
            "not_measured": {**progress.values.get("not_measured", {}), **not_measured},
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
        "parts": PARTS,
        "collective_seconds": _COLLECTIVE_SECONDS,
    }
