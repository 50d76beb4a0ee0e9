"""Names of arguments inside messages: the library says ``seq_len``, the command line ``--seq-len``.

A message that names an argument marks it, ``⟨seq_len⟩``, and says nothing of how it is spelt. Who shows the
message decides: :func:`plain` for Python and files, :func:`as_options` for the command line. A switch to turn
on is marked ``⟨no_plan=True⟩``; words that hold only where options are typed, ``⟪ before the script⟫``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping

Say = Callable[[str], None]
"""Hears, line by line, of what takes long, or of what is worth knowing."""
_MARKED = re.compile(r"⟨([a-z_]+)(=True)?⟩")
_ONLY_TYPED = re.compile(r"⟪([^⟫]*)⟫")
_BEFORE_VALUE = re.compile(r"⟨([a-z_]+)⟩( (?!or ⟨)(?=[^\s⟨]))?")
"""An argument, and the space before its value; there is none in a choice of names, ``⟨gpu⟩ or ⟨gpus⟩``."""


def plain(text: str) -> str:
    """The message with the names of Python arguments and of recipe keys: ``seq_len``.

    >>> plain("⟨seq_len⟩ 8192 is beyond the model's 4096 positions")
    "seq_len 8192 is beyond the model's 4096 positions"
    >>> plain("with ⟨accept_mismatch=True⟩⟪ before the script⟫")
    'with accept_mismatch=True'
    """
    return _MARKED.sub(r"\1\2", _ONLY_TYPED.sub("", text))


def as_options(text: str) -> str:
    """The message with the options of the command line: ``--seq-len``.

    >>> as_options("⟨seq_len⟩ 8192 is beyond the model's 4096 positions")
    "--seq-len 8192 is beyond the model's 4096 positions"
    >>> as_options("with ⟨accept_mismatch=True⟩⟪ before the script⟫")
    'with --accept-mismatch before the script'
    """
    return _MARKED.sub(lambda name: "--" + name[1].replace("_", "-"), _ONLY_TYPED.sub(r"\1", text))


def as_keys(text: str, switches: Mapping[str, bool], sign: str) -> str:
    """The message with keys and values as a recipe or an override has them; what is no key stays an option.

    >>> as_keys("use ⟨seq_len⟩ TOKENS, or ⟨out⟩ DIR", {"seq_len": False}, ": ")
    'use seq_len: TOKENS, or --out DIR'
    >>> as_keys("did you mean ⟨seq_len⟩?", {"seq_len": False}, "=")
    "did you mean 'seq_len'?"

    Args:
        switches: of each key, whether it is a switch.
        sign: between a key and its value.
    """

    def written(found: re.Match[str]) -> str:
        name, space = found[1], found[2] or ""
        if name not in switches:
            return as_options(f"⟨{name}⟩") + space
        if switches[name]:
            return f"{name}{sign}true{space}"
        return f"{name}{sign}" if space else repr(name)

    return _BEFORE_VALUE.sub(written, text)


def all_as_options(texts: Iterable[str]) -> tuple[str, ...]:
    """Several messages with the options of the command line."""
    return tuple(as_options(text) for text in texts)


def first(text: str) -> str | None:
    """The first argument that a message names; None where it names none."""
    match = _MARKED.search(text)
    return match[1] if match else None


def named(text: str) -> tuple[str, ...]:
    """The arguments that a message names, each once."""
    return tuple(dict.fromkeys(match[1] for match in _MARKED.finditer(text)))


def silent(line: str) -> None:
    """Says nothing."""
