"""Locks that end with their holder, on a run folder and on a port; and those of builds that nobody holds.

A lock is a file that its holder keeps open under ``flock``. The kernel drops it with the last process that
has it open, so a dead holder's lock needs no cleaning up.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shlex
import socket
import stat
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zerokit.errors import InputError, ReportNotWritten
from zerokit.files import cache_folder, home_folder
from zerokit.launcher.secrets import Secrets
from zerokit.notes import warning

RUN_LOCK = ".zerokit-lock"
_SIGN_SECONDS = 5.0  # from taking a lock to signing it, on a busy machine
_NO_FLOCK = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)


class NoLocks(Exception):
    """The file system has no ``flock`` (Lustre mounted without it)."""


@dataclass(slots=True)
class FileLock:
    """A lock that this process holds. ``fd`` may be passed on: a child then holds it too. ``path`` and ``fd``
    are None for one that locks nothing, where there can be no locks."""

    path: Path | None
    fd: int | None

    def release(self) -> None:
        """Release the lock, and leave no file behind."""
        if self.fd is None or self.path is None:
            return
        with suppress(OSError):
            if _is_at(self.path, self.fd):
                self.path.unlink()
        os.close(self.fd)
        self.fd = None


def acquire(path: Path) -> FileLock | None:
    """The lock of a file, made if it is missing; None where somebody holds it. Links are not followed. Raises
    NoLocks: the file system has none. OSError: the file cannot be opened."""
    while True:
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        fd = os.open(path, flags, 0o600)
        try:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise OSError(errno.EINVAL, "is not a regular file", str(path))
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            return None
        except OSError as error:
            os.close(fd)
            if error.errno in _NO_FLOCK and error.filename is None:
                raise NoLocks(str(path)) from None
            raise
        if _is_at(path, fd):
            return FileLock(path, fd)
        os.close(fd)  # its holder removed it between our opening and locking it


def _is_at(path: Path, fd: int) -> bool:
    with suppress(OSError):
        return os.path.samestat(os.fstat(fd), path.lstat())
    return False


def private_folder(name: str, environment: Mapping[str, str] | None = None) -> Path | None:
    """A folder for this user and machine alone, made if it is missing; None where there can be none.

    In the user's runtime folder, else the cache folder, else below the temporary one. Never one that
    somebody else owns or may write into, and never through a link.
    """
    environment = os.environ if environment is None else environment
    host = socket.gethostname()
    bases = [Path(base) / "zerokit" for base in (environment.get("XDG_RUNTIME_DIR"),) if base]
    bases.append(cache_folder(environment))
    bases.append(Path(tempfile.gettempdir()) / f"zerokit-{os.getuid()}")
    for base in bases:
        folder = base / f"{name}-{host}"
        if base.is_absolute() and _is_private(base) and _is_private(folder):
            return folder
    return None


def _is_private(folder: Path) -> bool:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.lstat()
    except OSError:
        return False
    is_own_folder = stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()
    return is_own_folder and not status.st_mode & 0o022 and os.access(folder, os.W_OK)


def lock_run_folder(folder: Path, option: str) -> FileLock:
    """The lock of a run folder, for the life of the launch; ``option`` is the folder as the user wrote it.
    Raises InputError: another launch has it; names its process. Raises ReportNotWritten: nothing can be
    written there."""
    path = folder / RUN_LOCK
    try:
        lock = acquire(path)
    except NoLocks:
        with suppress(OSError):
            path.unlink()
        path = _elsewhere(folder)
        lock = acquire(path)
    except OSError as error:
        problem = f"{path}: cannot be written: {error.strerror}"
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS):
            raise ReportNotWritten(
                f"{problem}; free some space or name another folder with ⟨run_dir⟩"
            ) from None
        raise InputError(f"⟨run_dir⟩ {option}: {problem}; name another folder") from None
    if lock is None:
        raise InputError(f"⟨run_dir⟩ {option}: {_holder(path)}")
    if lock.fd is not None:
        # say who holds the lock, for the message of those who do not get it
        command = " ".join(Secrets(os.environ, sys.argv).argv(sys.argv))[:200]
        text = json.dumps(
            {"pid": os.getpid(), "host": socket.gethostname(), "began": time.time(), "command": command}
        )
        with suppress(OSError):  # a full disk: then it is a lock without a name
            os.ftruncate(lock.fd, 0)
            os.pwrite(lock.fd, text.encode(), 0)
    return lock


def is_launch_alive(folder: Path) -> bool:
    """Whether a launch holds the run folder; takes no lock, which another launch might want just then."""
    path = folder / RUN_LOCK
    with suppress(InputError):
        path = path if path.exists() else _elsewhere(folder)
    signed = _signature(path)
    pid, host = signed.get("pid"), signed.get("host")
    if isinstance(pid, int):
        return host != socket.gethostname() or Path(f"/proc/{pid}").exists()
    try:
        return time.time() - path.stat().st_mtime < _SIGN_SECONDS
    except OSError:
        return False


def _elsewhere(folder: Path) -> Path:
    """The lock of a folder whose file system has none: a file of this machine, named by the folder."""
    private = private_folder("runs")
    if private is None:
        raise InputError(
            f"⟨run_dir⟩ {folder}: its file system has no locks, and neither the runtime, the cache nor the "
            "temporary folder can hold one; name a folder elsewhere"
        )
    status = folder.stat()
    return private / f"{status.st_dev:x}-{status.st_ino:x}.lock"


def _holder(path: Path) -> str:
    signed = _signature(path)
    until = time.monotonic() + _SIGN_SECONDS
    while not signed and time.monotonic() < until:  # it has the lock, and comes to sign next
        time.sleep(0.05)
        signed = _signature(path)
    pid, host = signed.get("pid"), signed.get("host")
    if not isinstance(pid, int):
        return "another launch is running in it; wait for its end, or name another folder"
    is_local = host == socket.gethostname()
    holder = f"pid {pid}" + ("" if is_local else f" on {ascii(host)[1:-1]:.64}")
    if is_local and not Path(f"/proc/{pid}").exists():
        return (
            f"the launch of {holder} was killed, and its processes are being ended; try again in some seconds"
        )
    command = ascii(str(signed.get("command", "")))[1:-1]
    return f"{holder} ({command:.120}) is running in it; wait for its end, or name another folder"


def _signature(path: Path) -> dict[str, Any]:
    with suppress(OSError, ValueError):
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            read = json.loads(os.read(fd, 4096))
        finally:
            os.close(fd)
        return read if isinstance(read, dict) else {}
    return {}


_NEW_SECONDS = 2.0  # between the making of a lock and our look at who holds it


@dataclass(frozen=True, slots=True, kw_only=True)
class StaleLock:
    """A lock that no process of this machine holds."""

    path: Path
    age_seconds: float

    @property
    def command(self) -> str:
        """What removes it."""
        return f"rm {shlex.quote(str(self.path))}"

    @property
    def description(self) -> str:
        """The finding, in a sentence."""
        age = (
            f"{self.age_seconds / 60:.0f} min"
            if self.age_seconds < 7200
            else f"{self.age_seconds / 3600:.0f} h"
        )
        return (
            f"{self.path} ({age} old) is the lock of a build that ended without removing it: a run that "
            f"uses operator {self.path.parent.name} waits for it forever"
        )


def extension_folders(environment: Mapping[str, str], home: Path) -> list[Path]:
    """Where torch keeps extensions that it compiles (``cpp_extension._get_build_directory``)."""
    if folder := environment.get("TORCH_EXTENSIONS_DIR"):
        return [Path(folder)]
    base = Path(environment.get("XDG_CACHE_HOME") or home / ".cache") / "torch_extensions"
    with suppress(OSError):
        return sorted(path for path in base.iterdir() if path.is_dir())  # one for each Python and CUDA
    return []


def stale_locks(environment: Mapping[str, str], home: Path) -> list[StaleLock]:
    """Locks below the extension folders that no process holds. Linux only: elsewhere none is known."""
    locks: dict[Path, os.stat_result] = {}
    for folder in extension_folders(environment, home):
        with suppress(OSError):
            for path in folder.glob("*/lock"):
                with suppress(OSError):
                    locks[path] = path.stat()
    if not locks or not Path("/proc/self/fd").is_dir():
        return []
    open_files = _open_files({(status.st_dev, status.st_ino) for status in locks.values()})
    stale = []
    for path, status in sorted(locks.items()):
        age = time.time() - status.st_mtime
        if (status.st_dev, status.st_ino) not in open_files and age > _NEW_SECONDS:
            stale.append(StaleLock(path=path, age_seconds=age))
    return stale


def stale_lock_warnings() -> list[str]:
    """A line for each that was left by a build of operators that died, and the command that removes it."""
    found = stale_locks(os.environ, home_folder())
    return [warning("stale-lock", f"{lock.description}; remove it: {lock.command}") for lock in found]


def _open_files(files: set[tuple[int, int]]) -> set[tuple[int, int]]:
    """Which of these files (device, inode) a process has open, among those that may be looked into."""
    open_files: set[tuple[int, int]] = set()
    for process in os.listdir("/proc"):  # noqa: PTH208 - thousands of entries
        if not process.isdigit():
            continue
        with suppress(OSError):
            for descriptor in os.listdir(f"/proc/{process}/fd"):  # noqa: PTH208
                with suppress(OSError):
                    status = os.stat(f"/proc/{process}/fd/{descriptor}")  # noqa: PTH116
                    open_files |= {(status.st_dev, status.st_ino)} & files
    return open_files
