"""``zerokit help``: show this help, or that of one command."""

from __future__ import annotations

import contextlib

import click

from zerokit.cli.base import Command, unknown_command
from zerokit.cli.say import write
from zerokit.errors import InputError


@click.command("help", cls=Command)
@click.argument("names", nargs=-1, metavar="[COMMAND [SUBCOMMAND]]")
@click.pass_context
def command(context: click.Context, names: tuple[str, ...]) -> None:
    """Show the help of zerokit, of COMMAND, or of one of its subcommands."""
    above = context.parent
    if above is None or not isinstance(above.command, click.Group):
        raise AssertionError("help is a command of zerokit")
    typed = "zerokit help"
    with contextlib.ExitStack() as opened:
        shown = above
        for name in names:
            group = shown.command
            if not isinstance(group, click.Group):
                raise InputError(f"{shown.command_path} has no subcommands; `{typed}` shows its help")
            subcommand = group.get_command(shown, name)
            if subcommand is None:
                raise unknown_command(name, group.list_commands(shown), typed, typed)
            shown = opened.enter_context(click.Context(subcommand, info_name=name, parent=shown))
            typed = f"{typed} {name}"
        write(shown.get_help())
