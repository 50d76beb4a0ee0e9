"""A rank on another machine ends itself when zerokit is gone: nobody else may be able to reach it.

zerokit writes a count into ``alive`` of the run folder every two seconds. The count, not the file's
time, tells: clocks differ, and network file systems keep a file's time for a while.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path

ALIVE_FILE = "alive"
BEAT_SECONDS = 2.0
VARIABLE = "ZEROKIT_ALIVE_SECONDS"
_LEAST_SECONDS = 10.0
_WITHOUT_HEARTBEAT_SECONDS = 120.0


def patience_seconds(heartbeat_seconds: float) -> float:
    """How long ``alive`` may stand still: longer than zerokit itself waits for a silent rank."""
    if heartbeat_seconds <= 0:
        return _WITHOUT_HEARTBEAT_SECONDS
    return max(_LEAST_SECONDS, 2 * heartbeat_seconds)


class DeadMan:
    """Watches ``alive``; armed once it has been seen."""

    def __init__(self, path: Path, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._path = path
        self._seconds = seconds
        self._clock = clock
        self._count: bytes | None = None
        self._moved = clock()
        self._next_look = 0.0

    def gone(self) -> bool:
        """Whether zerokit has been silent for too long; looks at the file once in a beat."""
        now = self._clock()
        if now < self._next_look:
            return False
        self._next_look = now + BEAT_SECONDS
        try:
            descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            count = None
        else:
            count = os.read(descriptor, 64)
            os.close(descriptor)
        if count is not None and count != self._count:
            self._count, self._moved = count, now
        return self._count is not None and now - self._moved > self._seconds


def of_environment(run_dir: Path, environment: Mapping[str, str] | None = None) -> DeadMan | None:
    """The watch that the launch ordered; None on one machine, where the guard ends everybody."""
    text = (os.environ if environment is None else environment).get(VARIABLE, "")
    try:
        return DeadMan(run_dir / ALIVE_FILE, float(text)) if text else None
    except ValueError:
        return None
