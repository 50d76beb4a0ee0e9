"""Values that the script asked for and nobody can know without arithmetic, each with the line that asked."""

from __future__ import annotations

import contextlib
import enum
import functools
import os
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

_OURS = str(Path(__file__).resolve().parents[2])
_SITE = ("site-packages/", "dist-packages/")

_GENERATED = "/zerokit-rehearsal-"
"""Code that a compiler wrote into the temporary folder."""

Value = bool | int | float | str


@functools.cache
def is_library(file: str) -> bool:
    """Whether a source file belongs to an installed package, to Python, or is made up."""
    return (
        file.startswith("<")
        or _GENERATED in file
        or any(part in file for part in _SITE)
        or "/lib/python3" in file
        or file.startswith(_targets())
    )


@functools.cache
def _targets() -> tuple[str, ...]:
    """Folders on ``PYTHONPATH`` that ``pip install --target`` filled, each with a separator at its end: they
    hold what is known of each package beside it."""
    folders = []
    for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep):
        with contextlib.suppress(OSError):
            if entry and any(name.endswith(".dist-info") for name in os.listdir(entry)):  # noqa: PTH208
                folders.append(os.path.join(os.path.abspath(entry), ""))  # noqa: PTH100,PTH118
    return tuple(folders)


def short(file: str) -> str:
    """A path without the folder that packages are installed in, or that the script was started in: the same
    on each machine."""
    for part in _SITE:
        if part in file:
            return file.rsplit(part, 1)[1]
    folder = next((folder for folder in (*_targets(), *_started_in) if file.startswith(folder)), "")
    return file[len(folder) :]


_started_in: list[str] = []


def start_in(folder: str) -> None:
    """Name the files below a folder, in which the script is started, by their paths in it."""
    _started_in[:] = [os.path.join(folder, "")]  # noqa: PTH118


_NO_LINE = "no line of Python"
"""Where autograd runs an operator by itself, in a thread of its own."""


class _Place(enum.IntEnum):
    """Whose code a file is."""

    BETWEEN = 0
    """PyTorch's or this package's: between an operator and who asked for it."""
    LIBRARY = 1
    SCRIPT = 2


@functools.cache
def _place(file: str) -> _Place:
    if not is_library(file) and not file.startswith(_OURS):
        return _Place.SCRIPT  # in a folder of any name
    is_between = "/torch/" in file or file.startswith((_OURS, "<")) or _GENERATED in file
    return _Place.BETWEEN if is_between else _Place.LIBRARY


def _line(frame: FrameType) -> str:
    return f"{short(frame.f_code.co_filename)}:{frame.f_lineno}"


def asking_line() -> str:
    """The innermost line outside of PyTorch and of this package, as ``file:line``."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and _place(frame.f_code.co_filename) == _Place.BETWEEN:
        frame = frame.f_back
    return _line(frame) if frame is not None else _NO_LINE


_Asking = tuple[FrameType | None, FrameType | None]
"""The innermost frames of the user's own code, and of libraries above that."""


class Modules(threading.local):
    """The modules that this thread is inside of, outermost first; ``code``: of the function around each
    module's call."""

    code: CodeType | None = None

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self._asking: list[_Asking | None] = []

    def enter(self, module: Any) -> None:
        """A module's call begins."""
        self.stack.append(module)
        self._asking.append(None)

    def leave(self) -> None:
        """The innermost module's call ends."""
        del self.stack[-1], self._asking[-1]  # no calls, which would be counted as the script's

    def script_line(self) -> str:
        """The innermost line of the user's own code; else as :func:`asking_line`."""
        script, library = self._frames(sys._getframe(1), len(self.stack))
        asking = script or library
        return _line(asking) if asking is not None else _NO_LINE

    def _frames(self, frame: FrameType | None, inside: int) -> _Asking:
        """Those from ``frame`` outwards, inside of so many modules; what is around one is looked for once."""
        library: FrameType | None = None
        while frame is not None:
            code = frame.f_code
            place = _place(code.co_filename)
            if place == _Place.SCRIPT:
                return frame, library
            if place == _Place.LIBRARY:
                library = library or frame
            elif code is self.code and inside:
                inside -= 1
                around = self._asking[inside]
                if around is None:
                    around = self._asking[inside] = self._frames(frame.f_back, inside)
                return around[0], library or around[1]
            frame = frame.f_back
        return None, library


@dataclass(slots=True)
class Guess:
    """What was answered, and how often."""

    value: Value
    times: int = 0


class Guesses:
    """All guesses of a run, by location and question."""

    def __init__(self) -> None:
        self.values: dict[tuple[str, str], Guess] = {}
        self.shapes: dict[tuple[str, str], Guess] = {}

    def of_value(self, description: str, value: Value) -> None:
        """A value was read to the host."""
        self._note(self.values, description, value)

    def of_shape(self, description: str, value: Value) -> None:
        """A size was needed: the figures depend on it."""
        self._note(self.shapes, description, value)

    def _note(self, book: dict[tuple[str, str], Guess], description: str, value: Value) -> None:
        guess = book.setdefault((asking_line(), description), Guess(value))
        guess.times += 1
