"""Whether the main thread of a rank moves: what a hang is told by."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType

from zerokit.launcher.rank.activity import Activity, waits_for_child
from zerokit.launcher.rank.children import ChildWatch
from zerokit.launcher.rank.host_memory import HostMemory

_STILL_SECONDS = 2.0  # without a move, before the processes below are looked at
_MOVES_BYTES = 1 << 18  # between two looks: a checkpoint that is written; our own lines are far below
_FRAMES = 32
_READS = ("wait_woken", "sk_wait", "unix_stream", "pipe_read", "anon_pipe_read")  # end with data alone
_SOCKETS = ("/socket.py", "/ssl.py")


def kernel_wait() -> str:
    """The function of the kernel that the main thread waits in (proc(5), wchan); empty where nobody tells."""
    with suppress(OSError), open(f"/proc/self/task/{os.getpid()}/wchan", "rb") as file:  # noqa: PTH123
        return file.read(64).decode("ascii", "replace").strip("0\n")
    return ""


def _wakings() -> int:
    """How often the main thread has waited and gone on; 0 where nobody counts."""
    name = f"/proc/self/task/{os.getpid()}/status"
    with suppress(OSError, ValueError, IndexError), open(name, "rb") as file:  # noqa: PTH123
        return int(file.read().split(b"\nvoluntary_ctxt_switches:")[1].split()[0])
    return 0


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
        self._woken = 0
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
        if self._received(frame):
            self.seconds = time.monotonic()
        is_still = time.monotonic() - self.seconds > _STILL_SECONDS
        if is_still and self._children.working(waits_for_child(frame)):
            self.seconds = time.monotonic()

    def _received(self, frame: FrameType | None) -> bool:
        """Whether a blocking read got something: a loop of them is always at the same line."""
        before, self._woken = self._woken, _wakings()
        if self._woken == before or frame is None:
            return False
        return kernel_wait().startswith(_READS) or frame.f_code.co_filename.endswith(_SOCKETS)

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
