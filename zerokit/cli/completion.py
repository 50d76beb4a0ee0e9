"""What a shell completes behind an option: names of the catalogues, choices, files and folders.

It is added to the options when a shell asks, and never otherwise: by what stands for a value in the help
(``FILE``, ``none|cpu|nvme``), and for names by the option. Nothing here imports torch.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

if TYPE_CHECKING:
    _ParamType = click.ParamType[Any]
else:
    _ParamType = click.ParamType  # of click before 8.3 it takes no type

_CHOICES = re.compile(r"\[?([\w.+-]+(?:\|[\w.+-]+)+)\]?")
_RANGE = re.compile(r"(\d)-(\d)")


def add(command: click.Command, path: tuple[str, ...] = ()) -> click.Command:
    """The command, with completion for every value of its options and arguments.

    Args:
        path: the names of the groups above, without zerokit's.
    """
    name = (*path, command.name or "")
    for parameter in command.params:
        values, kind = _of(parameter, name)
        if values is not None or kind is not None:
            parameter.type = Completed(parameter.type, values, kind)
    if isinstance(command, click.Group):
        for below in command.commands.values():
            add(below, name)
    return command


class Completed(_ParamType):
    """A type whose values a shell completes.

    Args:
        original: which converts what was typed.
        values: all of them; None: there is no list.
        kind: ``file`` or ``dir`` where a path may stand too.
    """

    def __init__(
        self, original: _ParamType, values: Callable[[], Iterable[str]] | None, kind: str | None
    ) -> None:
        self.name, self.original, self.values, self.kind = original.name, original, values, kind

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> object:
        """Convert as the type itself does."""
        return self.original.convert(value, param, ctx)

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """The values that begin so, letters large or small; the last one of a list with commas."""
        before, comma, last = incomplete.rpartition(",")
        values = self.values() if self.values is not None else ()
        matches = [value for value in values if value.lower().startswith(last.lower())]
        if matches or self.kind is None:
            return [CompletionItem(before + comma + value) for value in matches]
        return [CompletionItem(incomplete, type=self.kind)]


def _of(
    parameter: click.Parameter, command: tuple[str, ...]
) -> tuple[Callable[[], Iterable[str]] | None, str | None]:
    """The values of a parameter, and whether a file or folder may stand there."""
    metavar = parameter.metavar or ""
    kind = next((kind for word, kind in _KINDS if word in metavar), None)
    values = _NAMES.get((command[0], parameter.name or "")) or _NAMES.get(("", parameter.name or ""))
    if values is None and kind is None and isinstance(parameter, click.Option):
        choices = _choices(metavar)
        values = (lambda: choices) if choices else None
    return values, kind


_KINDS = (("FILE", "file"), ("SCRIPT", "file"), ("PATH", "file"), ("DIR", "dir"), ("RUN", "dir"))


def _choices(metavar: str) -> tuple[str, ...]:
    """``none``, ``cpu`` and ``nvme`` of ``none|cpu|nvme``; numbers to be typed (``N``) are left out."""
    span = _RANGE.fullmatch(metavar)
    if span is not None:
        return tuple(str(number) for number in range(int(span[1]), int(span[2]) + 1))
    listed = _CHOICES.fullmatch(metavar)
    return tuple(word for word in (listed[1].split("|") if listed else ()) if not word.isupper())


def _models() -> Iterable[str]:
    from zerokit.catalog import models

    return models.names()


def _families() -> Iterable[str]:
    from zerokit.catalog import models

    return sorted({model.family for model in models.index()})


def _gpus() -> Iterable[str]:
    from zerokit.catalog import gpus

    return gpus.names()


def _recipes() -> Iterable[str]:
    from zerokit.planner import recipes

    return recipes.names()


def _commands() -> Iterable[str]:
    from zerokit.cli import commands

    return commands()


def _rules() -> Iterable[str]:
    from zerokit.linter import explain

    return sorted(explain.examples())


_NAMES: dict[tuple[str, str], Callable[[], Iterable[str]]] = {
    ("", "model"): _models,
    ("", "gpu"): _gpus,
    ("", "recipe"): _recipes,
    ("models", "name"): _models,
    ("models", "family"): _families,
    ("gpus", "name"): _gpus,
    ("recipes", "name"): _recipes,
    ("recipes", "names"): _recipes,
    ("help", "names"): _commands,
    ("check", "explain"): _rules,
    ("check", "ignore"): _rules,
}
"""Command and parameter → what it names; no command: of every one."""
