"""No trace is left: the process runs on a view of the file system that forgets, without a network.

Linux namespaces of the user's own (no privileges): every folder is covered with an overlay whose
upper layer is in memory, so the script reads what is there, writes what it likes, and nothing of it
remains; a network of its own has nobody on it. Only the rehearsal's temporary folder is shared.
Where the kernel refuses (:func:`enter` says why), the process stays offline by its environment, and writes
outside of the temporary folder are refused, with the file's name.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import shutil
import signal
import socket
import struct
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

_CLONE_NEWNS, _CLONE_NEWUSER, _CLONE_NEWNET = 0x00020000, 0x10000000, 0x40000000
_MS_RDONLY, _MS_REMOUNT, _MS_BIND, _MS_REC, _MS_PRIVATE = 1, 32, 4096, 16384, 1 << 18
_PR_SET_PDEATHSIG = 1  # <linux/prctl.h>
_SIOCSIFFLAGS, _IFF_UP, _IFF_RUNNING = 0x8914, 1, 64
_KEPT = ("/proc", "/sys", "/dev")


class NoSandbox(Exception):
    """The kernel refused; the message says which step."""


def _libc() -> Any:
    return ctypes.CDLL(None, use_errno=True)


def _check(result: int, step: str) -> None:
    if result != 0:
        raise NoSandbox(f"{step}: {os.strerror(ctypes.get_errno())}")


def _mount(source: str, target: str, kind: str, flags: int, options: str = "") -> None:
    result = _libc().mount(
        source.encode(), target.encode(), kind.encode(), ctypes.c_ulong(flags), options.encode() or None
    )
    _check(result, f"mount {kind or 'bind'} on {target}")


def end_with_parent() -> None:
    """The kernel kills this process when the one that started it is gone, however it went."""
    with contextlib.suppress(OSError, AttributeError):
        _libc().prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)


def enter(shared: list[Path]) -> None:
    """Move this process, which must have one thread, into the forgetting view.

    Args:
        shared: what is written there remains; the first is the rehearsal's temporary folder.

    Raises:
        NoSandbox: the process is where it was, or in namespaces that change nothing.
    """
    user, group = os.getuid(), os.getgid()
    folder = Path.cwd()
    _check(_libc().unshare(_CLONE_NEWUSER | _CLONE_NEWNS | _CLONE_NEWNET), "unshare")
    for name, text in (
        ("setgroups", "deny"),
        ("uid_map", f"{user} {user} 1"),
        ("gid_map", f"{group} {group} 1"),
    ):
        try:
            Path("/proc/self", name).write_text(text)
        except OSError as error:
            raise NoSandbox(f"/proc/self/{name}: {error.strerror}") from None
    _mount("none", "/", "", _MS_REC | _MS_PRIVATE)
    mounts = _mounts()  # from here on nobody else mounts or unmounts anything in this view
    memory = shared[0] / "memory"
    memory.mkdir()
    _mount("tmpfs", str(memory), "tmpfs", 0)
    handles = [os.open(shared_folder, os.O_RDONLY | os.O_DIRECTORY) for shared_folder in shared]
    folders = _coverable([mount for mount, _ in mounts])
    siblings = Counter(os.path.dirname(shared_folder) for shared_folder in folders)  # noqa: PTH120
    folders.sort(key=lambda shared_folder: _turn(shared_folder, shared[0], folder, siblings))
    for number, shared_folder in enumerate(folders):
        try:
            _cover(shared_folder, memory, number)
        except NoSandbox:
            if os.path.lexists(shared_folder):
                raise
            # a temporary folder of another program, gone since the folders were listed
    for path, handle in zip(shared, handles, strict=True):
        _mount(f"/proc/self/fd/{handle}", str(path), "", _MS_BIND)
        os.close(handle)
    os.chdir(folder)
    _raise_loopback()


def _turn(folder: str, last: Path, working: Path, siblings: Counter[str]) -> tuple[bool, bool, int]:
    """When a folder is covered. What the upper layers lie below comes last: nothing beneath it can be named
    afterwards. The kernel takes some 500 overlays, and a mount point below ``/tmp`` makes one of each entry
    there: they come behind the folders that have few beside them, and what is above becomes read-only."""
    inside = folder.rstrip("/") + "/"
    first = any(f"{path}/".startswith(inside) for path in (working, Path.home()))
    return str(last).startswith(inside), not first, siblings[os.path.dirname(folder)]  # noqa: PTH120


def _mounts() -> list[tuple[str, str]]:
    """All mount points below ``/`` with their kinds."""
    mounts = []
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, mount, kind, *_ = line.split(" ")
        if mount != "/":
            mounts.append((mount.replace("\\040", " "), kind))
    return mounts


def _coverable(mounts: list[str], folder: str = "/") -> list[str]:
    """The largest folders without a mount point below them: the kernel takes no others as a lower layer."""
    folders = []
    for entry in sorted(os.scandir(folder), key=lambda item: item.name):
        path = entry.path
        if path in _KEPT or entry.is_symlink() or not entry.is_dir(follow_symlinks=False):
            continue
        if any(mount.startswith(path + "/") for mount in mounts):
            folders += _coverable(mounts, path)
        else:
            folders.append(path)
    return folders


def _cover(folder: str, memory: Path, number: int) -> None:
    """An overlay over a folder; one that cannot be a lower layer becomes read-only."""
    upper, work = memory / f"upper-{number}", memory / f"work-{number}"
    upper.mkdir()
    work.mkdir()
    with contextlib.suppress(OSError):
        shutil.copystat(folder, upper)  # the upper layer's permissions are what is seen
    options = f"lowerdir={_escaped(folder)},upperdir={upper},workdir={work}"
    for extra in (",userxattr", ""):
        with contextlib.suppress(NoSandbox):
            _mount("overlay", folder, "overlay", 0, options + extra)
            return
    _mount(folder, folder, "", _MS_BIND | _MS_REC)
    _mount("none", folder, "", _MS_REMOUNT | _MS_BIND | _MS_RDONLY)


def _escaped(path: str) -> str:
    return path.replace("\\", "\\\\").replace(":", "\\:").replace(",", "\\,")


def _raise_loopback() -> None:
    """Programs that talk to themselves over 127.0.0.1 go on to."""
    import fcntl

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as handle:
        request = struct.pack("16sH14x", b"lo", _IFF_UP | _IFF_RUNNING)
        try:
            fcntl.ioctl(handle, _SIOCSIFFLAGS, request)
        except OSError:  # nobody needs it as a rule
            return


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
