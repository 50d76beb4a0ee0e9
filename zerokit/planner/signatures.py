"""The signature and the help of the library's functions: their own arguments and those of a plan."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from zerokit.fields import plain
from zerokit.planner.options import ELSEWHERE, OPTIONS, PlanOptions

F = TypeVar("F", bound=Callable[..., Any])
_WIDTH = 110
_ENTRY = re.compile(r"^(?P<indent> +)\*\*options:.*?(?=\n\n)", re.MULTILINE | re.DOTALL)


def shows_options(function: F) -> F:
    """What ``help()`` and tab completion show: the options by name, and what each means, out of the table.

    They stand in the docstring where its Args have ``**options``.
    """
    signature = inspect.signature(function)
    parameters = [p for p in signature.parameters.values() if p.kind is not inspect.Parameter.VAR_KEYWORD]
    kinds = PlanOptions.__annotations__
    named = [
        inspect.Parameter(
            option.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=False if option.is_flag else "auto" if option.name == "device" else None,
            annotation=getattr(kinds[option.name], "__forward_arg__", kinds[option.name]),
        )
        for option in OPTIONS
    ]
    function.__signature__ = signature.replace(parameters=[*parameters, *named])  # type: ignore[attr-defined]
    function.__doc__ = _ENTRY.sub(
        lambda entry: "\n".join(_meanings(function.__name__, entry["indent"])), function.__doc__ or ""
    )
    return function


def _meanings(name: str, indent: str) -> Iterator[str]:
    """A line for each option that the function of this name takes, wrapped."""
    elsewhere = ELSEWHERE.get(name, {})
    for option in OPTIONS:
        text = elsewhere.get(option.name, option.help)
        if text is not None:
            yield textwrap.fill(
                f"{option.name}: {plain(text)}", _WIDTH, initial_indent=indent,
                subsequent_indent=indent + " " * 4, break_on_hyphens=False,
            )  # fmt: skip
