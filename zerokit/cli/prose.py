"""Wrapped text for the terminal: headings, list items and paragraphs."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Iterable

_NARROWEST, _WIDEST = 40, 100


def width() -> int:
    """Columns to write in: the terminal's, or COLUMNS, or 80 in a pipe; at most what is read with ease."""
    return max(_NARROWEST, min(_WIDEST, shutil.get_terminal_size((80, 24)).columns))


def heading(text: str) -> str:
    """A section's title."""
    return f"\n{text}"


def bullets(lines: Iterable[str]) -> list[str]:
    """Wrapped list items."""
    wrapped = []
    for line in lines:
        wrapped += textwrap.wrap(
            line, width(), initial_indent="  - ", subsequent_indent="    ", break_on_hyphens=False
        )
    return wrapped


def paragraph(text: str) -> list[str]:
    """Wrapped text, indented."""
    return textwrap.wrap(text, width(), initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False)
