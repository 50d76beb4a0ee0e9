"""Lines for people on standard error."""

from __future__ import annotations

from contextlib import suppress

import click

from zerokit.fields import as_options


def say(text: str) -> None:
    """One line on standard error; a reader that went away is no error of ours."""
    with suppress(OSError):
        click.echo(f"zerokit: {as_options(text)}", err=True)
