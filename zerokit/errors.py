"""Every error zerokit raises on purpose, and the exit code it ends the command with.

A code is a row of :class:`ExitCode`; an error names the one that it ends with.
Any other exception is a bug in zerokit and ends with exit code 1.
Messages say what is wrong, where, and how to fix it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum
from pathlib import Path
from typing import ClassVar

from zerokit import fields

INSTALL_TRAINING = "pip install torch deepspeed accelerate transformers"
"""What `launch` and tracing need beside zerokit itself, which is on no package index."""


class ExitCode(IntEnum):
    """What a command ends with. Each row: the code, what it means, and the same at length for its page
    (docs/exit-codes.md, which `tests/test_readme.py --write` writes, and SKILL.md).

    A command that a signal ended has 128 and the signal's number.
    """

    short: str
    text: str

    DONE = 0, "done"
    BUG = 1, "a bug in zerokit"
    BAD_INPUT = (
        2, "bad input (the message names the option and the fix)",
        "bad input; the message names the option or `file:line`, and the fix",
    )  # fmt: skip
    NOTHING_FITS = (
        3, "it does not fit (the message names what would)",
        "nothing fits; the message names the closest change that would",
    )  # fmt: skip
    NOT_AS_PLANNED = (
        9, "the run did not do what the plan says",
        "the script finished, but did not do what the plan says, or trained nothing or something else than "
        "its own code says",
    )  # fmt: skip
    RANK_FAILED = 10, "a rank failed"
    HUNG = 11, "hung", "the run hung"
    LAUNCHER_LOST = 12, "the launcher was lost", "the launcher process died"
    NODE_UNUSABLE = 13, "a port or node is unusable"
    INCOMPLETE_REHEARSAL = (
        14, "a rehearsal could not go to its end",
        "a rehearsal stopped before its end and its result is marked incomplete, or the script did not train "
        "(`--do_train` is missing)",
    )  # fmt: skip
    GREW = (
        15, "a rehearsal grew beyond its baseline",
        "a rehearsal's memory or step time grew beyond its baseline (`rehearse --baseline`)",
    )  # fmt: skip
    NOT_WRITTEN = (
        74, "the report could not be written", "the report, or the output, could not be written",
    )  # fmt: skip

    def __new__(cls, code: int, short: str, text: str = "") -> ExitCode:
        member = int.__new__(cls, code)
        member._value_ = code
        member.short, member.text = short, text or short
        return member


class ZerokitError(Exception):
    """Base of the errors whose message is meant for the user. ``exit_code``: what the command line ends with.
    ``marked``: the message with the arguments that it names marked (:mod:`zerokit.fields`); the command line
    writes them as options, ``str(error)`` as in Python."""

    exit_code: ClassVar[int] = ExitCode.BUG

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
    """The user's input cannot be used; the message names it and the fix. ``field``: the argument that cannot
    be used (``seq_len``): as given here, else the first that the message names, else that of :func:`about`;
    None where the problem is not one argument's."""

    exit_code = ExitCode.BAD_INPUT

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

    exit_code = ExitCode.NOTHING_FITS


class LaunchError(ZerokitError):
    """A launched run did not end well."""


class RankFailed(LaunchError):
    """At least one rank failed."""

    exit_code = ExitCode.RANK_FAILED


class RunHung(LaunchError):
    """No progress within the heartbeat."""

    exit_code = ExitCode.HUNG


class LauncherLost(LaunchError):
    """The launcher process ended while ranks were alive, or without their reports."""

    exit_code = ExitCode.LAUNCHER_LOST


class NodeUnusable(LaunchError):
    """A node or port cannot be used."""

    exit_code = ExitCode.NODE_UNUSABLE


class ReportNotWritten(ZerokitError):
    """The run's report could not be written."""

    exit_code = ExitCode.NOT_WRITTEN


def of_import(error: BaseException) -> BaseException:
    """The import that failed first, where others were raised for it (Transformers' lazy modules name what
    they were asked for); else the error itself. Python's own import errors name a module."""
    cause: BaseException | None = error
    while cause is not None and not (isinstance(cause, ImportError) and cause.name):
        cause = cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)
    return cause or error
