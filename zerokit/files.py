"""Files of ours: written whole or not at all, and where a user's cache lies. Standard library only."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path


def write_whole(
    path: Path, data: bytes | str, *, durable: bool = True, through_links: bool = False, mode: int = 0o666
) -> None:
    """Write a file so that a reader sees the old one or the whole new one, never a part.

    The temporary file beside it has a name that nobody can guess, and is never one that was there before.

    Args:
        data: text is written as UTF-8; a byte that was none when it was read is itself again.
        durable: on the disk before this returns; a full disk may speak up only then (NFS, quotas).
        through_links: a link stays one, and its file is written; a device or pipe is written to. Otherwise
            a link is replaced.
        mode: of a new file, less the umask.

    Raises:
        OSError: the folder cannot be written; an older file is untouched.
    """
    content = data.encode("utf-8", "surrogateescape") if isinstance(data, str) else data
    if through_links:
        if path.exists() and not path.is_file():
            path.write_bytes(content)
            return
        path = Path(os.path.realpath(path))
    temporary = path.with_name(f".{path.name[:200]}.{os.urandom(8).hex()}.tmp")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(temporary, flags, mode), "wb") as file:
        try:
            file.write(content)
            file.flush()
            if durable:
                os.fsync(file.fileno())
            temporary.replace(path)
        except BaseException:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise


def keep_former(path: Path, data: str) -> Path | None:
    """Keep what a file holds as ``NAME~`` before other text is written to it; None: nothing is lost.

    Raises:
        OSError: the folder cannot be written.
    """
    content = data.encode("utf-8", "surrogateescape")
    if not path.is_file() or (former := path.read_bytes()) in (b"", content):
        return None
    kept = path.with_name(f"{path.name}~")
    write_whole(kept, former)
    return kept


def cache_folder(environment: Mapping[str, str] | None = None) -> Path:
    """zerokit's folder among the user's caches; where the user has no home, one that cannot be made."""
    environment = os.environ if environment is None else environment
    base = environment.get("XDG_CACHE_HOME")
    if not base:
        return home_folder(environment) / ".cache" / "zerokit"
    return Path(base) / "zerokit"


def home_folder(environment: Mapping[str, str] | None = None) -> Path:
    """The user's home; where there is none (``HOME=~nouser``), a folder that is not there and cannot be made.

    ``Path.home()`` raises there.
    """
    environment = os.environ if environment is None else environment
    home = environment.get("HOME") or os.path.expanduser("~")  # noqa: PTH111 - it raises nothing
    return Path(home) if os.path.isabs(home) else Path("/proc/no-home")  # noqa: PTH117
