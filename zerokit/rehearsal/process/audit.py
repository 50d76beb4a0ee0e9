"""Without namespaces: what Python writes outside of the temporary folder is refused, with the file's name.

Native code, which opens files without Python, is not seen; those who rehearse accept that
(``--unconfined``).
"""

from __future__ import annotations

import errno
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any


def refuse_writes(shared: list[Path]) -> None:
    """Without namespaces: what Python writes, makes, moves and removes elsewhere is refused, and starting
    other programs, which would write what they like. Libraries that write without Python are asked first
    (:func:`about_to_write`)."""
    allowed = tuple(os.path.realpath(root) for root in (*map(str, shared), "/dev", "/proc"))

    def refuse(path: Any, action: str) -> None:
        if not isinstance(path, str | bytes | os.PathLike) or path == ":memory:":
            return
        text: str = os.path.realpath(os.fsdecode(os.fspath(path)))
        if not any(text == root or text.startswith(root + os.sep) for root in allowed):
            raise PermissionError(
                errno.EACCES, f"a rehearsal leaves no trace: {action} outside of {shared[0]}", text
            )

    sys.addaudithook(_hook(refuse))
    tempfile.tempdir = str(shared[0])


def about_to_write(path: Any) -> None:
    """Ask for a library that opens files without Python (safetensors).

    Raises:
        PermissionError: refused, as for Python's own.
    """
    sys.audit("open", os.fspath(path), "w", os.O_WRONLY | os.O_CREAT)


_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_PATH_EVENTS = {
    "os.remove": 1,
    "os.rmdir": 1,
    "os.mkdir": 1,
    "os.rename": 2,
    "os.link": 2,
    "os.symlink": 2,
    "os.truncate": 1,
    "os.chmod": 1,
    "os.chown": 1,
    "os.utime": 1,
    "sqlite3.connect": 1,
    "shutil.rmtree": 1,
    "shutil.move": 2,
}


_STARTING = ("subprocess.Popen", "os.system", "os.posix_spawn", "os.exec")


def _hook(refuse: Callable[[Any, str], None]) -> Callable[[str, tuple[Any, ...]], None]:
    def audit(event: str, args: tuple[Any, ...]) -> None:
        if event == "open":
            path, _, flags = args
            if isinstance(flags, int) and flags & _WRITING:
                refuse(path, "writing")
        elif event in _PATH_EVENTS:
            for path in args[: _PATH_EVENTS[event]]:
                refuse(path, event.partition(".")[2])
        elif event in _STARTING:  # audit hooks end where another program begins
            raise PermissionError(
                errno.EACCES,
                f"a rehearsal leaves no trace: starting {args[0]!r} is refused without namespaces",
            )
        elif event == "socket.connect" and isinstance(args[1], tuple):
            host = str(args[1][0])
            if not host.startswith(("127.", "::1", "localhost")):
                raise PermissionError(errno.EACCES, f"a rehearsal is offline: connecting to {host}")

    return audit
