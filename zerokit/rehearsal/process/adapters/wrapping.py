"""A library's own methods, with something of ours around them; a class without the method stays as it is."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

Method = Callable[..., Any]


def within(cls: Any, name: str, manager: Callable[[], AbstractContextManager[Any]]) -> None:
    """Each call of a class's method runs within a context of its own."""

    def made(original: Method) -> Method:
        def wrapped(self: Any, *args: Any, **kwargs: Any) -> Any:
            with manager():
                return original(self, *args, **kwargs)

        return wrapped

    _replace(cls, name, made)


def before(cls: Any, name: str, action: Callable[[], None]) -> None:
    """``action`` comes before each call of a class's method."""

    def made(original: Method) -> Method:
        def wrapped(self: Any, *args: Any, **kwargs: Any) -> Any:
            action()
            return original(self, *args, **kwargs)

        return wrapped

    _replace(cls, name, made)


def after(cls: Any, name: str, action: Callable[[Any], None]) -> None:
    """``action`` gets the object after each call of a class's method that raised nothing."""

    def made(original: Method) -> Method:
        def wrapped(self: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(self, *args, **kwargs)
            action(self)
            return result

        return wrapped

    _replace(cls, name, made)


def _replace(cls: Any, name: str, made: Callable[[Method], Method]) -> None:
    original = getattr(cls, name, None)
    if original is not None:
        setattr(cls, name, functools.wraps(original)(made(original)))
