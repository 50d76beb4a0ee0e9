"""Text for the terminal: headings, list items, paragraphs and straight columns, wrapped."""

from __future__ import annotations

import os
import re
import shutil
import sys
import textwrap
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import click

from zerokit import messages
from zerokit.cli.say import is_styled, write
from zerokit.fields import as_options
from zerokit.messages import typed

if TYPE_CHECKING:
    from zerokit.rehearsal.sections import Section

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
    return [part for line in lines for part in wrap(line, "  - ", "    ")]


def paragraph(text: str) -> list[str]:
    """Wrapped text, indented."""
    return wrap(text, "  ", "  ")


def wrap(text: str, first: str = "", later: str = "") -> list[str]:
    """Lines behind indents, arguments as options; words stay whole, and none begins with a per cent sign or
    an ellipsis."""
    joined = re.sub(" (?=[%…])", _JOINED, typed(as_options(text)))
    lines = textwrap.wrap(
        joined, width(), initial_indent=first, subsequent_indent=later, break_on_hyphens=False
    )
    return [line.replace(_JOINED, " ") for line in lines]


def command_lines(command: str, comment: str = "") -> list[str]:
    """A command as it is typed here, in lines that a shell reads as one, cut before its options; ``comment``:
    stands behind the command where there is room, else below it."""
    lines = messages.command_lines(command, width())
    if not comment:
        return lines
    if len(behind := f"{lines[-1]}  # {comment}") <= width():
        return [*lines[:-1], behind]
    return [*lines, *wrap(comment, "  # ", "  # ")]


_NARROWEST_COLUMN = 16  # of the last column; a narrower one goes below its row
_BELOW = "    "


def terminal_width() -> int | None:
    """Columns of the terminal, or COLUMNS; None in a pipe or a file, where lines are left whole."""
    if not sys.stdout.isatty() and "COLUMNS" not in os.environ:
        return None
    return max(40, shutil.get_terminal_size((80, 24)).columns)


def aligned(rows: Sequence[tuple[str, ...]], right: tuple[int, ...] = ()) -> list[str]:
    """Rows of text as lines with straight columns; the columns in ``right`` end flush.

    In a terminal the last column is wrapped at its place, or the last ones go below their row where there is
    no room.
    """
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    limit, start = terminal_width(), sum(widths[:-1]) + 2 * (len(widths) - 1)
    lines: list[str] = []
    for row in rows:
        cells = [
            cell.rjust(width) if column in right else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        line = "  ".join(cells).rstrip()
        if limit is None or len(line) <= limit:
            lines.append(line)
        elif limit - start >= max(_NARROWEST_COLUMN, *map(len, row[-1].split())):
            lines += wrapped(row[-1], "  ".join(cells[:-1]) + "  ", " " * start)
        else:
            beside = len(row) - 1
            while beside > 2 and len("  ".join(cells[:beside])) > limit:
                beside -= 1
            lines.append("  ".join(cells[:beside]).rstrip())
            below = _BELOW if row[0].strip() else _BELOW + row[0]
            lines += [part for cell in row[beside:] if cell for part in wrapped(cell, below, below)]
    return lines


def wrapped(text: str, first: str = "", later: str = "    ") -> list[str]:
    """``text`` behind ``first``, wrapped to the terminal with ``later`` before each further line."""
    limit, text = terminal_width(), typed(text)
    if limit is None:
        return [first + text]
    lines = textwrap.wrap(text, limit, initial_indent=first, subsequent_indent=later, break_on_hyphens=False)
    return lines or [first]


def show_section(section: Section) -> None:
    """A title, its sentences and its rows, a line each."""
    write()
    indent = "" if section.rank is not None else "  "
    write("\n".join(wrapped(section.title, indent, indent + "  ")))
    for line in section.lines:
        write("\n".join(wrapped(line, indent + "  ", indent + "    ")))
    rows = [(indent, *row) for row in section.rows[: section.most]]
    if rows:
        write("\n".join(aligned(rows, right=(section.right + 1,))))
