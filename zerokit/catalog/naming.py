"""How the names of models and GPUs are compared: exact but for case and separators.

A name is split into words of letters and of digits, so that ``gpt2xl``, ``GPT2-XL`` and ``gpt2 xl``
are one name while ``3.1-8b`` and ``3.18b`` stay two: digits never join across a separator.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TypeAlias

from zerokit.suggest import misspelt

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
    return any(
        all(map(_begins, label[at : at + len(words)], words)) for at in range(len(label) - len(words) + 1)
    )


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
    close = misspelt(text.lower().rpartition("/")[2], names, most=3, unfinished=True)
    return f"did you mean {' or '.join(close)}? " if close else ""
