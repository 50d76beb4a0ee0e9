"""How the names of models and GPUs are compared: exact but for case and separators.

A name is split into words of letters and of digits, so that ``gpt2xl``, ``GPT2-XL`` and ``gpt2 xl``
are one name while ``3.1-8b`` and ``3.18b`` stay two: digits never join across a separator.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Sequence
from typing import TypeAlias

from zerokit.suggest import alternatives, misspelt, much_alike

Words: TypeAlias = tuple[str, ...]

_WORD = re.compile(r"[a-z]+|\d+(?:\.\d+)*|/")
_SEPARATORS = re.compile(r"[\s\-_.,()]*")
_MOST_LISTED = 10


def split(text: str) -> Words:
    """The words of a name in lower case; empty where it holds a character that no name has.

    A slash is a word of its own: it parts a repository from its organisation.
    """
    text = text.strip().rstrip("/").lower()
    words, at = [], 0
    while at < len(text):
        separators = _SEPARATORS.match(text, at)
        at = separators.end() if separators else at
        if at == len(text):
            break
        word = _WORD.match(text, at)
        if word is None:
            return ()
        words.append(word.group())
        at = word.end()
    return tuple(words)


def contains(label: Words, words: Words) -> bool:
    """Whether ``words`` stand in ``label`` one after the other: an incomplete name of it.

    A whole number stands for its versions too: ``llama 3`` is part of ``llama-3.1-8b``.
    """
    return skipped(label, words) == 0


def skipped(label: Words, words: Words) -> int | None:
    """The fewest words of ``label`` that stand between ``words``, in their order; None: they are not in it.

    A number stays with the letters after it (``14b``): ``qwen 14b`` is found in ``qwen-2.5-14b``, with one
    word skipped, and ``llama 3b`` not in ``llama-3-8b``.
    """
    fewest: dict[int, int] = {at: 0 for at, word in enumerate(label) if _begins(word, words[0])}
    for before, word in itertools.pairwise(words):
        following: dict[int, int] = {}
        for start, gap in fewest.items():
            end = start + 2 if before[0].isdigit() and word.isalpha() else len(label)
            for at in range(start + 1, min(end, len(label))):
                if _begins(label[at], word):
                    following[at] = min(following.get(at, len(label)), gap + at - start - 1)
        fewest = following
    return min(fewest.values(), default=None)


def could_mean(
    words_skipped: Iterable[tuple[str, int | None]], *, closest_only: bool = True
) -> tuple[str, ...]:
    """The names that an incomplete one could mean, of all names with what :func:`skipped` says of a label of
    theirs: those in which the words stand in order, the fewest skipped first.

    Args:
        closest_only: those with nothing skipped alone, where there are any.
    """
    least: dict[str, int] = {}
    for name, between in words_skipped:
        if between is not None:
            least[name] = min(between, least.get(name, between))
    exact = [name for name in least if not least[name]] if closest_only else []
    return tuple(exact or sorted(least, key=lambda name: least[name]))


def _begins(word: str, prefix: str) -> bool:
    return word == prefix or (prefix.isdigit() and word.startswith(f"{prefix}."))


def incomplete(candidates: Sequence[str]) -> str:
    """The part of a message that lists what an incomplete name could mean."""
    if len(candidates) == 1:
        return f"is incomplete: it could be {candidates[0]}; write that name"
    more = f" and {len(candidates) - _MOST_LISTED} more" if len(candidates) > _MOST_LISTED else ""
    return f"could be any of: {', '.join(candidates[:_MOST_LISTED])}{more}; name one of them"


def suggestions(text: str, names: Sequence[str]) -> str:
    """``did you mean …?`` with a space after it, or nothing where no name is alike."""
    typed = text.lower().rpartition("/")[2]
    close = misspelt(typed, names, most=_MOST_LISTED, unfinished=True) or much_alike(typed, names)
    return f"did you mean {alternatives(close)}? " if close else ""
