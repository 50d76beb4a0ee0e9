"""Plain text in straight columns: one line a row in a pipe, for grep, and wrapped in a terminal."""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from collections.abc import Sequence

from zerokit.messages import typed

_NARROWEST = 16  # of the last column; a narrower one goes below its row
_BELOW = "    "


def terminal_width() -> int | None:
    """Columns of the terminal, or COLUMNS; None in a pipe or a file, where lines are left whole."""
    if not sys.stdout.isatty() and "COLUMNS" not in os.environ:
        return None
    return max(40, shutil.get_terminal_size((80, 24)).columns)


def aligned(rows: Sequence[tuple[str, ...]], right: tuple[int, ...] = ()) -> list[str]:
    """Rows of text as lines with straight columns; the columns in ``right`` end flush.

    In a terminal the last column is wrapped at its place, or goes below its row where there is no room.
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
        elif limit - start >= _NARROWEST:
            lines += wrapped(row[-1], "  ".join(cells[:-1]) + "  ", " " * start)
        else:
            lines += ["  ".join(cells[:-1]).rstrip(), *wrapped(row[-1], _BELOW, _BELOW)]
    return lines


def wrapped(text: str, first: str = "", later: str = "    ") -> list[str]:
    """``text`` behind ``first``, wrapped to the terminal with ``later`` before each further line."""
    limit, text = terminal_width(), typed(text)
    if limit is None:
        return [first + text]
    lines = textwrap.wrap(text, limit, initial_indent=first, subsequent_indent=later, break_on_hyphens=False)
    return lines or [first]
