"""The pipes of the ranks and the launcher: into log files and, as the user wants it, on to the terminal."""

from __future__ import annotations

import fcntl
import os
import select
import selectors
import time
from collections.abc import Callable
from pathlib import Path

from zerokit.launcher.secrets import Secrets
from zerokit.launcher.supervisor.output import Log, Terminal

_LARGEST_READ = 1 << 18
_DRAIN_SECONDS = 1.0


class PipeReader:
    """Reads what is written into the pipes whenever ``selector`` says that there is something.

    Attributes:
        show_ranks: whose output goes on to the terminal: ``first``, ``all`` or ``none``.
        forgive: hears of a rank that may have waited for us, its pipe being full, and of the seconds.
    """

    def __init__(
        self,
        folder: Path,
        selector: selectors.BaseSelector,
        terminal: Terminal,
        secrets: Secrets,
        show_ranks: str,
        forgive: Callable[[int, float], None],
    ) -> None:
        self.show_ranks = show_ranks
        self.forgive = forgive
        self._folder = folder
        self._selector = selector
        self._terminal = terminal
        self._secrets = secrets
        self._logs: dict[str, Log] = {}

    def follow(self, fd: int, rank: int | None, stream: str) -> None:
        """Read ``stream`` (``out`` or ``err``) of a rank, or of the launcher, until its end."""
        name = f"launcher.{stream}" if rank is None else f"rank-{rank:05d}.{stream}"
        log = self._logs[name] = Log(self._folder / f"{name}.log", self._secrets)
        show = self._destination(rank, stream)
        capacity, read_at = fcntl.fcntl(fd, fcntl.F_GETPIPE_SZ), time.monotonic()
        prefix = b"" if rank in (None, 0) or self.show_ranks != "all" else f"[rank {rank}] ".encode()

        def read() -> None:
            nonlocal read_at
            before, read_at = read_at, time.monotonic()
            try:
                data = os.read(fd, _LARGEST_READ)
            except BlockingIOError:
                return
            if not data:
                self._selector.unregister(fd)
                os.close(fd)
                data = b""
            if rank is not None and len(data) > capacity - select.PIPE_BUF:
                self.forgive(rank, read_at - before)
            lines = log.feed(data)
            if show is not None and lines:
                show(b"".join(prefix + line for line in lines.splitlines(keepends=True)) if prefix else lines)

        self._selector.register(fd, selectors.EVENT_READ, read)

    def _destination(self, rank: int | None, stream: str) -> Callable[[bytes], None] | None:
        """Where a stream is passed on to. The launcher's own chatter stays in its log."""
        if rank is None or self.show_ranks == "none" or (self.show_ranks == "first" and rank != 0):
            return None
        return self._terminal.out if stream == "out" else self._terminal.error

    def drain(self, *, but: object) -> None:
        """Read what the dead have written; ``but``: the one file that is no stream."""
        deadline = time.monotonic() + _DRAIN_SECONDS
        while time.monotonic() < deadline:
            readers = [key for key, _ in self._selector.select(0) if key.fileobj is not but]
            if not readers:
                break
            for key in readers:
                key.data()
        for name, log in self._logs.items():
            rest = log.close()
            show = self._destination(int(name[5:10]) if name.startswith("rank-") else None, name[-3:])
            if rest and show is not None:
                show(rest)

    @property
    def tails(self) -> dict[str, str]:
        """The last lines of each stream."""
        return {name: log.tail.decode("utf-8", "replace") for name, log in self._logs.items()}

    @property
    def dropped_bytes(self) -> int:
        """That no log file took."""
        return sum(log.dropped_bytes for log in self._logs.values())
