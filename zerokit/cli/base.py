"""What every command has: help in groups, ``-q``, and an answer to options that do not exist."""

from __future__ import annotations

import os
import re
import shlex
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path

import click

from zerokit.cli import say
from zerokit.cli.say import Context
from zerokit.errors import InputError
from zerokit.fields import as_options
from zerokit.fields import first as first_argument
from zerokit.messages import program
from zerokit.planner.options import BY_NAME, GROUPS
from zerokit.trainer_files import ENDINGS

_QUIET = ("-q", "--quiet")
WORDS = "zerokit.words"
"""Of a context's ``meta``: the words that were typed, the command's name first, where a page says them."""


class Command(click.Command):
    """A command whose help shows its options in groups.

    The arguments of a plan stand in their own groups, unless ``groups`` has them: titles with names of
    parameters, in the order of the help. What is in none is Output (Options where there is no group).
    ``examples`` are shown last: a line of what for, then the command.
    """

    context_class = Context

    def __init__(
        self,
        *args: object,
        groups: Mapping[str, Sequence[str]] | None = None,
        examples: tuple[tuple[str, str], ...] = (),
        **named: object,
    ) -> None:
        super().__init__(*args, **named)  # type: ignore[arg-type]
        self.groups = groups or {}
        self.examples = examples
        self.params.append(quiet_option())

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse; an option given twice counts as given last, which is said. Raises InputError: a word is no
        option's value, and this command takes no words."""
        ctx.meta.setdefault(WORDS, (ctx.info_name or "", *args))
        parsed, extra, _ = self.make_parser(ctx).parse_args(args=list(args))
        takes_no_words = not ctx.allow_extra_args and any(one.name == "model" for one in self.params)
        if extra and takes_no_words and not ctx.resilient_parsing:
            raise InputError(stray(parsed.get("file") or extra[0], args))
        rest = super().parse_args(ctx, list(args))
        if not ctx.resilient_parsing:
            _, _, typed = self.make_parser(ctx).parse_args(args=list(args))
            for option in dict.fromkeys(one for one in typed if isinstance(one, click.Option)):
                times = typed.count(option)
                holds_several = option.multiple or option.count or option.is_flag
                if times > 1 and not holds_several:
                    value = ctx.params.get(option.name or "")
                    say.say(f"{option.opts[-1]} is given {times} times; the last counts: {value}")
        return rest

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options in groups."""
        records: dict[str, tuple[str, str]] = {}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx) if isinstance(parameter, click.Option) else None
            if record is not None:
                # without click's ``[1<=x<=65536]``, which the error for such a value names; 60.0 as 60
                text = _RANGE_OF_CLICK.sub("", record[1]).replace("[]", "")
                records[parameter.name or ""] = (_broken(record[0]), _WHOLE.sub("", text).rstrip())
        sections: dict[str, list[tuple[str, str]]] = {title: [] for title in GROUPS}
        for title, names in self.groups.items():
            sections[title] = [records.pop(name) for name in names]
        for name in [name for name in records if name in BY_NAME]:
            sections[BY_NAME[name].group].append(records.pop(name))
        rest = "Output" if any(sections.values()) else "Options"
        sections.setdefault(rest, []).extend(records.values())
        for title, rows in sections.items():
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows, col_max=26)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the examples."""
        super().format_epilog(ctx, formatter)
        if not self.examples:
            return
        formatter.write_paragraph()
        formatter.write("Examples:\n")
        for purpose, command in self.examples:
            formatter.write(f"  {purpose}:\n    {command}\n")


def _broken(option: str) -> str:
    """An option with its choices, on several lines where they are many."""
    name, _, choices = option.partition(" ")
    if len(option) <= _WIDEST:
        return option
    lines = textwrap.wrap(choices.replace("|", "| "), _WIDEST - len(name))
    return f"{name} " + f"\n{' ' * (len(name) + 3)}".join(line.replace("| ", "|") for line in lines)


class Group(click.Group):
    """A command that has commands below it."""

    context_class = Context
    command_class = Command


_WIDEST = 76
_LISTS = ("--gpu", "--price", "--method", "--lora-targets")
"""Options of several values, joined with commas."""


def stray(word: str, args: Sequence[str], more: str = "") -> str:
    """What to say of a word, among all that was typed after the command, that is no option's value: a list
    was meant, an engine's file, or a model. ``more``: how else a word is given."""
    from zerokit.linter.files import read_file
    from zerokit.trainer_files.reading import read_by

    at = list(args).index(word)
    option, first = args[max(0, at - 2)], args[max(0, at - 1)]
    if first.startswith("--"):
        option, _, first = first.partition("=")
    names_model = any(typed.partition("=")[0] in ("--model", "--params") for typed in args)
    if option in _LISTS and first and (names_model or first.endswith(",") or word.startswith(",")):
        end = next((n for n, later in enumerate(args) if n > at and later.startswith("-")), len(args))
        values = [part.strip(", ") for part in (first, *args[at:end])]
        joined = ",".join(value for value in values if value)
        return f"{word}: join several values with commas, without a space: {option} {joined}"
    files = [typed for typed in args if typed.endswith(ENDINGS) and "=" not in typed]
    if word in files and len(files) > 1:
        return f"{files[1]}: one file is answered for, and {files[0]} is named before it; leave one out"
    if word.endswith(".json") and (kind := read_file(word).kind) in ("accelerate", "deepspeed"):
        return read_by(kind, word)
    is_no_model = Path(word).is_file() and not word.endswith(".json")  # a log, say
    model = "NAME or --model PATH (its config.json)" if is_no_model else word
    return f"{word}: name a model with --model {model}{more}"


_BETWEEN = re.compile(r"([\d.]+)<=x<=([\d.]+)")
_RANGE_OF_CLICK = re.compile(r"(?:; )?(?:[\d.]+<=?)?x(?:[<>]=?[\d.]+)?(?=\])")
_WHOLE = re.compile(r"(?<=\d)\.0(?=\])")


def quiet_option() -> click.Option:
    """``-q``: progress and notes are left out; warnings, errors and results are not."""

    def hush(_context: click.Context, _parameter: click.Parameter, value: bool) -> None:
        if value:
            say.quiet()

    return click.Option(
        list(_QUIET), is_flag=True, expose_value=False, callback=hush,
        help="No progress and no notes on standard error; warnings stay.",
    )  # fmt: skip


def unknown_option(error: click.NoSuchOption) -> str:
    """What to say of an option that a command does not have: what is written instead, or where it belongs."""
    from zerokit.planner.options import in_place_of_accelerate_yaml, instead

    context, name = error.ctx, error.option_name
    path = context.command_path if context is not None else program()
    key = name.strip("-").replace("-", "_")
    if context is not None and isinstance(context.command, click.Group):
        answer = _AFTER_A_COMMAND.get(name) or _after_subcommand(name, context)
        return f"{path}: there is no option {name}; {answer or f'`{path} --help` lists them'}"
    parameter_names = (
        {name for parameter in context.command.params for name in _names(parameter)} if context else set()
    )
    hint = instead(name, parameter_names)
    takes_script = context is not None and _takes_script(context.command)
    if hint is not None:
        named = first_argument(hint)
        if named not in parameter_names and (named is not None or takes_script):
            hint = None
    if hint is None and path.endswith("sbatch") and key in _OF_SLURM:
        hint = f"it is Slurm's: submit the job with `sbatch {name} … job.sh`"
    if path.endswith(" rehearse") and key in _DEEPSPEED_FILE:
        hint = (
            "give it to the script, after its name (train.py --deepspeed FILE); for an Accelerate script, "
            "set ACCELERATE_USE_DEEPSPEED=true and ACCELERATE_DEEPSPEED_CONFIG_FILE=FILE"
        )
    if path.endswith(" plan") and key in _DEEPSPEED_FILE:
        hint = "`zerokit estimate --deepspeed FILE` predicts what a run with that file takes"
    if takes_script:
        command = path.removeprefix(program()).strip()
        hint = in_place_of_accelerate_yaml(name, command, parameter_names) or hint
    sibling = _SIBLINGS.get(context.info_name or "") if context is not None else None
    if (
        hint is None
        and sibling
        and context
        and context.parent
        and isinstance(context.parent.command, click.Group)
    ):
        other = context.parent.command.get_command(context, sibling)
        if other is not None and any(key in _names(parameter) for parameter in other.params):
            hint = f"it is an option of `zerokit {sibling}`"
    if hint is None and key in BY_NAME:
        hint = "it is an option of `zerokit plan`"
    if hint is None and takes_script:
        hint = f"the script's own options stand after its name: {path} … SCRIPT {name} …"
    return as_options(f"{path}: there is no option {name}; {hint or f'`{path} --help` lists them'}")


def _after_subcommand(name: str, context: click.Context) -> str | None:
    """Where an option of a group's subcommands belongs; None: none has it, or the group is the program."""
    group = context.command
    if context.parent is None or not isinstance(group, click.Group):
        return None
    commands = {one: group.get_command(context, one) for one in group.list_commands(context)}
    those = [
        one for one, command in commands.items()
        if command is not None and any(name in parameter.opts for parameter in command.params)
    ]  # fmt: skip
    if not those:
        return None
    return f"it stands after a subcommand: `{context.command_path} {those[0]} {name} …` ({', '.join(those)})"


_SIBLINGS = {"report": "watch", "watch": "report"}
"""Commands that show a run: when it is over, and while it lasts."""
_AFTER_A_COMMAND = {
    "-v": "use -V for the version; plan and estimate have a -v of their own, for all details",
    "-q": "it goes after a command, as in `zerokit plan -q`",
}
"""What to say of options that commands have, and zerokit itself has not."""
_DEEPSPEED_FILE = ("deepspeed", "deepspeed_config", "ds_config")
_OF_SLURM = frozenset((
    "partition", "account", "qos", "constraint", "mem", "exclusive", "reservation", "mail_user", "mail_type",
    "nodelist", "exclude", "dependency", "array", "output", "error", "licenses", "gres", "comment",
))  # fmt: skip
"""Options of ``sbatch`` that the command line overrides in a script, or adds to it."""


def _takes_script(command: click.Command) -> bool:
    arguments = (parameter for parameter in command.params if isinstance(parameter, click.Argument))
    return any((argument.metavar or "").startswith("SCRIPT") for argument in arguments)


def _names(parameter: click.Parameter) -> list[str]:
    """How a parameter is typed, which may differ from its name in Python (``--measure``: ``measure_too``)."""
    return [word.lstrip("-").replace("-", "_") for word in parameter.opts]


def misused(error: click.ClickException, command: str | None) -> str:
    """What to say of a command line that click refuses: what is wrong with it, and where its use stands.
    ``command``: that was typed; click tells of no context where a value is missing."""
    from zerokit.suggest import misspelt

    context = error.ctx if isinstance(error, click.UsageError) else None
    path = context.command_path if context is not None else " ".join(filter(None, (program(), command)))
    if isinstance(error, click.UsageError) and (typed := _NO_COMMAND.match(error.message)):
        known = context.command.commands if context and isinstance(context.command, click.Group) else {}
        meant = _OTHER_NAMES.get(typed[1], typed[1])
        close = [meant] if meant in known else misspelt(meant, known)
        hint = f"did you mean `{path} {close[0]}`?" if close else f"`{path} --help` lists them"
        return f"{path}: there is no command {typed[1]!r}; {hint}"
    text = _BETWEEN.sub(r"\1 to \2", error.format_message().rstrip("."))
    for pattern, words in _NUMBERS:
        text = pattern.sub(words, text)
    return f"{path}: {text[:1].lower()}{text[1:]}; see `{path} --help`"


_NUMBERS = (
    (re.compile(r"Invalid value for '([^']*)(?:' / '[^']*)*': ('.*') is not a valid (?:integer|float).*"),
     r"\1: cannot read \2; use a number"),
    (re.compile(r"Invalid value for '([^']*)(?:' / '[^']*)*': (\S+) is not in the range (\S+) to (\S+)"),
     r"\1: '\2' must be between \3 and \4"),
)  # fmt: skip
"""What click says of a number, and how the arguments of a plan say it."""
_NO_COMMAND = re.compile(r"No such command '([^']*)'")
_OTHER_NAMES = {
    "slurm": "sbatch", "k8s": "kubernetes", "kubectl": "kubernetes", "ds": "deepspeed", "json": "deepspeed",
    "yaml": "accelerate", "hosts": "hostfile", "ls": "list", "cat": "show",
}  # fmt: skip
"""What the subcommands of ``emit`` and ``recipes`` are called elsewhere."""
_OTHER_COMMANDS = {
    "version": "use `zerokit --version`",
    "run": "use `zerokit launch SCRIPT`",
    "train": "use `zerokit launch SCRIPT`",
    "lint": "use `zerokit check FILE`",
    "validate": "use `zerokit check FILE`",
    "show": "use `zerokit report RUN`",
    "compare": "use `zerokit report RUN RUN`",
    "predict": "use `zerokit estimate`",
    "search": "use `zerokit plan`",
    "simulate": "use `zerokit rehearse SCRIPT`",
    "list": "use `zerokit gpus`, `zerokit models` or `zerokit recipes list`",
}


def unknown_command(
    name: str, names: list[str], typed: str = "zerokit", listed_by: str = "zerokit help"
) -> InputError:
    """What to say of a command that there is not; ``typed``: what its name was typed behind."""
    from zerokit.suggest import misspelt

    close = misspelt(name, names)
    hint = _OTHER_COMMANDS.get(name) or (f"did you mean `{typed} {close[0]}`?" if close else None)
    return InputError(f"there is no command {name!r}; {hint or f'`{listed_by}` lists them'}")


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
    """What to say where a command's script is missing: what was typed, or the ``example`` of options, with a
    script behind it."""
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
