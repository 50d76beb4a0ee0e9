"""Components worked out when they are first read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from zerokit.memory.components import Component, by_key


class LazyComponents(Mapping[str, int]):
    """Components by their keys in JSON, those of no byte left out.

    Read-only; ``make`` is called once, at the first look inside: a search looks only into its winner.
    """

    __slots__ = ("_made", "_make")

    def __init__(self, make: Callable[[], dict[Component, int]]) -> None:
        self._make: Callable[[], dict[Component, int]] | None = make
        self._made: dict[str, int] = {}

    def _content(self) -> dict[str, int]:
        if self._make is not None:
            self._made, self._make = by_key(self._make()), None
        return self._made

    def __getitem__(self, key: str) -> int:
        return self._content()[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._content())

    def __len__(self) -> int:
        return len(self._content())

    def __repr__(self) -> str:
        return repr(self._content())
