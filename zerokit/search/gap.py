"""Where something begins or ceases to fit: a gap between two numbers, halved until they are neighbours."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

Found = TypeVar("Found")


def halved(
    misfit: int, fitting: int, found: Found, attempt: Callable[[int], Found | None]
) -> tuple[int, Found]:
    """The number next to one that does not fit, and what fits on it.

    Args:
        misfit: does not fit.
        fitting: does, above or below the misfit.
        found: what fits on it.
        attempt: what fits on a number; None: nothing.
    """
    while abs(fitting - misfit) > 1:
        middle = (misfit + fitting) // 2
        between = attempt(middle)
        if between is None:
            misfit = middle
        else:
            fitting, found = middle, between
    return fitting, found
