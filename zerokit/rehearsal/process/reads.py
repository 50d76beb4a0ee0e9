"""What a rehearsed process and its forks read, written down as it is met: files, listings of folders, and
questions whether something is there.

Python's own reads are seen by an audit hook, and what it asks of a path by :func:`os.stat`. What native code
opens is not seen; :mod:`zerokit.rehearsal.kept` says what stands for that.
"""

# paths are text here, as they come
# ruff: noqa: PTH100, PTH112, PTH118, PTH120
from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
import pkgutil
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from zerokit.rehearsal.order import READ_FILE, READ_FOLDER, READ_MODULES

_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_MAKING = {"os.mkdir": 0, "os.symlink": 1, "os.link": 1, "os.rename": 1}
"""Events that make a path, with its place among their arguments."""
_ZEROKIT = os.path.join(os.path.realpath(__file__).rpartition("/rehearsal/")[0], "")
_IMPORTS = ("<frozen importlib", os.path.dirname(importlib.__file__), pkgutil.__file__, _ZEROKIT)
"""Code that lists a folder for the modules in it."""


class Reads:
    """What this process reads from :meth:`install` on, written down from :meth:`log_to` on; ``made``: paths
    that it has made."""

    def __init__(self) -> None:
        self._own: tuple[str, ...] = ()
        self._ignored: tuple[str, ...] = (_ZEROKIT, "/proc/", "/sys/", "/dev/")
        self.seen: set[str] = set()
        self.made: set[str] = set()
        self._busy: set[int] = set()
        self._stat, self._lstat = os.stat, os.lstat
        self._log = -1

    def log_to(self, path: Path, own: Sequence[str | Path]) -> None:
        """Add what was seen so far to a log, and go on in it; ``own``: folders of the rehearsal. Links there
        lead to files that the user has elsewhere."""
        self._own = tuple(os.path.join(os.path.realpath(one), "") for one in own)
        self._ignored += self._own
        self._log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        seen = (record for record in self.seen if not f"{record[1:]}/".startswith(self._own))
        os.write(self._log, os.fsencode("".join(f"{record}\0" for record in seen)))

    def install(self) -> None:
        """See to it that reads are seen, for as long as the process lives."""
        for name, ask in (("stat", self._stat), ("lstat", self._lstat)):
            seen = self._asking(ask)
            for able in (os.supports_dir_fd, os.supports_fd, os.supports_follow_symlinks):
                if ask in able:
                    able.add(seen)
            setattr(os, name, seen)
        sys.addaudithook(self._audit)

    def _asking(self, ask: Any) -> Any:
        @functools.wraps(ask)
        def seen(path: Any, *args: Any, **options: Any) -> Any:
            asker = sys._getframe(1).f_back
            # a folder that is made unless it is there is the same afterwards
            if "dir_fd" not in options and (asker is None or asker.f_code is not os.makedirs.__code__):
                self._see(READ_FILE, path)
            return ask(path, *args, **options)

        return seen

    def _audit(self, event: str, args: tuple[Any, ...]) -> None:
        if event == "open":
            path, _, flags = args
            if not isinstance(flags, int) or not flags & _WRITING:
                self._see(READ_FILE, path)
            elif flags & os.O_TRUNC or not self._is_there(path):
                self._make(path)
            elif flags & os.O_RDWR:
                self._see(READ_FILE, path)
        elif event in ("os.listdir", "os.scandir"):
            caller = sys._getframe(1).f_code.co_filename
            self._see(
                READ_MODULES if caller.startswith(_IMPORTS) else READ_FOLDER,
                "." if args[0] is None else args[0],
            )
        elif event == "import" and args[1] is not None:  # a module of native code
            self._see(READ_FILE, args[1])
        elif event in _MAKING and not self._is_there(args[_MAKING[event]]):
            self._make(args[_MAKING[event]])

    def _is_there(self, path: Any) -> bool:
        with contextlib.suppress(OSError, ValueError, TypeError):
            self._lstat(path)
            return True
        return False

    def _make(self, path: Any) -> None:
        """What the script makes is not among what it depends on."""
        with contextlib.suppress(TypeError, ValueError, OSError):
            self.made.add(os.path.abspath(os.fsdecode(path)))

    def empty_folders(self, paths: set[str]) -> list[str]:
        """Those of some paths that are folders with nothing in them; the question is no read."""
        thread = threading.get_ident()
        self._busy.add(thread)
        try:
            folders = (path for path in sorted(paths) if os.path.isdir(path))
            return [path for path in folders if not os.listdir(path)]  # noqa: PTH208
        finally:
            self._busy.discard(thread)

    def _see(self, kind: str, path: Any) -> None:
        thread = threading.get_ident()
        if thread in self._busy or isinstance(path, int):
            return
        self._busy.add(thread)
        try:
            text = os.path.abspath(os.fsdecode(path))
            if text.endswith(".pyc"):  # compiled from a source, which decides
                with contextlib.suppress(ValueError):
                    text = importlib.util.source_from_cache(text)
            if f"{text}/".startswith(self._own):
                for link in self._behind(kind, text):
                    self._write(kind, link)
            elif not f"{text}/".startswith(self._ignored):
                self._write(kind, text)
        except (TypeError, ValueError, OSError):  # no path, or one that Python refuses as well
            pass
        finally:
            self._busy.discard(thread)

    def _behind(self, kind: str, path: str) -> set[str]:
        """What a path in the rehearsal's own folder leads to: files that were linked there."""
        paths = {path}
        if kind == READ_FOLDER and os.path.isdir(path):
            entries = [entry.path for entry in os.scandir(path) if entry.is_symlink()]
            paths = {os.path.dirname(os.path.realpath(entry)) for entry in entries}
        real = {os.path.realpath(one) for one in paths}
        return {one for one in real if not one.startswith(self._ignored)}

    def _write(self, kind: str, path: str) -> None:
        record = kind + path
        if record in self.seen:
            return
        self.seen.add(record)
        if self.made and (path in self.made or any(path.startswith(f"{one}/") for one in self.made)):
            return
        if self._log >= 0:
            os.write(self._log, os.fsencode(f"{record}\0"))
