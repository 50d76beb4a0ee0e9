"""Disks, mounts, processes and locks, as benchmarks.random_faults makes and looks at them."""

from __future__ import annotations

import ctypes
import fcntl
import subprocess
from pathlib import Path

CLONE_NEWNS, MS_REC_PRIVATE = 0x20000, 0x4000 | 0x40000


def take_own_mounts() -> bool:
    """A mount namespace with a ``/dev/shm`` of its own, without other programs' files; False: not allowed."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWNS) or libc.mount(None, b"/", None, MS_REC_PRIVATE, None):
        return False
    mount("tmpfs", Path("/dev/shm"), "size=256m")
    return True


def mount(what: str, where: Path, options: str) -> None:
    """Mount a file system in memory."""
    subprocess.run(["mount", "-t", what, "-o", options, what, str(where)], check=True)


def fill(folder: Path) -> None:
    """Until nothing more can be written there."""
    try:
        with (folder / "filler").open("wb", buffering=0) as file:
            while True:
                file.write(b"x" * 1024)
    except OSError:
        return


def command_of(pid: int) -> str:
    """A process's command line; empty where it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def command_has(pid: int, text: str) -> bool:
    """Whether its command line holds the text."""
    return text in command_of(pid)


def is_rank(pid: int, rank: int) -> bool:
    """Whether it is the rank itself: a child of one has its environment too."""
    try:
        parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        own, above = (Path(f"/proc/{item}/environ").read_bytes().split(b"\0") for item in (pid, parent))
    except OSError:
        return False
    return f"RANK={rank}".encode() in own and not any(entry.startswith(b"RANK=") for entry in above)


def is_locked(path: Path) -> bool:
    """Whether somebody holds the file's lock."""
    try:
        with path.open() as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False
