"""Lines for people on standard error."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable
from contextlib import suppress

import click

from zerokit.fields import as_options
from zerokit.messages import PREFIX, printable, typed, width_of, wrapped
from zerokit.notes import with_level


class Formatter(click.HelpFormatter):
    """Writes ``./launch.sh plan`` for ``zerokit plan`` where that is how zerokit was started."""

    def write(self, string: str) -> None:
        """Lines that stay as they are: examples."""
        super().write(typed(string))

    def write_text(self, text: str) -> None:
        """A paragraph, wrapped."""
        super().write_text(typed(text))

    def write_dl(self, rows: Iterable[tuple[str, str]], col_max: int = 30, col_spacing: int = 2) -> None:
        """Options or commands, and what they do."""
        super().write_dl([(name, typed(text)) for name, text in rows], col_max, col_spacing)


class Context(click.Context):
    """A command's context; it writes help with :class:`Formatter`."""

    formatter_class = Formatter


_loud = True


def quiet() -> None:
    """From now on progress and notes are left out (``-q``)."""
    global _loud
    _loud = False


def loud() -> None:
    """Progress and notes are shown: how every command starts."""
    global _loud
    _loud = True


def is_loud() -> bool:
    """Whether progress and notes are shown."""
    return _loud


def say(text: str) -> None:
    """One line on standard error; a reader that went away is no error of ours.

    Where progress and notes are left out, warnings are not.
    """
    shown = with_level(text)
    if _loud or shown is not text:
        with suppress(OSError):
            tell(shown)


def tell(text: str) -> None:
    """A message on standard error, progress or not (an error, above all), as wide as the terminal."""
    echo(PREFIX + text)


def echo(text: str) -> None:
    """Text on standard error that says itself whose it is, as wide as the terminal."""
    with suppress(BrokenPipeError):  # a reader that went away changes no exit code
        click.echo(printable(wrapped(as_options(text), width_of())), err=True)


def is_styled() -> bool:
    """Whether standard output is a terminal that shows bold and colours (https://no-color.org)."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def write(text: str = "") -> None:
    """A result on standard output; nothing that is foreign in it is obeyed by a terminal or a CI system."""
    click.echo(printable(text, styles=True))  # click leaves them out where there is no terminal


def write_json(body: object, indent: int = 1) -> None:
    """A result on standard output, as JSON in ASCII."""
    click.echo(json.dumps(body, indent=indent, allow_nan=False))
