"""Every error zerokit raises on purpose, and the exit code it ends the command with.

::

    ZerokitError
    ├── InputError          2   something the user wrote: an option, a file, a value
    │   ├── FileInputError  2   … with file:line:column
    │   └── MemoryUnknown   2   a strategy that nothing here can estimate
    ├── NothingFits         3   no strategy fits; names the nearest change that would
    ├── LaunchError
    │   ├── NotAsPlanned    9   ended well, but not as planned, or trained otherwise than its code says
    │   ├── RankFailed      10
    │   ├── RunHung         11
    │   ├── LauncherLost    12
    │   └── NodeUnusable    13  port taken, host unreachable, versions differ
    └── ReportNotWritten    74

14 is no error's: a rehearsal that could not go to its end is reported, and ends with it.
Any other exception is a bug in zerokit and ends with exit code 1.
Messages say what is wrong, where, and how to fix it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar

from zerokit import fields

__all__ = [
    "INCOMPLETE_REHEARSAL",
    "INSTALL_TRAINING",
    "FileInputError",
    "InputError",
    "LaunchError",
    "LauncherLost",
    "MemoryUnknown",
    "NodeUnusable",
    "NotAsPlanned",
    "NothingFits",
    "RankFailed",
    "ReportNotWritten",
    "RunHung",
    "ZerokitError",
    "about",
]


INCOMPLETE_REHEARSAL = 14
"""What ``zerokit rehearse`` ends with where it could not go to the end, or the script did not train."""
INSTALL_TRAINING = "pip install torch deepspeed accelerate transformers"
"""What `launch` and tracing need beside zerokit itself, which is on no package index."""


class ZerokitError(Exception):
    """Base of the errors whose message is meant for the user.

    Attributes:
        exit_code: what the command line ends with.
        marked: the message with the arguments that it names marked (:mod:`zerokit.fields`); the command line
            writes them as options, ``str(error)`` as in Python.
    """

    exit_code: ClassVar[int] = 1

    def __init__(self, message: str = "") -> None:
        self.marked = message
        super().__init__(fields.plain(message))

    def add(self, line: str) -> None:
        """Say one line more, unless it is empty."""
        if line:
            self.reword(f"{self.marked}\n{line}")

    def reword(self, message: str) -> None:
        """Say it in other words, with arguments marked."""
        self.marked = message
        self.args = (fields.plain(message),)


class InputError(ZerokitError):
    """The user's input cannot be used; the message names it and the fix.

    Attributes:
        field: the argument that cannot be used (``seq_len``): as given here, else the first that the message
            names, else that of :func:`about`; None where the problem is not one argument's.
    """

    exit_code = 2

    def __init__(self, message: str = "", *, field: str | None = None) -> None:
        self.field = field or fields.first(message)
        super().__init__(message)


@contextmanager
def about(field: str) -> Iterator[None]:
    """What is read here is this argument's: an error whose message names no argument gets it as its field."""
    try:
        yield
    except InputError as error:
        error.field = error.field or field
        raise


class FileInputError(InputError):
    """A problem at a location in a file, shown as ``file:line:column: message``."""

    def __init__(
        self, path: str | Path, message: str, line: int | None = None, column: int | None = None
    ) -> None:
        self.path = str(path)
        self.line = line
        self.column = column
        self.message = message
        location = ":".join(str(part) for part in (self.path, line, column) if part is not None)
        super().__init__(f"{location}: {message}")


class MemoryUnknown(InputError):
    """What a strategy requires is not known: it was not traced, and no closed form holds for the model."""


class NothingFits(ZerokitError):
    """No legal strategy fits the hardware; the message names the nearest change that would."""

    exit_code = 3


class LaunchError(ZerokitError):
    """A launched run did not end well."""


class NotAsPlanned(LaunchError):
    """The script ended well, but did not do what the plan says."""

    exit_code = 9


class RankFailed(LaunchError):
    """At least one rank failed."""

    exit_code = 10


class RunHung(LaunchError):
    """No progress within the heartbeat."""

    exit_code = 11


class LauncherLost(LaunchError):
    """The launcher process ended while ranks were alive, or without their reports."""

    exit_code = 12


class NodeUnusable(LaunchError):
    """A node or port cannot be used."""

    exit_code = 13


class ReportNotWritten(ZerokitError):
    """The run's report could not be written."""

    exit_code = 74
