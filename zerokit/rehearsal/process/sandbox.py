"""No trace is left: the script runs in namespaces of its own, on a view of the file system that forgets.

A new root is put together in memory and the old one taken away: every folder is an overlay whose upper layer
is in memory, so the script reads what is there, writes what it likes, and nothing of it remains. The kernel
takes no folder with a mount below it as a lower layer, so such a folder is made anew, its files are copied,
and each mount is covered by itself. ``/dev`` is private, ``/proc`` and ``/sys`` are read-only. Processes,
shared memory, semaphores, host name and network are those of namespaces that end with the script. Only the
rehearsal's temporary folder is shared. No privileges are needed, and none are left inside.

Where the kernel refuses (:func:`enter` says why), the audit below is what remains.
"""

# paths are text here, as a name is looked up below any of three roots
# ruff: noqa: PTH101, PTH102, PTH103, PTH110, PTH112, PTH115, PTH116, PTH208, PTH211
from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import platform
import re
import shutil
import signal
import socket
import stat
import struct
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

_USER, _MOUNTS, _NETWORK, _IPC, _UTS, _PIDS = 1 << 28, 1 << 17, 1 << 30, 1 << 27, 1 << 26, 1 << 29
_MS_RDONLY, _MS_NODEV, _MS_REMOUNT, _MS_BIND, _MS_REC, _MS_PRIVATE = 1, 4, 32, 4096, 16384, 1 << 18
_MNT_DETACH = 2
_FLAGS = {"nosuid": 2, "nodev": 4, "noexec": 8}
# <linux/prctl.h>
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS = 1, 4, 24, 38
_PR_SET_SECUREBITS, _NO_ROOT = 28, 1  # <linux/securebits.h>
_CAPABILITIES, _CAPABILITY_VERSION = 64, 0x20080522
_OF_ROOT = (0, 1, 3, 4, 5, 6, 7, 10)
"""What root keeps, over files of the view and processes inside: chown, dac_override, fowner, fsetid, kill,
setgid, setuid, net_bind_service (``<linux/capability.h>``)."""
_KEYCTL = {"x86_64": 250, "aarch64": 219}
_JOIN_SESSION_KEYRING = 1
_SIOCSIFFLAGS, _IFF_UP, _IFF_RUNNING = 0x8914, 1, 64
_UNSHARED = b"\0"
_MEMORY = "memory"
_OWN = ("/proc", "/sys", "/dev")
_DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
_COPIED_BYTES, _LEAST_BYTES = 64 << 20, 4096
"""Of files beside mounts, each of which counts as a page at least; the rest of them is read-only."""


class NoSandbox(Exception):
    """The kernel refused; the message says which step."""


def _libc() -> Any:
    return ctypes.CDLL(None, use_errno=True)


def _check(result: int, step: str) -> None:
    if result != 0:
        raise NoSandbox(f"{step}: {os.strerror(ctypes.get_errno())}")


def _mount(source: str, target: str, kind: str, flags: int, options: str = "") -> None:
    result = _libc().mount(
        os.fsencode(source), os.fsencode(target), kind.encode(), ctypes.c_ulong(flags),
        os.fsencode(options) or None,
    )  # fmt: skip
    _check(result, f"mount {kind or 'bind'} on {target}")


def end_with_parent() -> None:
    """The kernel kills this process when the one that started it is gone, however it went."""
    with contextlib.suppress(OSError, AttributeError):
        _libc().prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)


class Nest:
    """A process in namespaces of its own that keeps its privileges there, and forks others into theirs.

    It runs on a forgetting view itself, and what it forks starts from the file system as it was: nothing that
    one of them writes is seen by another.

    Args:
        untouched: the mount namespace with the file system as it was, opened.
        folder: the current one, where forks begin.
    """

    def __init__(self, untouched: int, folder: Path) -> None:
        self._untouched, self.folder = untouched, folder

    def fork(self, shared: list[Path], at: Path | None = None) -> int:
        """0 in a process of its own, on a forgetting view and without privileges; here the number of one that
        ends as it did, once all that it started has ended, and ends them on SIGTERM.

        Args:
            shared: what is written there remains; the first is the rehearsal's temporary folder.
            at: the nest's temporary folder, in whose place the first one is seen, with what is in both.
        """
        keeper = os.fork()
        if keeper:
            return keeper
        try:
            end_with_parent()
            _act()
            _check(_libc().setns(self._untouched, _MOUNTS), "setns")
            os.close(self._untouched)
            _check(_libc().unshare(_MOUNTS | _NETWORK | _IPC | _UTS | _PIDS), "unshare")
            _second_of_namespace(lambda: self._view(shared, at), self.folder)
        except BaseException:  # this process must not go on as the one that it was forked from
            traceback.print_exc()
            os._exit(1)
        return 0

    def _view(self, shared: list[Path], at: Path | None) -> None:
        if at is not None:
            shutil.copytree(at, shared[0], symlinks=True, ignore=lambda *_: [_MEMORY], dirs_exist_ok=True)
        _View(shared, at).become_root()

    @staticmethod
    def written() -> tuple[int, int]:
        """Changes where this process or one that it starts writes to its view, but for the shared folders."""
        memory = os.statvfs("/")
        return memory.f_ffree, memory.f_bfree


def enter(shared: list[Path]) -> Nest | int:
    """Go on in a forgetting view: a :class:`Nest` is returned in a process of its own there. To this process,
    which must have one thread, that one's exit code is returned, once all that it started has ended; SIGTERM
    ends them.

    Args:
        shared: what is written there remains; the first is a temporary folder.

    Raises:
        NoSandbox: nothing was started, and this process is as it was.
    """
    ours, theirs = socket.socketpair()
    child = os.fork()
    if child == 0:
        ours.close()
        try:
            return _enter(shared, theirs)
        except (NoSandbox, OSError) as error:
            theirs.sendall(str(error).encode(errors="replace"))
            os._exit(1)
    theirs.close()
    signal.signal(signal.SIGTERM, lambda *_: os.kill(child, signal.SIGTERM))
    said = ours.recv(1)
    if said == _UNSHARED:  # only from outside can root map others than itself
        number = _map_users(child)
        if not number:
            ours.sendall(_UNSHARED)
        said = os.strerror(number).encode() if number else b""
        ours.shutdown(socket.SHUT_WR)
    while part := ours.recv(4096):
        said += part
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if said:
        raise NoSandbox(said.decode())
    return code


def _enter(shared: list[Path], outside: socket.socket) -> Nest:
    """Returns in the second process of a PID namespace."""
    end_with_parent()
    folder = Path.cwd()
    _libc().prctl(_PR_SET_DUMPABLE, 1, 0, 0, 0)  # or only root may map its users
    _check(_libc().unshare(_USER | _MOUNTS | _NETWORK | _IPC | _UTS | _PIDS), "unshare")
    outside.sendall(_UNSHARED)
    if not outside.recv(1):
        os._exit(1)  # its users could not be mapped
    untouched: list[int] = []

    def view() -> None:
        _mount("none", "/", "", _MS_REC | _MS_PRIVATE)  # nobody else mounts or unmounts anything from here on
        untouched.append(os.open("/proc/self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC))
        _check(_libc().unshare(_MOUNTS), "unshare")
        _View(shared).become_root()

    _second_of_namespace(view, folder, outside)
    return Nest(untouched[0], folder)


def _second_of_namespace(
    view: Callable[[], None], folder: Path, outside: socket.socket | None = None
) -> None:
    """Returns in the second process of a new PID namespace, where ``view`` was made; without ``outside`` it
    has given its privileges up, else it uses them no more until it is told to."""
    first = os.fork()
    if first:
        if outside is not None:
            outside.close()
        signal.signal(signal.SIGTERM, lambda *_: os.kill(first, signal.SIGKILL))
        os._exit(_code(os.waitpid(first, 0)[1]))
    end_with_parent()  # and with this one, the first, ends what it started
    view()
    os.chdir(folder)
    _raise_loopback()
    if outside is None:
        _drop_privileges()
    else:
        _rest()
    second = os.fork()
    if outside is not None:
        outside.close()
    if second:
        _reap_until(second)
    os.setsid()  # kill(0, …) reaches a process group, whatever namespace its members are in


def _map_users(pid: int) -> int:
    """The number of the kernel's error; 0: the users of this namespace are those of that process's."""
    folder = Path("/proc", str(pid))
    try:
        if os.getuid() == 0:
            with contextlib.suppress(OSError):  # not without the capability
                for name in ("gid_map", "uid_map"):
                    ranges = [line.split() for line in Path("/proc/self", name).read_text().splitlines()]
                    text = "".join(f"{first} {first} {count}\n" for first, _, count in ranges)
                    (folder / name).write_text(text)
                return 0
        (folder / "setgroups").write_text("deny")
        for name, number in (("uid_map", os.getuid()), ("gid_map", os.getgid())):
            (folder / name).write_text(f"{number} {number} 1")
    except OSError as error:
        return error.errno or errno.EPERM
    return 0


def _reap_until(script: int) -> NoReturn:
    """What the first process does: orphans are its children; the end of the script is its own."""
    while True:
        pid, status = os.wait()
        if pid == script:
            os._exit(_code(status))


def _code(status: int) -> int:
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def _rest() -> None:
    """Keep the namespace's privileges, for :func:`_act`, and use none of them: what libraries do when they
    are imported, and programs that they start, are as they will be in a script."""
    _libc().prctl(_PR_SET_SECUREBITS, _NO_ROOT, 0, 0, 0)
    _use_privileges(sum(1 << capability for capability in _kept()))


def _act() -> None:
    """Use them again."""
    _use_privileges(-1)
    _libc().prctl(_PR_SET_SECUREBITS, 0, 0, 0, 0)


def _use_privileges(bits: int) -> None:
    """Use these, of those that this process may use."""
    header = struct.pack("Ii", _CAPABILITY_VERSION, 0)
    data = ctypes.create_string_buffer(24)
    _check(_libc().capget(header, data), "capget")
    _, low, _, _, high, _ = struct.unpack("6I", data.raw)
    allowed = struct.pack("6I", low & bits, low, 0, high & (bits >> 32), high, 0)
    _check(_libc().capset(header, allowed), "capset")
    _libc().prctl(_PR_SET_DUMPABLE, 1, 0, 0, 0)  # its files in /proc are its own, as before


def _kept() -> tuple[int, ...]:
    return _OF_ROOT if os.getuid() == 0 else ()


def _drop_privileges() -> None:
    """None of the namespace's, for good: the view could be taken apart with them."""
    libc = _libc()
    kept = _kept()
    for capability in set(range(_CAPABILITIES)) - set(kept):
        libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0)  # fails beyond the last that the kernel knows
    bits = sum(1 << capability for capability in kept)
    header, data = struct.pack("Ii", _CAPABILITY_VERSION, 0), struct.pack("6I", bits, bits, 0, 0, 0, 0)
    _check(libc.capset(header, data), "capset")
    _check(libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs")
    libc.prctl(_PR_SET_DUMPABLE, 1, 0, 0, 0)  # its files in /proc are its own, as before
    if platform.machine() in _KEYCTL:
        libc.syscall(_KEYCTL[platform.machine()], _JOIN_SESSION_KEYRING, None)


class _View:
    """The new root, which is put together below the first shared folder."""

    def __init__(self, shared: list[Path], at: Path | None = None) -> None:
        self._shared = list(map(str, shared))
        self._at = None if at is None else str(at)
        self._memory = f"{self._shared[0]}/{_MEMORY}"
        self._root = f"{self._memory}/root"
        self._mounts = _mount_points()
        self._overlays, self._bytes_left = 0, _COPIED_BYTES
        self._writable = {"/"}
        """Mount points below the new root that may be written."""

    def become_root(self) -> None:
        """Put it together and make it this process's root. Raises NoSandbox: something could be written that
        would remain."""
        os.mkdir(self._memory)
        _mount("tmpfs", self._memory, "tmpfs", 0, "mode=755")
        os.mkdir(self._root)
        _mount(self._root, self._root, "", _MS_BIND)
        self._remake("/")
        for path in self._shared:
            os.makedirs(self._root + path, exist_ok=True)
            self._bind(path, writable=True)
        if self._at is not None:
            os.makedirs(self._root + self._at, exist_ok=True)
            _mount(self._shared[0], self._root + self._at, "", _MS_BIND)
            self._writable.add(self._at)
        self._devices()
        self._read_only("/sys")
        try:
            self._mount_at("/proc", "proc", "proc", _MS_RDONLY)
        except NoSandbox:  # parts of this one are hidden, as in containers
            self._read_only("/proc")
        os.chdir(self._root)
        _check(_libc().pivot_root(b".", b"."), "pivot_root")
        _check(_libc().umount2(b".", _MNT_DETACH), "umount /")
        os.chdir("/")
        open_to_all = [point for point, flags in _mount_points().items() if "ro" not in flags]
        if left := sorted(set(open_to_all) - self._writable):
            raise NoSandbox(f"{left[0]} would stay writable")

    def _remake(self, folder: str) -> None:
        """A folder that holds mounts, in memory: what is in it copied, covered or made."""
        inside = folder.rstrip("/") + "/"
        below = {point[len(inside) :].split("/")[0] for point in self._mounts if point.startswith(inside)} - {
            ""
        }
        try:
            names = sorted({*os.listdir(folder), *below})
        except OSError:
            names = sorted(below)  # it may be entered, but not read
        for name in names:
            path = inside + name
            if path in _OWN:
                os.mkdir(self._root + path)
                continue
            with contextlib.suppress(FileNotFoundError):  # gone since it was listed
                self._remake_entry(path)
        _like(folder, self._root + folder)

    def _remake_entry(self, path: str) -> None:
        target = self._root + path
        try:
            status = os.lstat(path)
        except PermissionError:
            return  # nor can the script know what it is
        mode = status.st_mode
        if stat.S_ISLNK(mode):
            os.symlink(os.readlink(path), target)
        elif stat.S_ISDIR(mode):
            os.mkdir(target)
            if any(point.startswith(f"{path}/") for point in self._mounts):
                self._remake(path)
            else:
                self._cover(path)
        elif stat.S_ISREG(mode):
            self._copy(path, status.st_size)
        elif stat.S_ISFIFO(mode):
            os.mkfifo(target)  # nobody is at its other end, nor at that of a socket

    def _copy(self, path: str, size: int) -> None:
        target, size = self._root + path, max(size, _LEAST_BYTES)
        if size <= self._bytes_left:
            try:
                shutil.copyfile(path, target)
                _like(path, target)
                self._bytes_left -= size
                return
            except FileNotFoundError:
                raise
            except (
                OSError
            ):  # not to be read, as another user's, or a namespace: it is there, and nothing more
                pass
        os.close(os.open(target, os.O_CREAT | os.O_WRONLY))
        self._read_only(path)

    def _cover(self, folder: str) -> None:
        """An overlay over a folder; one that cannot be a lower layer becomes read-only."""
        upper, work = (f"{self._memory}/{layer}-{self._overlays}" for layer in ("upper", "work"))
        self._overlays += 1
        os.mkdir(upper)
        os.mkdir(work)
        _like(folder, upper)  # the upper layer's permissions are what is seen
        options = f"lowerdir={_escaped(folder)},upperdir={_escaped(upper)},workdir={_escaped(work)}"
        for extra in (",userxattr", ""):
            with contextlib.suppress(NoSandbox):
                self._mount_at(folder, "overlay", "overlay", 0, options + extra)
                return
        self._read_only(folder)

    def _devices(self) -> None:
        """A ``/dev`` that holds what every program expects, and shared memory as large as before."""
        dev = f"{self._root}/dev"
        for name in _DEVICES:
            if os.path.exists(f"/dev/{name}"):
                os.close(os.open(f"{dev}/{name}", os.O_CREAT | os.O_WRONLY))
                self._bind(f"/dev/{name}", writable=True)
        for name, target in (("fd", "fd"), ("stdin", "fd/0"), ("stdout", "fd/1"), ("stderr", "fd/2")):
            os.symlink(f"/proc/self/{target}", f"{dev}/{name}")
        os.symlink("pts/ptmx", f"{dev}/ptmx")
        os.mkdir(f"{dev}/shm")
        size = os.statvfs("/dev/shm")
        self._mount_at("/dev/shm", "tmpfs", "tmpfs", 0, f"mode=1777,size={size.f_blocks * size.f_frsize}")
        for name, kind, options in (
            ("pts", "devpts", "newinstance,ptmxmode=0666,mode=620"), ("mqueue", "mqueue", "")
        ):  # fmt: skip
            if os.path.isdir(f"/dev/{name}"):
                os.mkdir(f"{dev}/{name}")
                with contextlib.suppress(NoSandbox):
                    self._mount_at(f"/dev/{name}", kind, kind, 0, options)

    def _mount_at(self, path: str, source: str, kind: str, flags: int, options: str = "") -> None:
        _mount(source, self._root + path, kind, flags, options)
        self._writable.add(path)

    def _bind(self, path: str, *, writable: bool, flags: int = 0) -> None:
        _mount(path, self._root + path, "", _MS_BIND | flags)
        if writable:
            self._writable.add(path)

    def _read_only(self, path: str) -> None:
        """What is at a path and all that is mounted below, without devices. The kernel wants flags kept."""
        self._bind(path, writable=False, flags=_MS_REC)
        around = max((p for p in self._mounts if f"{path}/".startswith(p.rstrip("/") + "/")), key=len)
        for point in (around, *(p for p in self._mounts if p.startswith(f"{path}/"))):
            has = sum(_FLAGS[option] for option in self._mounts[point] & _FLAGS.keys())
            target = self._root + (path if point == around else point)
            _mount("none", target, "", has | _MS_REMOUNT | _MS_BIND | _MS_RDONLY | _MS_NODEV)


def _mount_points() -> dict[str, set[str]]:
    """What is mounted, by its path, and how."""
    points = {}
    for line in Path("/proc/self/mountinfo").read_text(errors="surrogateescape").splitlines():
        _, _, _, _, point, options, *_ = line.split(" ")
        path = re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), point)
        points[path] = set(options.split(","))
    return points


def _like(source: str, target: str) -> None:
    """Owner and permissions; what another user owns is not to be written, where its owner cannot be kept."""
    with contextlib.suppress(OSError):
        shutil.copystat(source, target)
        status = os.stat(source)
        if not os.access(source, os.W_OK):
            os.chmod(target, stat.S_IMODE(status.st_mode) & ~0o222)
        os.chown(target, status.st_uid, status.st_gid)


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
    (:func:`about_to_write`).

    Without namespaces: what Python writes outside of the temporary folder is refused, with the file's name.

    Native code, which opens files without Python, is not seen; those who rehearse accept that
    (``--unconfined``).
    """
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
    """Ask for a library that opens files without Python (safetensors). Raises PermissionError: refused, as
    for Python's own."""
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
