"""A library's own methods, with something of ours around them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any


def within(cls: Any, name: str, manager: Callable[[], AbstractContextManager[Any]]) -> None:
    """Each call of a class's method runs within a context of its own; a class without the method stays."""
    original = getattr(cls, name, None)
    if original is None:
        return

    @functools.wraps(original)
    def wrapped(self: Any, *args: Any, **kwargs: Any) -> Any:
        with manager():
            return original(self, *args, **kwargs)

    setattr(cls, name, wrapped)


def before(cls: Any, name: str, action: Callable[[], None]) -> None:
    """``action`` comes before each call of a class's method; a class without the method stays."""
    original = getattr(cls, name, None)
    if original is None:
        return

    @functools.wraps(original)
    def wrapped(self: Any, *args: Any, **kwargs: Any) -> Any:
        action()
        return original(self, *args, **kwargs)

    setattr(cls, name, wrapped)


def after(cls: Any, name: str, action: Callable[[Any], None]) -> None:
    """``action`` gets the object after each call of a class's method that raised nothing.

    A class without the method stays as it is.
    """
    original = getattr(cls, name, None)
    if original is None:
        return

    @functools.wraps(original)
    def wrapped(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(self, *args, **kwargs)
        action(self)
        return result

    setattr(cls, name, wrapped)
