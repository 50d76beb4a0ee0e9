"""What the ranks and the launcher print: through pipes into log files, (rank 0, the launcher's errors) on.

A log file that cannot be written (disk full) or a terminal that does not keep up never
stops the training: what cannot be written is dropped and counted.
"""

from __future__ import annotations

import fcntl
import functools
import os
import queue
import select
import selectors
import shutil
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from zerokit.launcher.secrets import Secrets
from zerokit.messages import message, printable, shown, width_of

_LONGEST_LINE = 1 << 16  # a progress bar without a line end is passed on from here
_TAIL_BYTES = 16_384
_MOST_WAITING_BYTES = 16 << 20
_ERASE = b"\r\x1b[2K"


class Log:
    """One stream's log file, with its last bytes kept in memory."""

    def __init__(self, path: Path, secrets: Secrets) -> None:
        self.path = path
        self.secrets = secrets
        self.dropped_bytes = 0
        self.tail = b""
        self._rest = b""
        self._in_secret = False
        self._file: BinaryIO | None = None
        with suppress(OSError):
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
            self._file = os.fdopen(os.open(path, flags, 0o600), "ab", buffering=0)

    def feed(self, data: bytes) -> bytes:
        """Write the complete lines among what has come; returns them, redacted."""
        if self._in_secret:  # of which all that comes is a part, up to the end of its line
            end = min((at for at in map(data.find, (b"\n", b"\r")) if at >= 0), default=len(data))
            data, self._in_secret = data[end:], end == len(data)
        data = self._rest + data
        cut = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
        if cut == 0 and len(data) > _LONGEST_LINE:
            cut = self.secrets.cut(data)
            if cut == 0 and len(data) > 2 * _LONGEST_LINE:
                cut, self._in_secret = len(data), True
        lines, self._rest = data[:cut], data[cut:]
        return self._write(lines)

    def close(self) -> bytes:
        """Write what is left without a line end, and close."""
        lines, self._rest = self._rest, b""
        lines = self._write(lines)
        if self._file is not None:
            self._file.close()
            self._file = None
        return lines

    def _write(self, lines: bytes) -> bytes:
        if not lines:
            return b""
        lines = self.secrets.data(lines)
        self.tail = (self.tail + lines)[-_TAIL_BYTES:]
        written_bytes = 0
        if self._file is not None:
            with suppress(OSError):
                written_bytes = self._file.write(lines) or 0
        self.dropped_bytes += len(lines) - written_bytes
        return lines


class Terminal:
    """Standard output and error, written by a thread so that a stalled reader stalls nobody else.

    On a terminal the last line is a status that is redrawn below the output; elsewhere
    :meth:`status` prints nothing (plain progress lines come from the caller).
    """

    def __init__(self) -> None:
        self.is_terminal = sys.stderr.isatty() and os.environ.get("TERM", "dumb") != "dumb"
        self.dropped_bytes = 0
        self._queue: queue.SimpleQueue[tuple[int, bytes] | None] = queue.SimpleQueue()
        self._waiting_bytes = 0
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="terminal", daemon=True)
        self._closed_fds: set[int] = set()
        self._status = b""
        self._at_line_start = True
        self._thread.start()

    def say(self, text: str) -> None:
        """A line of zerokit's own, on standard error."""
        self.write(2, f"{printable(message(text, width_of()))}\n".encode("utf-8", "replace"))

    def status(self, text: str) -> None:
        """Replace the status line (on a terminal only)."""
        if self.is_terminal:
            width = max(20, shutil.get_terminal_size().columns - 1)
            self.write(0, shown(text[:width]).encode("utf-8", "replace"))

    def close(self) -> None:
        """Write what is waiting (at most two seconds), and end the status line."""
        self._queue.put((0, b""))
        self._queue.put(None)
        self._thread.join(2)

    def write(self, fd: int, data: bytes) -> None:
        """Pass bytes on to standard output (1) or error (2)."""
        if not data:
            return
        with self._lock:  # ours and the callers' threads
            if self._waiting_bytes + len(data) > _MOST_WAITING_BYTES:
                self.dropped_bytes += len(data)
                return
            self._waiting_bytes += len(data)
        self._queue.put((fd, data))

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            fd, data = item
            with self._lock:
                self._waiting_bytes -= len(data)
            if fd == 0:
                if self._at_line_start and data != self._status:
                    self._write(2, _ERASE + data)
                self._status = data
                continue
            if self._status and self._at_line_start:
                self._write(2, _ERASE)
            self._write(fd, data)
            self._at_line_start = data.endswith(b"\n")
            if self._status and self._at_line_start:
                self._write(2, self._status)

    def _write(self, fd: int, data: bytes) -> None:
        if fd in self._closed_fds:
            return
        view = memoryview(data)
        while view:
            try:
                view = view[os.write(fd, view) :]
            except BlockingIOError:
                threading.Event().wait(0.05)
            except OSError:  # the reader went away, or the disk behind it is full
                self._closed_fds.add(fd)
                return


_LARGEST_READ = 1 << 18
_DRAIN_SECONDS = 1.0


class PipeReader:
    """Reads what is written into the pipes whenever ``selector`` says that there is something.

    ``show_ranks``: whose output goes on to the terminal: ``first``, ``all`` or ``none``. ``forgive`` hears of
    a rank that may have waited for us, its pipe being full, and of the seconds.
    """

    def __init__(
        self,
        folder: Path,
        selector: selectors.BaseSelector,
        terminal: Terminal,
        secrets: Secrets,
        show_ranks: str,
        forgive: Callable[[int, float], None],
    ) -> None:
        self.show_ranks = show_ranks
        self.forgive = forgive
        self._folder = folder
        self._selector = selector
        self._terminal = terminal
        self._secrets = secrets
        self._logs: dict[str, Log] = {}

    def follow(self, fd: int, rank: int | None, stream: str) -> None:
        """Read ``stream`` (``out`` or ``err``) of a rank, or of the launcher, until its end."""
        name = f"launcher.{stream}" if rank is None else f"rank-{rank:05d}.{stream}"
        log = self._logs[name] = Log(self._folder / f"{name}.log", self._secrets)
        show = self._destination(rank, stream)
        capacity, read_at = fcntl.fcntl(fd, fcntl.F_GETPIPE_SZ), time.monotonic()
        prefix = b"" if rank in (None, 0) or self.show_ranks != "all" else f"[rank {rank}] ".encode()

        def read() -> None:
            nonlocal read_at
            before, read_at = read_at, time.monotonic()
            try:
                data = os.read(fd, _LARGEST_READ)
            except BlockingIOError:
                return
            if not data:
                self._selector.unregister(fd)
                os.close(fd)
                data = b""
            if rank is not None and len(data) > capacity - select.PIPE_BUF:
                self.forgive(rank, read_at - before)
            lines = log.feed(data)
            if show is not None and lines:
                show(b"".join(prefix + line for line in lines.splitlines(keepends=True)) if prefix else lines)

        self._selector.register(fd, selectors.EVENT_READ, read)

    def _destination(self, rank: int | None, stream: str) -> Callable[[bytes], None] | None:
        """Where a stream is passed on to. The launcher's own chatter stays in its log."""
        if rank is None or self.show_ranks == "none" or (self.show_ranks == "first" and rank != 0):
            return None
        return functools.partial(self._terminal.write, 1 if stream == "out" else 2)

    def drain(self, *, but: object) -> None:
        """Read what the dead have written; ``but``: the one file that is no stream."""
        deadline = time.monotonic() + _DRAIN_SECONDS
        while time.monotonic() < deadline:
            readers = [key for key, _ in self._selector.select(0) if key.fileobj is not but]
            if not readers:
                break
            for key in readers:
                key.data()
        for name, log in self._logs.items():
            rest = log.close()
            show = self._destination(int(name[5:10]) if name.startswith("rank-") else None, name[-3:])
            if rest and show is not None:
                show(rest)

    @property
    def tails(self) -> dict[str, str]:
        """The last lines of each stream."""
        return {name: log.tail.decode("utf-8", "replace") for name, log in self._logs.items()}

    @property
    def dropped_bytes(self) -> int:
        """That no log file took."""
        return sum(log.dropped_bytes for log in self._logs.values())
