"""Resident memory of this process, read from /proc without touching its counters."""

from __future__ import annotations

import contextlib
import os
import resource
import sys

_STATUS = "/proc/self/status"
_IO = "/proc/self/io"  # rchar: N, wchar: N, …


class HostMemory:
    """Reads resident memory now and its high-water mark.

    The kernel's own high-water mark (``VmHWM``) is exact for the whole run and is never reset, so
    that a script reading ``ru_maxrss`` sees what it would see without us. Peaks of single phases come
    from samples, and from the mark whenever it rose.
    """

    def __init__(self) -> None:
        self._descriptor: int | None = None

    def read(self) -> tuple[int, int]:
        """Resident bytes now, and their high-water mark since the process began."""
        try:
            if self._descriptor is None:
                self._descriptor = os.open(_STATUS, os.O_RDONLY | os.O_CLOEXEC)
            text = os.pread(self._descriptor, 8192, 0)
            return _kib(text, b"VmRSS:"), _kib(text, b"VmHWM:")
        except (OSError, ValueError):
            self._descriptor = None  # the script may close every descriptor (a daemon does)
            return _portable()

    def moved_bytes(self) -> int:
        """Bytes that this process has read and written by system calls so far; 0 where nobody counts."""
        try:
            with open(_IO, "rb") as file:  # noqa: PTH123 - the ticker's: no Path objects
                fields = file.read().split()
            return int(fields[1]) + int(fields[3])
        except (OSError, ValueError, IndexError):
            return 0

    def close(self) -> None:
        """Give the descriptor back."""
        if self._descriptor is not None:
            with contextlib.suppress(OSError):
                os.close(self._descriptor)
            self._descriptor = None


def _kib(text: bytes, key: bytes) -> int:
    start = text.index(key) + len(key)
    return int(text[start : text.index(b"kB", start)]) * 1024


def _portable() -> tuple[int, int]:
    """Where /proc is missing only the high-water mark is known."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return peak, peak
