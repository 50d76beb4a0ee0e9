"""What the ranks and the launcher print: into log files, and (rank 0, the launcher's errors) on.

A log file that cannot be written (disk full) or a terminal that does not keep up never
stops the training: what cannot be written is dropped and counted.
"""

from __future__ import annotations

import os
import queue
import shutil
import sys
import threading
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

    def out(self, data: bytes) -> None:
        """Pass bytes on to standard output."""
        self._write_all(1, data)

    def error(self, data: bytes) -> None:
        """Pass bytes on to standard error."""
        self._write_all(2, data)

    def say(self, text: str) -> None:
        """A line of zerokit's own, on standard error."""
        self._write_all(2, f"{printable(message(text, width_of()))}\n".encode("utf-8", "replace"))

    def status(self, text: str) -> None:
        """Replace the status line (on a terminal only)."""
        if self.is_terminal:
            width = max(20, shutil.get_terminal_size().columns - 1)
            self._write_all(0, shown(text[:width]).encode("utf-8", "replace"))

    def close(self) -> None:
        """Write what is waiting (at most two seconds), and end the status line."""
        self._queue.put((0, b""))
        self._queue.put(None)
        self._thread.join(2)

    def _write_all(self, fd: int, data: bytes) -> None:
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
