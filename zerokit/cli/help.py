"""``zerokit help``: show this help, or that of one command."""

from __future__ import annotations

import click

from zerokit.cli.base import Command, unknown_command


@click.command("help", cls=Command)
@click.argument("name", required=False, metavar="[COMMAND]")
@click.pass_context
def command(context: click.Context, name: str | None) -> None:
    """Show the help of zerokit, or of COMMAND."""
    above = context.parent
    if above is None or not isinstance(above.command, click.Group):
        raise AssertionError("help is a command of zerokit")
    if name is None:
        click.echo(above.get_help())
        return
    subcommand = above.command.get_command(above, name)
    if subcommand is None:
        raise unknown_command(name, above.command.list_commands(above), "zerokit help")
    with click.Context(subcommand, info_name=name, parent=above) as inner:
        click.echo(subcommand.get_help(inner))
