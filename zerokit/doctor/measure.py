"""``zerokit doctor --measure``: starts one process per GPU, waits for them, keeps the result."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import signal
import subprocess
import time
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from zerokit.errors import RankFailed, RunHung
from zerokit.launcher.own_process import own_process
from zerokit.machine import architectures
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
        processes = [_start(folder, rank, world, device, detected) for rank in range(world)]
        try:
            _wait(folder, processes, limit_seconds)
        finally:
            _end(processes)
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


def _start(folder: Path, rank: int, world: int, device: str, detected: Detected) -> subprocess.Popen[bytes]:
    available = detected.host.ram_available_bytes
    parameters = _MOST_ADAM_PARAMETERS
    if available is not None:
        parameters = max(1_000_000, min(parameters, available // 4 // _ADAM_BYTES_PER_PARAMETER))
    order: dict[str, Any] = {
        "rank": rank,
        "world": world,
        "device": device,
        "store": str(folder / "store"),
        "result": str(folder / "result.json"),
        "adam_parameters": parameters,
    }
    environment = {**os.environ, **({} if device == "cuda" else {"DS_ACCELERATOR": "cpu"})}
    # variables of an outer launcher would be taken for ours
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"):
        environment.pop(name, None)
    if (listed := environment.get(architectures.VARIABLE)) is not None:
        environment[architectures.VARIABLE] = architectures.readable(listed)
    with (folder / f"rank-{rank}.log").open("wb") as log:
        return subprocess.Popen(
            own_process("zerokit.doctor.measure_rank", json.dumps(order)),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
        )


def _wait(folder: Path, processes: list[subprocess.Popen[bytes]], limit_seconds: float) -> None:
    deadline = time.monotonic() + limit_seconds
    while True:
        codes = [process.poll() for process in processes]
        for rank, code in enumerate(codes):
            if code:
                raise RankFailed(f"measuring: rank {rank} ended with {code}: {_last_words(folder, rank)}")
        if all(code == 0 for code in codes):
            return
        if time.monotonic() > deadline:
            slow = next(rank for rank, code in enumerate(codes) if code is None)
            raise RunHung(f"measuring did not end within {limit_seconds:g} s: {_last_words(folder, slow)}")
        time.sleep(0.05)


def _last_words(folder: Path, rank: int) -> str:
    text = (folder / f"rank-{rank}.log").read_bytes()[-4000:].decode("utf-8", "replace")
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:300] if lines else "it said nothing"


def _end(processes: list[subprocess.Popen[bytes]]) -> None:
    for process in processes:
        if process.poll() is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
    for process in processes:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=5)
