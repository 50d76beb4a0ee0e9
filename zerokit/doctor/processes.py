"""Processes that measure side by side: started with an order each, waited for, ended whatever happens."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from zerokit.errors import RankFailed, RunHung
from zerokit.machine import architectures

_ROOT = Path(__file__).resolve().parents[2]
# Nothing is imported before the working folder is gone: sys is built in.
_START = (
    "import sys; del sys.path[:sys.path[:1] == ['']]; sys.path.append(sys.argv.pop(1)); "
    "import runpy; runpy.run_module(sys.argv.pop(1), run_name='__main__', alter_sys=True)"
)


def own_process(module: str, *arguments: str) -> list[str]:
    """The command that runs a module of ours as ``python -m`` does, without the working folder's modules."""
    return [sys.executable, "-c", _START, str(_ROOT), module, *arguments]


_OF_OUTER_LAUNCHERS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
"""They would be taken for ours."""
_SECONDS_TO_END = 5.0


def run_all(
    module: str,
    orders: Sequence[Mapping[str, Any]],
    environment: Mapping[str, str],
    folder: Path,
    limit_seconds: float,
    *,
    overdue: Callable[[], str | None] = lambda: None,
) -> None:
    """Run a module of ours once with each order, all at once, to their end; their output is kept in
    ``folder``. ``overdue``: what is wrong where a part of their work has taken too long by now.

    Raises:
        RankFailed: one failed; its last words are in the message.
        RunHung: they did not end within ``limit_seconds``, or a part of their work is overdue.
    """
    variables = {name: value for name, value in environment.items() if name not in _OF_OUTER_LAUNCHERS}
    if (listed := variables.get(architectures.VARIABLE)) is not None:
        variables[architectures.VARIABLE] = architectures.readable(listed)
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for rank, order in enumerate(orders):
            with (folder / f"rank-{rank}.log").open("wb") as output:
                processes.append(
                    subprocess.Popen(
                        own_process(module, json.dumps(order)), stdin=subprocess.DEVNULL, stdout=output,
                        stderr=subprocess.STDOUT, env=variables, start_new_session=True,
                    )
                )  # fmt: skip
        _wait(folder, processes, limit_seconds, overdue)
    finally:
        # end those that still run: asked first, since one that compiles an operator holds a lock on it
        running = [process for process in processes if process.poll() is None]
        for process in running:
            process.terminate()
        _wait_for_all(running, _SECONDS_TO_END)
        for process in running:  # what it started is in its group, too
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
        _wait_for_all(running, _SECONDS_TO_END)


def _wait(
    folder: Path,
    processes: list[subprocess.Popen[bytes]],
    limit_seconds: float,
    overdue: Callable[[], str | None],
) -> None:
    deadline = time.monotonic() + limit_seconds
    while True:
        codes = [process.poll() for process in processes]
        for rank, code in enumerate(codes):
            if code:
                raise RankFailed(f"measuring: rank {rank} ended with {code}: {_last_words(folder, rank)}")
        if all(code == 0 for code in codes):
            return
        late = overdue()
        if time.monotonic() > deadline:
            late = f"measuring did not end within {limit_seconds:g} s"
        if late is not None:
            slow = next(rank for rank, code in enumerate(codes) if code is None)
            raise RunHung(f"{late}: {_last_words(folder, slow)}")
        time.sleep(0.05)


def _last_words(folder: Path, rank: int) -> str:
    text = (folder / f"rank-{rank}.log").read_bytes()[-4000:].decode("utf-8", "replace")
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:300] if lines else "it said nothing"


def _wait_for_all(processes: Sequence[subprocess.Popen[bytes]], seconds: float) -> None:
    end = time.monotonic() + seconds
    for process in processes:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=max(0.0, end - time.monotonic()))
