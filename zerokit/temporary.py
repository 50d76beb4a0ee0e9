"""Temporary folders that go with their process; those of killed processes go at the next start.

A process keeps its folders under ``flock``, so who gets the lock of a folder knows that its process is dead,
in whatever container it ran. Standard library only.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import fcntl
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from zerokit.errors import InputError, ReportNotWritten

_NAME = re.compile(r"zerokit-[a-z]+-[0-9a-f]{16}")
_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
_ours: dict[Path, int | None] = {}  # folder -> descriptor of its lock
_pid = os.getpid()


def make_folder(kind: str) -> Path:
    """A folder for this user alone that goes at the end of this process; ``kind`` is in its name. Raises
    InputError: there is no temporary folder that can be written. Raises ReportNotWritten: its disk is full or
    read-only."""
    _adopt()
    try:
        base = Path(tempfile.gettempdir())
        _remove_stale(base)
        while True:
            folder = base / f"zerokit-{kind}-{os.urandom(8).hex()}"
            _ours[folder] = None  # before it is there: a signal may end us in between
            folder.mkdir(mode=0o700)
            try:
                _ours[folder] = lock = _lock(folder)
                if lock is None or _is_at(folder, lock):
                    return folder
            except (BlockingIOError, FileNotFoundError):
                pass
            _forget(folder)  # another process took it for a dead one's before it was locked
    except OSError as error:
        problem = f"no temporary folder can be made: {error.strerror or error}"
        if error.errno in _NO_ROOM:
            raise ReportNotWritten(f"{problem}; free some space or set TMPDIR") from None
        raise InputError(f"{problem}; set TMPDIR to a folder that can be written") from None


def remove_folder(folder: Path) -> None:
    """Remove a folder of :func:`make_folder` before this process ends."""
    shutil.rmtree(folder, ignore_errors=True)
    _forget(folder)


def is_temporary(folder: Path) -> bool:
    """Whether a folder goes at the end of this process."""
    _adopt()
    return folder in _ours


@contextlib.contextmanager
def temporary_folder(kind: str) -> Iterator[Path]:
    """A folder for the length of a block. Raises InputError, ReportNotWritten: as :func:`make_folder`."""
    folder = make_folder(kind)
    try:
        yield folder
    finally:
        remove_folder(folder)


def _adopt() -> None:
    """A forked child leaves its parent's folders alone."""
    global _pid
    if _pid != os.getpid():
        _ours.clear()
        _pid = os.getpid()


def _forget(folder: Path) -> None:
    lock = _ours.pop(folder, None)
    if lock is not None:
        os.close(lock)


def _remove_all() -> None:
    _adopt()
    for folder in list(_ours):
        remove_folder(folder)


atexit.register(_remove_all)


def _lock(folder: Path) -> int | None:
    """A descriptor that holds the folder's lock; None where there can be none. Raises BlockingIOError:
    another process holds it. FileNotFoundError: there is no such folder."""
    try:
        fd = os.open(folder, _FLAGS)
    except FileNotFoundError:
        raise
    except OSError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        raise
    except OSError:
        os.close(fd)
        return None
    return fd


def _is_at(folder: Path, fd: int) -> bool:
    try:
        status = folder.lstat()
    except OSError:
        return False
    return os.path.samestat(status, os.fstat(fd))


def _remove_stale(base: Path) -> None:
    """Remove the folders of dead processes of this user."""
    for entry in os.scandir(base):
        folder = Path(entry.path)
        if not _NAME.fullmatch(entry.name) or folder in _ours:
            continue
        try:
            lock = _lock(folder)
        except (BlockingIOError, FileNotFoundError):
            continue
        if lock is None:
            continue
        if os.fstat(lock).st_uid == os.geteuid():
            shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)
