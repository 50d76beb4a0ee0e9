"""Lock files of extension builds that nobody holds any more: every later build waits for them forever.

``torch.utils.cpp_extension`` builds under a file ``lock`` in the operator's folder and removes it when
the build is over (torch 2.13, ``utils/file_baton.py``); a build that was killed leaves it behind. The builder
keeps the file open, so a lock that no process has open is nobody's, on this machine.
"""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

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
