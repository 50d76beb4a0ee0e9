"""Lines of a report as wide as the terminal: they go on indented, and what is copied stays whole."""

from __future__ import annotations

import re

from rich.console import RenderableType
from rich.text import Text

from zerokit.messages import COMMANDS, command_lines, typed, wrapped

_ENDS_IN_A_COMMAND = re.compile(rf"(?P<said>\s*\S.*): (?P<command>zerokit (?:{'|'.join(COMMANDS)}) .*)")


def whole(line: str) -> Text:
    """A line with a path or a command that is copied: not broken, however narrow the terminal."""
    return Text(line, no_wrap=True, overflow="ignore")


def hanging(part: RenderableType, width: int) -> RenderableType:
    """A text with its lines broken between words, going on indented; what is no text, or whole, as it is.

    A command at the end of a line that is too long goes below it, in lines that a shell reads as one.
    """
    if not isinstance(part, Text) or part.no_wrap:
        return part
    lines = "\n".join(_broken(line, width) for line in part.plain.split("\n"))
    return Text(lines, style=part.style, no_wrap=True, overflow="ignore")


def _broken(line: str, width: int) -> str:
    found = _ENDS_IN_A_COMMAND.fullmatch(line)
    if found is None or len(typed(line)) <= width:
        return wrapped(line, width)
    indent = line[: len(line) - len(line.lstrip())]
    command = (f"{indent}{part}" for part in command_lines(found["command"], width - len(indent)))
    return "\n".join((wrapped(f"{found['said']}:", width), *command))
