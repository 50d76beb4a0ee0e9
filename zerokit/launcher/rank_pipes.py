"""Keep the output of each rank apart: pipes with a name, one pair a rank.

The launcher gives every rank its own standard streams, so their lines would mix. zerokit
makes ``rank-00000.out`` and ``.err`` as FIFOs in a private folder (``ZEROKIT_STDIO_DIR``),
and each rank on this machine puts its streams there before anything else.
Standard library only: it runs first in every rank.
"""

from __future__ import annotations

import os
import stat
import sys
from contextlib import suppress
from pathlib import Path

VARIABLE = "ZEROKIT_STDIO_DIR"


def pipe(folder: Path, rank: int, stream: str) -> Path:
    """The pipe that takes a rank's ``out`` or ``err``."""
    return folder / f"rank-{rank:05d}.{stream}"


def make(folder: Path, ranks: int) -> dict[tuple[int, str], int]:
    """Make the FIFOs of all ranks; returns the reading end by ``(rank, "out"|"err")``.

    The reading end is opened for writing too, so that it never reaches end of file while a
    rank has not opened it yet, or has closed it.
    """
    readers = {}
    for rank in range(ranks):
        for stream in ("out", "err"):
            path = pipe(folder, rank, stream)
            os.mkfifo(path, 0o600)
            readers[rank, stream] = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    return readers


def attach(rank: int) -> bool:
    """Point this process's standard streams at its own pipes; False where there are none."""
    folder = os.environ.get(VARIABLE)
    if not folder:
        return False
    with suppress(OSError):
        opened = []
        for target, stream in ((1, "out"), (2, "err")):
            path = pipe(Path(folder), rank, stream)
            if not stat.S_ISFIFO(path.stat().st_mode):
                return False
            # Not blocking on opening: without a reader (zerokit gone) that would wait for ever.
            fd = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
            os.set_blocking(fd, True)
            opened.append((fd, target))
        for file in (sys.stdout, sys.stderr):
            if file is not None:
                file.flush()
        for fd, target in opened:
            os.dup2(fd, target)
            os.close(fd)
        return True
    return False
