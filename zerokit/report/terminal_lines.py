"""Lines of a report as wide as the terminal: they go on indented, and what is copied stays whole."""

from __future__ import annotations

from rich.console import RenderableType
from rich.text import Text

from zerokit.messages import wrapped


def whole(line: str) -> Text:
    """A line with a path or a command that is copied: not broken, however narrow the terminal."""
    return Text(line, no_wrap=True, overflow="ignore")


def hanging(part: RenderableType, width: int) -> RenderableType:
    """A text with its lines broken between words, going on indented; what is no text, or whole, as it is.

    A command at the end of a line that is too long goes below it, in lines that a shell reads as one.
    """
    if not isinstance(part, Text) or part.no_wrap:
        return part
    return Text(wrapped(part.plain, width), style=part.style, no_wrap=True, overflow="ignore")
