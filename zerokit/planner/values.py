"""Values of arguments, read with errors that name the argument."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from zerokit.errors import InputError
from zerokit.planner import other_names
from zerokit.units import parse_count, parse_positive_int, parse_share

MAX_GPUS = 1 << 20


def choice(options: Mapping[str, Any], name: str, allowed: tuple[str, ...]) -> str | None:
    """One of ``allowed``; ``None`` when it was not given, or is ``auto``.

    Raises:
        InputError: something else.
    """
    value = options.get(name)
    if value is None or value == "auto":
        return None
    if value not in allowed:
        hint = other_names.VALUES.get((name, str(value).lower()))
        raise InputError(f"⟨{name}⟩ {value}: " + (hint or f"use one of {', '.join(allowed)}"))
    return str(value)


def integer(options: Mapping[str, Any], name: str, maximum: int = 10**9) -> int | None:
    """A whole number; ``None`` when it was not given.

    Raises:
        InputError: not a whole number from 1 to ``maximum``.
    """
    value = options.get(name)
    if value in (None, "auto"):
        return None
    example = "4096" if name == "seq_len" else "8"
    thousands = re.fullmatch(r"(\d+)\s*[kK]", str(value)) if name == "seq_len" else None
    value = int(thousands[1]) * 1024 if thousands else value  # as contexts are named: 4k, 128k
    return parse_positive_int(value, f"⟨{name}⟩", maximum, example=example)


def share(options: Mapping[str, Any], name: str) -> float | None:
    """A share from 0 to below 1; ``None`` when it was not given.

    Raises:
        InputError: not a share.
    """
    value = options.get(name)
    return None if value in (None, "auto") else parse_share(value, f"⟨{name}⟩")


def count(options: Mapping[str, Any], name: str) -> int | None:
    """A count such as 5e8 or 500m; ``None`` when it was not given.

    Raises:
        InputError: not a count.
    """
    value = options.get(name)
    return None if value in (None, "auto") else parse_count(value, f"⟨{name}⟩")
