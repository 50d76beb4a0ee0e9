"""Commands that take a script and its arguments: everything after the script is the script's own."""

from __future__ import annotations

import click

from zerokit.cli.base import WORDS, Command


class ScriptCommand(Command):
    """As with Python itself, everything after ``-m MODULE`` belongs to the module too."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Take what follows the script's name for the script's own, and keep all words for the page."""
        ctx.meta[WORDS] = (ctx.info_name or "", *args)
        takes_value = {name: not option.is_flag for option in self.params if isinstance(option, click.Option)
                       for name in option.opts}  # fmt: skip
        index = 0
        while index < len(args) and args[index].startswith("-") and args[index] != "--":
            name, equals, _ = args[index].partition("=")
            index += 1 if equals or not takes_value.get(name, False) else 2
            if name in ("-m", "--module"):
                args = [*args[:index], "--", *args[index:]]
                break
        return super().parse_args(ctx, args)
