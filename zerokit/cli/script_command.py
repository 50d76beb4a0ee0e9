"""Commands that take a script and its arguments: everything after the script is the script's own."""

from __future__ import annotations

import os
import shlex

import click

from zerokit.cli.base import WORDS, Command
from zerokit.errors import InputError
from zerokit.messages import program


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


def no_script(example: str = "") -> InputError:
    """What to say where a command's script is missing: what was typed, with a script behind it.

    Args:
        example: options to show where none was typed.
    """
    from zerokit.launcher.secrets import Secrets

    context = click.get_current_context()
    words = list(context.meta[WORDS][1:])
    command, script, why = context.command_path.removeprefix(program()).strip(), "train.py", ""
    for option in context.command.params:
        value = context.params.get(option.name or "")
        if isinstance(option, click.Option) and isinstance(value, str) and value.endswith(".py"):
            why, script = f"⟨{option.name}⟩ took {value} as its value; ", value
            words = [_with_metavar(word, value, option.metavar or "VALUE") for word in words]
    shown = shlex.join(Secrets(os.environ, words).argv(words)) or example
    typed = " ".join(filter(None, (f"zerokit {command}", shown, shlex.quote(script))))
    return InputError(f"{command}: {why}name a script, for example: {typed}")


def _with_metavar(word: str, value: str, metavar: str) -> str:
    """A word that is an option's value, or ends with it, with what stands for the value in its place."""
    is_value = word == value or (word.startswith("-") and word.endswith(f"={value}"))
    return word.removesuffix(value) + metavar if is_value else word
