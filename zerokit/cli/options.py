"""The arguments of a plan (:data:`zerokit.planner.options.OPTIONS`) as options of the command line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from zerokit.emit.outside import remember
from zerokit.fields import as_options
from zerokit.planner.options import BY_NAME, ELSEWHERE, OPTIONS, Option, folded

F = TypeVar("F", bound=Callable[..., Any])

_SEARCHED = ("tp", "sp", "checkpointing", "offload_optimizer", "offload_param")
"""Options whose value a plan may look for: elsewhere their help names no ``auto``."""


def _fold(ctx: click.Context, param: click.Parameter, value: object) -> object:
    if param.name == "nvme":
        remember(value)
    return folded(BY_NAME[param.name or ""], value) if isinstance(value, str) else value


def _metavar(option: Option, *, searches: bool = False) -> str | None:
    """What stands for the option's value; ``searches``: the command looks for those that nobody gave."""
    if option.is_flag or searches or option.name not in _SEARCHED:
        return option.metavar or None
    return "|".join(word for word in option.metavar.split("|") if word != "auto")


def shared(name: str) -> Callable[[F], F]:
    """Adds every argument of a plan to the command of this name, in the order of the table.

    Those that a command refuses are hidden: the error says what to do instead.
    """
    elsewhere = ELSEWHERE.get(name, {})

    def add(command: F) -> F:
        for option in reversed(OPTIONS):
            text = elsewhere.get(option.name, option.help)
            metavar = _metavar(option, searches=name != "estimate")
            command = click.option(
                option.option,
                is_flag=option.is_flag,
                metavar=metavar,
                callback=_fold,
                default="auto" if option.name == "device" else None,
                help=as_options(text or option.help),
                hidden=text is None,
            )(command)
        return command

    return add


def unconfined(command: F) -> F:
    """Adds the switch of the commands that rehearse."""
    return click.option(
        "--unconfined",
        is_flag=True,
        help="Rehearse even where the kernel gives no namespaces: what native code writes then remains.",
    )(command)


def of_check(command: F) -> F:
    """Adds the arguments that say whether a file fits."""
    for option in reversed(OPTIONS):
        if option.in_check is not None:
            command = click.option(
                option.option, metavar=_metavar(option), help=option.in_check, callback=_fold
            )(command)
    return command


def explain(command: F) -> F:
    """Adds ``--explain``: the details below the answer."""
    text = "Show memory and time in detail, other plans and the files too."
    return click.option("-v", "--explain", is_flag=True, help=text)(command)
