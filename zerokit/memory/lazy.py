"""Components worked out when they are first read: a search looks only into its winner."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Generic, TypeVar

Value = TypeVar("Value")


class LazyMapping(Mapping[str, Value], Generic[Value]):
    """Read-only; ``make`` is called once, at the first look inside."""

    __slots__ = ("_made", "_make")

    def __init__(self, make: Callable[[], Mapping[str, Value]]) -> None:
        self._make: Callable[[], Mapping[str, Value]] | None = make
        self._made: Mapping[str, Value] = {}

    def _content(self) -> Mapping[str, Value]:
        if self._make is not None:
            self._made, self._make = self._make(), None
        return self._made

    def __getitem__(self, key: str) -> Value:
        return self._content()[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._content())

    def __len__(self) -> int:
        return len(self._content())

    def __repr__(self) -> str:
        return repr(self._content())
