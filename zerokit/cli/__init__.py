"""The ``zerokit`` command: a file per command, each parse → call → print.

A command's module is imported only when that command runs, so that ``plan``
starts at once and never imports torch.
"""

from __future__ import annotations

import atexit
import errno
import functools
import gc
import importlib
import io
import os
import re
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import click

from zerokit import __version__
from zerokit.cli.say import Context, echo, loud, tell
from zerokit.errors import ReportNotWritten, ZerokitError
from zerokit.fields import as_options
from zerokit.messages import COMMANDS, program, remember_typed

_FIRST_LINE = re.compile(r'"""``zerokit (?P<name>[a-z-]+)``: (?P<text>.+)"""')


@functools.cache
def commands() -> dict[str, str]:
    """Name and one-line help of every command: what the first line of its file says."""
    lines = (
        path.read_text(encoding="utf-8").partition("\n")[0] for path in Path(__file__).parent.glob("*.py")
    )
    listed = {match["name"]: match["text"] for match in map(_FIRST_LINE.fullmatch, lines) if match}
    names = sorted(
        listed, key=lambda name: (COMMANDS.index(name) if name in COMMANDS else len(COMMANDS), name)
    )
    return {name: listed[name][0].upper() + listed[name][1:] for name in names}


_ASKED_FOR_HELP: tuple[type, ...] = (
    (click.exceptions.NoArgsIsHelpError,) if hasattr(click.exceptions, "NoArgsIsHelpError") else ()
)
"""Raised by a group without a command, from click 8.2 on; 8.1 shows the help itself."""
_LONG_LIVED = frozenset({"launch", "tune", "rehearse"})
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_UNUSABLE_PATH = (errno.ENAMETOOLONG, errno.EACCES, errno.ELOOP)  # pathlib's exists() raises the first two


class _ReaderGone(Exception):
    """Nobody reads standard output any more."""


class LazyGroup(click.Group):
    """A group whose commands are imported when they are run or asked for help."""

    context_class = Context

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names of all commands, in the order of the help."""
        return list(commands())

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command."""
        if cmd_name not in COMMANDS and cmd_name not in commands():
            return None
        module = importlib.import_module(f"zerokit.cli.{cmd_name}")
        if cmd_name in _LONG_LIVED:
            gc.enable()
        command: click.Command = module.command
        if "_ZEROKIT_COMPLETE" in os.environ:  # a shell asks: its values are completed too
            from zerokit.cli import completion

            completion.add(command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command named; an unknown one is answered with what was probably meant."""
        if args and args[0] not in COMMANDS and args[0] not in commands() and not args[0].startswith("-"):
            from zerokit.cli.base import unknown_command

            raise unknown_command(args[0], self.list_commands(ctx))
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; click would make a closed pipe an exit code of 1."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            raise _ReaderGone from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl(list(commands().items()))


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, "-V", "--version", prog_name="zerokit")
def cli() -> None:
    """Know what fits and runs fastest before you burn GPU hours."""
    if os.environ.get("NO_COLOR"):
        click.get_current_context().color = False


def main(argv: list[str] | None = None) -> None:
    """Run the command line; ends the process with one of the documented exit codes."""
    # most commands live for less than a second: looking for garbage is a sixth of that
    gc.disable()
    atexit.register(_freeze)
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors != "replace":
        # a terminal that has no bars or dashes shows a ?; the POSIX locale comes with "surrogateescape"
        sys.stdout.reconfigure(errors="replace")
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:  # nohup stays in force
            signal.signal(number, _end)
    try:
        code = run(argv)
    except Exception:
        if _told_to_end is None:
            raise
        # Python before 3.12 turns what is raised while a class is made into a RuntimeError
        code = 128 + _told_to_end
    sys.exit(code)


def _freeze() -> None:
    """Let the interpreter end without looking for garbage; not where native libraries free theirs only then,
    as Triton 3.9, which else lists on 30 lines what it still holds."""
    if "torch" not in sys.modules:
        gc.freeze()


_told_to_end: int | None = None
"""The signal that told this process to end."""


def _end(number: int, frame: FrameType | None) -> None:
    """Leave as after an interrupt, so that processes and temporary folders of ours go too."""
    global _told_to_end
    _told_to_end = number
    raise SystemExit(128 + number)


def run(argv: list[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    loud()
    remember_typed([*(sys.argv if argv is None else argv), _working_folder()])
    try:
        result: Any = cli.main(
            args=argv, prog_name=program(), complete_var="_ZEROKIT_COMPLETE", standalone_mode=False
        )
    except click.exceptions.Exit as exit_:
        return exit_.exit_code
    except click.NoSuchOption as error:
        from zerokit.cli.base import unknown_option

        echo(unknown_option(error))
        return 2
    except click.ClickException as error:
        from zerokit.cli.base import misused

        if isinstance(error, _ASKED_FOR_HELP):
            error.show()
        else:
            first = next(iter(sys.argv[1:] if argv is None else argv), None)
            echo(misused(error, first if first in commands() else None))
        return 2
    except click.exceptions.Abort:
        tell("interrupted")
        return 130
    except ZerokitError as error:
        from zerokit.launcher.secrets import redact

        text = redact(as_options(error.marked), arguments=sys.argv if argv is None else argv)
        tell(text)
        return error.exit_code
    except _ReaderGone:
        # the reader (head, less) went away: not an error of ours
        _discard_output()
        return 0
    except OSError as error:
        if error.errno in _UNUSABLE_PATH and error.filename is not None:
            path = os.fsdecode(error.filename)
            shortened = path if len(path) <= 200 else f"{path[:100]}…{path[-40:]}"
            tell(f"{shortened}: {error.strerror}")
            return 2
        if error.errno not in _NO_ROOM:
            raise
        _discard_output()
        tell(f"the output could not be written: {error.strerror}")
        return ReportNotWritten.exit_code
    return result if isinstance(result, int) else 0


def _working_folder() -> str:
    try:
        return os.getcwd()  # noqa: PTH109 - what messages show of it is text
    except OSError:
        return ""


def _discard_output() -> None:
    """What is still buffered goes nowhere; the interpreter flushes it at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
