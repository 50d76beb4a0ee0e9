"""The signature of the library's functions: their own arguments and, by name, those of a plan."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeVar

from zerokit.planner.options import OPTIONS, PlanOptions

F = TypeVar("F", bound=Callable[..., Any])


def shows_options(function: F) -> F:
    """What ``help()`` and tab completion show: the options by name, as the table has them."""
    signature = inspect.signature(function)
    parameters = [p for p in signature.parameters.values() if p.kind is not inspect.Parameter.VAR_KEYWORD]
    kinds = PlanOptions.__annotations__
    named = [
        inspect.Parameter(
            option.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=False if option.is_flag else "auto" if option.name == "device" else None,
            annotation=kinds[option.name],
        )
        for option in OPTIONS
    ]
    function.__signature__ = signature.replace(parameters=[*parameters, *named])  # type: ignore[attr-defined]
    return function
