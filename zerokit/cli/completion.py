"""What a shell completes behind an option: names of the catalogues, choices, files and folders.

It is added to the options when a shell asks, and never otherwise: by what stands for a value in the help
(``FILE``, ``none|cpu|nvme``), and for names by the option. Nothing here imports torch.
"""

from __future__ import annotations

import importlib
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
    """The command, with completion for every value of its options and arguments; ``path``: the names of the
    groups above, without zerokit's."""
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
    """A type, as ``original`` converts it, whose ``values`` (None: there is no list) a shell completes;
    ``kind``: ``file`` or ``dir`` where a path may stand too."""

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
        # ``none``, ``cpu`` and ``nvme`` of ``none|cpu|nvme``; numbers to be typed (``N``) are left out
        span, listed = _RANGE.fullmatch(metavar), _CHOICES.fullmatch(metavar)
        choices = [word for word in (listed[1].split("|") if listed else ()) if not word.isupper()]
        choices = [str(number) for number in range(int(span[1]), int(span[2]) + 1)] if span else choices
        values = (lambda: choices) if choices else None
    return values, kind


_KINDS = (("FILE", "file"), ("SCRIPT", "file"), ("PATH", "file"), ("DIR", "dir"), ("RUN", "dir"))


def _families() -> Iterable[str]:
    from zerokit.catalog import models

    return sorted({model.family for model in models.index()})


def _listed(module: str, function: str) -> Callable[[], Iterable[str]]:
    """What a function of the package lists, imported when a shell asks."""
    return lambda: getattr(importlib.import_module(f"zerokit.{module}"), function)()


_models, _gpus = _listed("catalog.models", "names"), _listed("catalog.gpus", "names")
_recipes, _commands = _listed("planner.recipes", "names"), _listed("cli", "commands")
_rules = _listed("linter.explain", "examples")


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
