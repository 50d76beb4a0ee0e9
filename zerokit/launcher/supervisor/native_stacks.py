"""Native stacks of ranks that hang, by py-spy where it is installed: what they do below Python."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from zerokit.launcher.rank_file import native_stacks_file

LIMIT_SECONDS = 3.0
_MOST_RANKS = 16


def find_py_spy() -> str | None:
    """The program's path: beside this Python, or on the ``PATH``."""
    sibling = Path(sys.executable).with_name("py-spy")
    return str(sibling) if sibling.is_file() else shutil.which("py-spy")


class NativeStacks:
    """``py-spy dump --native`` of some ranks of this machine, side by side."""

    def __init__(self) -> None:
        self._running: dict[int, subprocess.Popen[bytes]] = {}
        self._until = 0.0
        self.begun = False

    def start(self, run_dir: Path, pids: Mapping[int, int]) -> None:
        """Begin; does nothing without py-spy. ``pids``: by rank."""
        self.begun = True
        program = find_py_spy()
        if program is None:
            return
        self._until = time.monotonic() + LIMIT_SECONDS
        for rank, pid in sorted(pids.items())[:_MOST_RANKS]:
            with suppress(OSError), native_stacks_file(run_dir, rank).open("wb") as file:
                command = [program, "dump", "--native", "--pid", str(pid)]
                self._running[rank] = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.DEVNULL
                )

    def done(self, run_dir: Path) -> bool:
        """Whether all have ended; those that take too long are ended, and files without a stack removed."""
        late = time.monotonic() >= self._until
        for rank, process in list(self._running.items()):
            if late:
                process.kill()
                process.wait()
            if process.poll() is None:
                continue
            del self._running[rank]
            with suppress(OSError):
                path = native_stacks_file(run_dir, rank)
                if path.stat().st_size == 0:
                    path.unlink()
        return not self._running

    def end(self) -> None:
        """End those that still run, where the run is over before they are."""
        for process in self._running.values():
            process.kill()
            process.wait()
        self._running.clear()
