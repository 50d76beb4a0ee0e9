"""What the processes below a rank do: a compiler at work is the rank's work, though its Python waits."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from typing import NamedTuple

from zerokit.launcher import processes

LOOK_SECONDS = 2.0
"""Between two looks, as each reads some files of ``/proc``."""
BUSY_CORE_SHARE = 0.1
"""Above what a monitor (psutil, wandb) takes, far below a compiler."""
MOVED_BYTES = 1 << 20
"""Read and written between two looks: a download, a conversion."""
_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


class _Look(NamedTuple):
    at: float
    cpu_ticks: int
    moved_bytes: int
    pids: frozenset[int]


class ChildWatch:
    """Whether this process's descendants make progress; cheap while nobody asks."""

    def __init__(self) -> None:
        self._before: _Look | None = None
        self._working = False

    def working(self, waiting: bool) -> bool:
        """Whether descendants used CPU or moved data since the last look.

        CPU time of children that ended stays in their parents' account (``cutime``, proc(5)), so a build of
        many short compilers counts as a whole. ``waiting``: the training thread waits for a child, and so a
        new descendant counts too (one whose work is done by a server, as sccache does).
        """
        now = time.monotonic()
        before = self._before
        if before is not None and now - before.at < LOOK_SECONDS:
            return self._working
        look = self._before = _look(now)
        self._working = False
        if before is not None and now - before.at < 5 * LOOK_SECONDS:
            seconds = (look.cpu_ticks - before.cpu_ticks) / _TICKS_PER_SECOND
            busy = seconds / (now - before.at) >= BUSY_CORE_SHARE
            has_moved = look.moved_bytes - before.moved_bytes >= MOVED_BYTES
            self._working = busy or has_moved or (waiting and not look.pids <= before.pids)
        return self._working


def _look(now: float) -> _Look:
    # our own account holds the children that we waited for
    times = os.times()
    ticks = int((times.children_user + times.children_system) * _TICKS_PER_SECOND)
    moved_bytes, pids = 0, set()
    for pid in _descendants(os.getpid()):
        spent = _ticks_with_children(pid)
        if spent is None:
            continue
        ticks += spent
        moved_bytes += _moved_bytes(pid)
        pids.add(pid)
    return _Look(now, ticks, moved_bytes, frozenset(pids))


def _descendants(root: int) -> list[int]:
    """From the kernel's own lists of children where it keeps them, else from the whole process table."""
    pids: list[int] = []
    queue = [root]
    while queue:
        children = _children(queue.pop())
        if children is None:
            return [process.pid for process in processes.descendants(root)]
        pids += children
        queue += children
    return pids


def _children(pid: int) -> list[int] | None:
    """None where the kernel was built without these lists (CONFIG_PROC_CHILDREN)."""
    pids: list[int] = []
    try:
        threads = os.listdir(f"/proc/{pid}/task")  # noqa: PTH208 - the ticker's: no Path objects
    except OSError:
        return pids
    for thread in threads:
        name = f"/proc/{pid}/task/{thread}/children"
        try:
            with open(name, "rb") as file:  # noqa: PTH123
                pids += map(int, file.read().split())
        except FileNotFoundError:
            if os.path.isdir(f"/proc/{pid}/task/{thread}"):  # noqa: PTH112
                return None
        except OSError:
            continue
    return pids


def _ticks_with_children(pid: int) -> int | None:
    with suppress(OSError, ValueError, IndexError):
        with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123
            text = file.read()
        return sum(map(int, text[text.rfind(b")") + 2 :].split()[11:15]))
    return None


def _moved_bytes(pid: int) -> int:
    with suppress(OSError, ValueError, IndexError):
        with open(f"/proc/{pid}/io", "rb") as file:  # noqa: PTH123
            fields = file.read().split()
        return int(fields[1]) + int(fields[3])
    return 0
