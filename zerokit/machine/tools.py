"""Runs a driver's listing tool, and never waits long for it."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from zerokit.values import frozen_dataclass

if TYPE_CHECKING:
    import subprocess

TIMEOUT_SECONDS = 5.0
NOT_ON_PATH = " is not on the PATH"


@frozen_dataclass
class Answer:
    """What a tool printed; ``text`` is ``None`` when it gave no usable answer, ``problem`` says why."""

    text: str | None
    problem: str = ""


def ask(
    argv: Sequence[str], environment: Mapping[str, str], timeout_seconds: float = TIMEOUT_SECONDS
) -> Answer:
    """Standard output of ``argv``; a tool that is missing, fails or hangs is a problem, not an error."""
    name = argv[0]
    program = shutil.which(name, path=environment.get("PATH", os.defpath))
    if program is None:
        return Answer(text=None, problem=f"{name}{NOT_ON_PATH}")
    import subprocess  # where there is no GPU a plan starts without it

    try:
        process = subprocess.Popen(
            [program, *argv[1:]],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**environment, "LC_ALL": "C"},
            start_new_session=True,  # so that what it started is ended with it
        )
    except OSError as error:
        return Answer(text=None, problem=f"{name} cannot be run: {error.strerror}")
    try:
        output, errors = process.communicate(timeout=timeout_seconds)
    except subprocess.TimeoutExpired:
        _end(process)
        return Answer(text=None, problem=f"{name} did not answer within {timeout_seconds:g} s")
    text = output.decode("utf-8", "replace")
    if process.returncode != 0:
        lines = (errors.decode("utf-8", "replace").strip() or text.strip()).splitlines()
        detail = f": {lines[0][:200]}" if lines else ""
        return Answer(text=None, problem=f"{name} ended with exit code {process.returncode}{detail}")
    return Answer(text=text)


def _end(process: subprocess.Popen[bytes]) -> None:
    import subprocess

    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    # a process stuck in the driver cannot be killed; do not wait for it
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.communicate(timeout=0.5)
