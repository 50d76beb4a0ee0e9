"""Whether the main thread of a rank moves: what a hang is told by."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from zerokit.launcher.rank.activity import Activity, waits_for_child
from zerokit.launcher.rank.children import ChildWatch
from zerokit.launcher.rank.host_memory import HostMemory

_STILL_SECONDS = 2.0  # without a move, before the processes below are looked at
_MOVES_BYTES = 1 << 18  # between two looks: a checkpoint that is written; our own lines are far below
_FRAMES = 32


class Movement:
    """Watches the main thread's position, the bytes it moves, and the processes that it waits for.

    Attributes:
        seconds: of the monotonic clock, when it moved last.
        doing: a long operation's name, while it lasts.
    """

    def __init__(self, thread: int, host: HostMemory) -> None:
        self.seconds = time.monotonic()
        self.doing: str | None = None
        self._thread = thread
        self._host = host
        self._position: list[tuple[int, int]] | None = None
        self._bytes = 0
        self._children = ChildWatch()
        self._activity = Activity()

    def look(self, allocated: bool) -> None:
        """Called by the ticker. ``allocated``: the GPU's allocator was asked since the last look."""
        if allocated:
            self.seconds = time.monotonic()
        position, moved_bytes = self._main_thread(), self._host.moved_bytes()
        if position != self._position or moved_bytes - self._bytes > _MOVES_BYTES:
            self._position, self.seconds = position, time.monotonic()
        self._bytes = moved_bytes
        frame = sys._current_frames().get(self._thread)
        self.doing = self._activity.of(frame)
        still = time.monotonic() - self.seconds > _STILL_SECONDS
        if still and self._children.working(waits_for_child(frame)):
            self.seconds = time.monotonic()

    @contextmanager
    def own_reading(self) -> Iterator[None]:
        """What is read and written in here is our own doing, no sign that the script moves."""
        before = self._host.moved_bytes()
        try:
            yield
        finally:
            self._bytes += self._host.moved_bytes() - before

    def _main_thread(self) -> list[tuple[int, int]]:
        """Where each of its innermost frames is."""
        frame = sys._current_frames().get(self._thread)
        positions: list[tuple[int, int]] = []
        while frame is not None and len(positions) < _FRAMES:
            positions.append((id(frame.f_code), frame.f_lasti))
            frame = frame.f_back
        return positions
