"""Processes that measure side by side: started with an order each, waited for, ended whatever happens."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from zerokit.errors import RankFailed, RunHung
from zerokit.launcher.own_process import own_process
from zerokit.machine import architectures

_OF_OUTER_LAUNCHERS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
"""They would be taken for ours."""


def run_all(
    module: str,
    orders: Sequence[Mapping[str, Any]],
    environment: Mapping[str, str],
    folder: Path,
    limit_seconds: float,
) -> None:
    """Run a module of ours once with each order, all at once, to their end.

    Args:
        folder: where their output is kept.

    Raises:
        RankFailed: one failed; its last words are in the message.
        RunHung: they did not end within ``limit_seconds``.
    """
    variables = {name: value for name, value in environment.items() if name not in _OF_OUTER_LAUNCHERS}
    if (listed := variables.get(architectures.VARIABLE)) is not None:
        variables[architectures.VARIABLE] = architectures.readable(listed)
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for rank, order in enumerate(orders):
            processes.append(_start(module, order, variables, _log(folder, rank)))
        _wait(folder, processes, limit_seconds)
    finally:
        _end(processes)


def _log(folder: Path, rank: int) -> Path:
    return folder / f"rank-{rank}.log"


def _start(
    module: str, order: Mapping[str, Any], environment: Mapping[str, str], log: Path
) -> subprocess.Popen[bytes]:
    with log.open("wb") as output:
        return subprocess.Popen(
            own_process(module, json.dumps(order)),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=dict(environment),
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
    text = _log(folder, rank).read_bytes()[-4000:].decode("utf-8", "replace")
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
