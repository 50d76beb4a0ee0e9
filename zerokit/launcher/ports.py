"""A free TCP port for the ranks to meet at, or who holds the one that was asked for."""

from __future__ import annotations

import errno
import os
import random
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from zerokit.errors import InputError, NodeUnusable
from zerokit.launcher.locks import FileLock, NoLocks, acquire, private_folder
from zerokit.launcher.secrets import Secrets

_LOWEST = 20_000
_LISTEN = "0A"  # state column of /proc/net/tcp


def is_free(port: int, host: str = "") -> bool:
    """Whether a server could listen there now, on all addresses (as torch's TCPStore does)."""
    for family, address in ((socket.AF_INET6, "::"), (socket.AF_INET, host or "0.0.0.0")):
        try:
            with socket.socket(family, socket.SOCK_STREAM) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                probe.bind((address, port))
        except OSError as error:
            if error.errno in (errno.EADDRINUSE, errno.EACCES):
                return False
    return True


def holder(port: int) -> str:
    """Who listens on the port, as far as this user may see: ``pid 812 (python train.py)``."""
    inodes = set()
    for table in ("tcp", "tcp6"):
        with suppress(OSError):
            for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == _LISTEN and int(fields[1].rsplit(":", 1)[1], 16) == port:
                    inodes.add(f"socket:[{fields[9]}]")
    for process in Path("/proc").iterdir():
        if not process.name.isdigit():
            continue
        with suppress(OSError):
            for fd in (process / "fd").iterdir():
                with suppress(OSError):
                    if str(fd.readlink()) in inodes:
                        words = (process / "cmdline").read_bytes().decode("utf-8", "replace").split("\0")
                        command = " ".join(Secrets(os.environ, words).argv(words)).strip()
                        return f"pid {process.name} ({command[:120]})"
    return "a process of another user" if inodes else "a connection that is still closing"


@contextmanager
def reserve(requested: int | None = None) -> Iterator[int]:
    """A port that is free now and that no other zerokit takes while the block runs, below the range that the
    kernel gives to outgoing connections, because seconds pass until rank 0 listens there.

    Raises:
        NodeUnusable: the wanted port is taken (the message names its holder), or none is free.
        InputError: not a port.
    """
    folder = private_folder("ports")
    if requested is not None:
        if not 1 <= requested <= 65535:
            raise InputError(f"⟨master_port⟩ {requested}: use 1 to 65535")
        candidates, none_free = [requested], ""
    else:
        for path in folder.glob("*.lock") if folder is not None else ():  # what killed launches have left
            with suppress(OSError, NoLocks):
                if (left := acquire(path)) is not None:
                    left.release()
        highest = 32_000
        with suppress(OSError, ValueError):
            low = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
            highest = low if low > _LOWEST + 1000 else highest
        candidates = random.sample(range(_LOWEST, highest), k=min(500, highest - _LOWEST))
        none_free = f"no free TCP port between {_LOWEST} and {highest}"
    for port in candidates:
        lock = _lock(folder, port)
        try:
            if is_free(port):
                if lock is not None:
                    yield port
                    return
                none_free = none_free or (
                    f"port {port} is reserved by another zerokit launch; choose another ⟨master_port⟩"
                )
        finally:
            if lock is not None:
                lock.release()
    raise NodeUnusable(
        none_free
        or f"port {requested} is in use by {holder(candidates[0])}; end it, or leave ⟨master_port⟩ out to "
        "have a free one chosen"
    )


def _lock(folder: Path | None, port: int) -> FileLock | None:
    """The port's lock; one that locks nothing where no folder is ours alone: the bind test must do."""
    if folder is not None:
        with suppress(OSError, NoLocks):
            return acquire(folder / f"{port}.lock")
    return FileLock(None, None)
