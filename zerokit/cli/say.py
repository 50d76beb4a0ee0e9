"""Lines for people on standard error."""

from __future__ import annotations

from contextlib import suppress

import click

from zerokit.fields import as_options

_loud = True


def quiet() -> None:
    """From now on progress and notes are left out (``-q``)."""
    global _loud
    _loud = False


def loud() -> None:
    """Progress and notes are shown: how every command starts."""
    global _loud
    _loud = True


def say(text: str) -> None:
    """One line on standard error; a reader that went away is no error of ours."""
    if not _loud:
        return
    with suppress(OSError):
        click.echo(f"zerokit: {as_options(text)}", err=True)
