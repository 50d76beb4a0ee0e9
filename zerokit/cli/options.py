"""The options that :mod:`zerokit.options` describes, as options of the command line."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

from zerokit.cli.base import stray
from zerokit.emit.outside import remember
from zerokit.errors import InputError
from zerokit.fields import as_options
from zerokit.options import Option, options_of
from zerokit.planner.options import BY_NAME, ELSEWHERE, OPTIONS, folded

if TYPE_CHECKING:
    from zerokit.trainer_files.reading import TrainerFile

F = TypeVar("F", bound=Callable[..., Any])

SEARCHED = ("tp", "sp", "cp", "checkpointing", "offload_optimizer", "offload_param")
"""Options whose value a plan may look for: elsewhere their help names no ``auto``."""


def _fold(ctx: click.Context, param: click.Parameter, value: object) -> object:
    if param.name == "nvme":
        remember(value)
    return folded(BY_NAME[param.name or ""], value) if isinstance(value, str) else value


def shared(name: str) -> Callable[[F], F]:
    """Adds the arguments of a plan to the command of this name, in the order of the table.

    Those that a command refuses are hidden: the error says what to do instead. ``check`` gets its own alone.
    """
    elsewhere = ELSEWHERE.get(name, {})

    def add(command: F) -> F:
        for option in reversed(OPTIONS):
            if name == "check" and option.name not in elsewhere:
                continue
            text = elsewhere.get(option.name, option.help)
            words = option.metavar.split("|")
            if name in ("estimate", "check") and option.name in SEARCHED:
                words = [word for word in words if word != "auto"]
            command = click.option(
                option.option,
                is_flag=option.is_flag,
                metavar="|".join(words) or None,
                callback=_fold,
                default=None if option.is_flag or name == "check" else option.default,
                help=as_options(text or option.help),
                hidden=text is None,
            )(command)
        return command

    return add


def declared(by: type) -> Callable[[F], F]:
    """Adds the options that the fields of a class declare."""

    def add(command: F) -> F:
        for option in reversed(options_of(by)):
            command = _option(option)(command)
        return command

    return add


def groups(by: type) -> Mapping[str, Sequence[str]]:
    """The titles of the help, each with its options, in the order of the fields."""
    found: dict[str, list[str]] = {}
    for option in options_of(by):
        if option.group:
            found.setdefault(option.group, []).append(option.name)
    return found


def _option(option: Option) -> Callable[[F], F]:
    text = as_options(option.help)
    if option.is_flag:
        return click.option(option.option, option.name, is_flag=True, help=text)
    kind: Any = option.kind
    if option.between is not None:
        ranges: Mapping[type, Any] = {int: click.IntRange, float: click.FloatRange}
        kind = ranges[kind](*option.between)
    return click.option(
        *option.spellings or (option.option,),
        option.name,
        metavar=option.metavar,
        type=kind,
        multiple=option.multiple,
        default=option.default,
        show_default=option.default is not None and not option.multiple,
        help=text,
    )


def trainer(command: F) -> F:
    """Adds whose a trainer's file is."""
    text = "Whose FILE is, where its keys do not tell: axolotl, llamafactory, swift or trl."
    return click.option("--from", "kind", metavar="KIND", help=text)(command)


def trainer_file(command: F) -> F:
    """Adds a trainer's own file as the word of a command, and whose it is."""
    return click.argument("file", required=False, metavar="[FILE]")(trainer(command))


def is_file(words: Sequence[str], kind: str | None) -> bool:
    """Whether a word can only be a trainer's file, or is said to be one."""
    from zerokit.trainer_files import ENDINGS

    return any(kind is not None or ("=" not in word and word.endswith(ENDINGS)) for word in words)


def read_file(word: str | None, kind: str | None, typed: Sequence[str]) -> TrainerFile | None:
    """The trainer's file that a word names; None: there is no word. Raises InputError: it is none; ``typed``:
    all that was typed after the command."""
    if word is None:
        if kind is not None:
            raise InputError("⟨from⟩: only with a trainer's file: FILE ⟨from⟩ KIND")
        return None
    from zerokit.trainer_files.reading import read_trainer_file

    if not is_file((word,), kind):
        raise InputError(stray(word, typed))
    return read_trainer_file(word, kind)


def unconfined(command: F) -> F:
    """Adds the switch of a command that may rehearse."""
    text = "Rehearse even where the kernel gives no namespaces: what native code writes then remains."
    return click.option("--unconfined", is_flag=True, help=text)(command)


def no_cache(command: F) -> F:
    """Adds the switch that makes every rehearsal anew."""
    text = "Rehearse even where the answer of an unchanged rehearsal is kept."
    return click.option("--no-cache", is_flag=True, help=text)(command)


def explain(command: F) -> F:
    """Adds ``--explain``: the details below the answer."""
    text = "Show memory and time in detail, other plans and the files too."
    return click.option("-v", "--explain", is_flag=True, help=text)(command)
