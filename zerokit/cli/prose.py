"""Wrapped text for the terminal: headings, list items and paragraphs."""

from __future__ import annotations

import re
import shutil
import textwrap
from collections.abc import Iterable
from typing import Any

import click

from zerokit import messages
from zerokit.cli.say import is_styled
from zerokit.messages import typed

_NARROWEST, _WIDEST = 40, 100
_JOINED = "\x00"  # a space that no line ends at


def width() -> int:
    """Columns to write in: the terminal's, or COLUMNS, or 80 in a pipe; at most what is read with ease."""
    return max(_NARROWEST, min(_WIDEST, shutil.get_terminal_size((80, 24)).columns))


def heading(text: str) -> str:
    """A section's title."""
    return f"\n{styled(text, bold=True)}"


def styled(text: str, **style: Any) -> str:
    """The text in bold or a colour (``fg``) on a terminal that shows them (https://no-color.org)."""
    return click.style(text, **style) if is_styled() else text


def bullets(lines: Iterable[str]) -> list[str]:
    """Wrapped list items."""
    wrapped = []
    for line in lines:
        wrapped += wrap(line, "  - ", "    ")
    return wrapped


def paragraph(text: str) -> list[str]:
    """Wrapped text, indented."""
    return wrap(text, "  ", "  ")


def wrap(text: str, first: str = "", later: str = "") -> list[str]:
    """Lines behind indents; words stay whole, and none begins with a per cent sign or an ellipsis."""
    joined = re.sub(" (?=[%…])", _JOINED, typed(text))
    lines = textwrap.wrap(
        joined, width(), initial_indent=first, subsequent_indent=later, break_on_hyphens=False
    )
    return [line.replace(_JOINED, " ") for line in lines]


def command_lines(command: str, comment: str = "") -> list[str]:
    """A command as it is typed here, in lines that a shell reads as one, cut before its options.

    Args:
        comment: stands behind the command where there is room, else below it.
    """
    lines = messages.command_lines(command, width())
    if not comment:
        return lines
    if len(behind := f"{lines[-1]}  # {comment}") <= width():
        return [*lines[:-1], behind]
    return [*lines, *wrap(comment, "  # ", "  # ")]
