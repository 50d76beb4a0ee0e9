"""Files: a stranger's opened so that none hangs us or leads elsewhere, ours written whole or not at all, and
where a user's cache lies. Standard library only."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO


def open_regular(path: str | os.PathLike[str], inside: str | os.PathLike[str] | None = None) -> BinaryIO:
    """Open a file that a stranger may have made, for reading: no pipe, device or folder is. ``inside``: the
    folder that links may not lead out of (``/``: they may lead anywhere); where it is not named, that of
    :func:`root_of`. Raises OSError: not there, not a regular file, or outside; ``strerror`` says which."""
    root = root_of(path) if inside is None else inside
    if root is not None and leaves(path, root):
        raise OSError(0, f"is a link that leads out of {os.fspath(root)}: name the file that it leads to")
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):  # noqa: PTH116 - opening a device may do something
            raise OSError(0, _NOT_REGULAR)
        # a pipe may have taken its place: it must not hold us
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | getattr(os, "O_CLOEXEC", 0))
    except ValueError:
        raise OSError(0, "not a file name") from None
    file = os.fdopen(handle, "rb")
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        file.close()
        raise OSError(0, _NOT_REGULAR)
    return file


def root_of(path: str | os.PathLike[str]) -> str | None:
    """The folder out of which links of a path that somebody named may not lead: the working folder, where the
    file is in it, else the path's own.

    None: they may lead anywhere: of zerokit's own files, which an installer may have linked, and of the Hub's
    cache, whose files are links to its ``blobs``.
    """
    named = os.path.abspath(path)  # noqa: PTH100 - it follows no links
    real = os.path.realpath(path)
    if named.startswith(_OURS) or os.path.basename(os.path.dirname(real)) == "blobs":  # noqa: PTH119, PTH120
        return None
    return os.curdir if not leaves(path, os.curdir) else os.path.dirname(named)  # noqa: PTH120


_OURS = f"{Path(__file__).parent}{os.sep}"
_NOT_REGULAR = "is not a regular file"


def read_regular(
    path: str | os.PathLike[str], most_bytes: int, inside: str | os.PathLike[str] | None = None
) -> bytes:
    """A file that a stranger may have made, opened as :func:`open_regular` does. Raises OSError: as there; or
    it has more than ``most_bytes``."""
    with open_regular(path, inside) as file:
        size = os.fstat(file.fileno()).st_size
        data = file.read(most_bytes + 1) if size <= most_bytes else b""
    if max(size, len(data)) > most_bytes:
        raise OSError(0, f"is {max(size, len(data))} bytes; at most {most_bytes} bytes are read")
    return data


def leaves(path: str | os.PathLike[str], folder: str | os.PathLike[str]) -> bool:
    """Whether a path leads, through links or ``..``, to what is not below the folder."""
    try:
        real, root = os.path.realpath(path), os.path.realpath(folder)
    except (OSError, ValueError):
        return True
    return not Path(real).is_relative_to(root)


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
    """Keep what a file holds as ``NAME~`` before other text is written to it; None: nothing is lost. Raises
    OSError: the folder cannot be written."""
    content = data.encode("utf-8", "surrogateescape")
    if not path.is_file() or (former := path.read_bytes()) in (b"", content):
        return None
    kept = path.with_name(f"{path.name}~")
    write_whole(kept, former)
    return kept


def remove_oldest(folder: Path, most_entries: int, most_bytes: int) -> None:
    """Remove what was longest not written or marked as used of a folder's files, beyond so many or so much.
    Raises OSError: the folder cannot be read or written."""
    files = sorted(((path.stat(), path) for path in folder.iterdir()), key=lambda one: -one[0].st_mtime_ns)
    size = 0
    for number, (status, path) in enumerate(files):
        size += status.st_size
        if size > most_bytes or number >= most_entries:
            path.unlink(missing_ok=True)


def cache_folder(environment: Mapping[str, str] | None = None) -> Path:
    """zerokit's folder among the user's caches; where the user has no home, one that cannot be made."""
    environment = os.environ if environment is None else environment
    base = environment.get("XDG_CACHE_HOME")
    if not base:
        return home_folder(environment) / ".cache" / "zerokit"
    return Path(base) / "zerokit"


def home_folder(environment: Mapping[str, str] | None = None) -> Path:
    """The user's home; where there is none (``HOME=~nouser``), a folder that is not there and cannot be made.
    ``Path.home()`` raises there."""
    environment = os.environ if environment is None else environment
    home = environment.get("HOME") or os.path.expanduser("~")  # noqa: PTH111 - it raises nothing
    return Path(home) if os.path.isabs(home) else Path("/proc/no-home")  # noqa: PTH117
