"""A rank ends itself when all that would end it is gone.

On another machine nobody else may be able to reach it; on this one zerokit and its guard may both have
been killed. Here the pipe that takes the rank's output tells: zerokit holds its reading end. Elsewhere
zerokit writes a count into ``alive`` of the run folder every two seconds. The count, not the file's
time, tells: clocks differ, and network file systems keep a file's time for a while.
"""

from __future__ import annotations

import os
import select
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from zerokit.launcher import rank_start

ALIVE_FILE = "alive"
BEAT_SECONDS = 2.0
VARIABLE = "ZEROKIT_ALIVE_SECONDS"
PIPE_SECONDS = 8.0
_LEAST_SECONDS = 10.0
_WITHOUT_HEARTBEAT_SECONDS = 120.0


def patience_seconds(heartbeat_seconds: float | None) -> float:
    """How long ``alive`` may stand still: longer than zerokit itself waits for a silent rank."""
    if heartbeat_seconds is None or heartbeat_seconds <= 0:
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

    def is_orphaned(self) -> bool:
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


class PipeWatch:
    """Watches the pipe that takes this rank's errors; without a reader zerokit is gone. The guard then ends
    the rank within seconds: ``seconds`` later it must be gone too."""

    def __init__(self, path: Path, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds = seconds
        self._clock = clock
        self._alone_since: float | None = None
        self._fd = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        status = os.fstat(self._fd)
        self._identity = status.st_dev, status.st_ino
        self._poll = select.poll()
        self._poll.register(self._fd, 0)  # errors alone

    def is_orphaned(self) -> bool:
        """Whether zerokit's end has been closed for too long."""
        try:
            status = os.fstat(self._fd)
        except OSError:
            return False
        if (status.st_dev, status.st_ino) != self._identity:
            return False  # the script closed every descriptor, and the number is another file's now
        if not any(event & select.POLLERR for _, event in self._poll.poll(0)):
            self._alone_since = None
            return False
        now = self._clock()
        self._alone_since = now if self._alone_since is None else self._alone_since
        return now - self._alone_since > self._seconds


def watches(
    run_dir: Path, rank: int, environment: Mapping[str, str] | None = None
) -> list[DeadMan | PipeWatch]:
    """What this rank is to watch: ``alive`` where the launch ordered it, its pipe on zerokit's machine."""
    environment = os.environ if environment is None else environment
    result: list[DeadMan | PipeWatch] = []
    with suppress(ValueError):
        text = environment.get(VARIABLE, "")
        result += [DeadMan(run_dir / ALIVE_FILE, float(text))] if text else []
    with suppress(OSError):
        folder = environment.get(rank_start.PIPES_VARIABLE)
        result += [PipeWatch(rank_start.pipe(Path(folder), rank, "err"), PIPE_SECONDS)] if folder else []
    return result
