"""In what the arguments of two commands differ, apart from where they write."""

from __future__ import annotations

import itertools
import shlex
from collections.abc import Iterable, Iterator, Sequence

_MOST_NAMED = 4
_OUTPUTS = frozenset(
    ("output_dir", "output_path", "output_folder", "output", "out_dir", "out", "save_dir", "save_path",
     "save_folder", "logging_dir", "log_dir", "log_path", "run_name")
)  # fmt: skip
"""What scripts call where they write to: neither memory nor time depends on it."""


def unlike_arguments(rehearsed: Sequence[str], given: Sequence[str]) -> tuple[str, ...]:
    """Where they differ, but for what only says where to write: ``--max_steps 8, not 4``.

    Args:
        rehearsed: the arguments of the command that a plan was rehearsed with. given: those of now.
    """
    before, now = dict(_by_option(rehearsed)), dict(_by_option(given))
    return tuple(
        _words(option, before.get(option), now.get(option))
        for option in dict.fromkeys((*before, *now))
        if before.get(option) != now.get(option) and option.lstrip("-").replace("-", "_") not in _OUTPUTS
    )


def joined(unlike: Sequence[str]) -> str:
    """Them in a sentence, the first few."""
    more = len(unlike) - _MOST_NAMED
    return "; ".join((*unlike[:_MOST_NAMED], *([f"and {more} more"] if more > 0 else [])))


def _by_option(words: Iterable[str]) -> Iterator[tuple[str, tuple[str, ...]]]:
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


def _words(option: str, before: tuple[str, ...] | None, now: tuple[str, ...] | None) -> str:
    if before is None:
        return f"without {_shown(option, now)}"
    if now is None:
        return f"{_shown(option, before)}, which is not given"
    return f"{_shown(option, before)}, not {shlex.join(now) or 'without a value'}"


def _shown(option: str, values: tuple[str, ...] | None) -> str:
    return " ".join(filter(None, (option, shlex.join(values or ()))))
