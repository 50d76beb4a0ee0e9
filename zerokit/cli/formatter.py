"""Help texts whose commands are those that the user types."""

from __future__ import annotations

from collections.abc import Iterable

import click

from zerokit.messages import typed


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
