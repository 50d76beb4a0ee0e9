"""A rank's file whose path is gone before it was first read: the rank still holds it open."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from zerokit.launcher.rank_file import RankTail


def follow(tail: RankTail, pid: int) -> None:
    """Where the path is gone, read on from the descriptor of process ``pid`` (Linux's ``/proc``)."""
    if os.path.lexists(tail.path):
        return
    removed = f"{tail.path.resolve()} (deleted)"
    with suppress(OSError):  # the process has ended, or is another user's
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            if _target(descriptor) == removed:
                tail.adopt(os.open(descriptor, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC))
                return


def _target(descriptor: Path) -> str:
    with suppress(OSError):  # closed meanwhile
        return str(descriptor.readlink())
    return ""
