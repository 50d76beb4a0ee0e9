"""The arguments of a plan (:data:`zerokit.planner.options.OPTIONS`) as options of the command line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from zerokit.fields import as_options
from zerokit.planner.options import OPTIONS

F = TypeVar("F", bound=Callable[..., Any])


def shared(command: F) -> F:
    """Adds every argument of a plan, in the order of the table."""
    for option in reversed(OPTIONS):
        text = as_options(option.help)
        if option.is_flag:
            command = click.option(option.option, is_flag=True, help=text)(command)
        elif option.name == "device":
            command = click.option(option.option, metavar=option.metavar, default="auto", help=text)(command)
        else:
            command = click.option(option.option, metavar=option.metavar, help=text)(command)
    return command


def of_check(command: F) -> F:
    """Adds the arguments that say whether a file fits."""
    for option in reversed(OPTIONS):
        if option.in_check is not None:
            command = click.option(option.option, metavar=option.metavar, help=option.in_check)(command)
    return command


def explain(command: F) -> F:
    """Adds ``--explain``: the details below the answer."""
    text = "Show memory and time in detail, other plans and the files too."
    return click.option("-v", "--explain", is_flag=True, help=text)(command)
