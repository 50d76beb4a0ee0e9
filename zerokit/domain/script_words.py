"""A script's arguments, read as options with their values, whatever its parser makes of them."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator


def by_option(words: Iterable[str]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Each option with its values; what stands before the first is that of an empty name."""
    option: str = ""
    values: list[str] = []
    for word in itertools.chain(words, ["--"]):
        if not word.startswith("--"):
            values.append(word)
            continue
        if option or values:
            yield option, tuple(values)
        option, equals, value = word.partition("=")
        values = [value] if equals else []
