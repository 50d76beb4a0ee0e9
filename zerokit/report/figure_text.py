"""A report's figures as text for people; a dash where one is unknown."""

from __future__ import annotations

import signal as signals

from zerokit.units import format_gib, format_seconds


def size(value: int | float | None) -> str:
    """A size for people; a dash where it is unknown."""
    return "–" if value is None else format_gib(value)


def percent(value: float | None) -> str:
    """A signed error such as ``+1.3 %``."""
    return "–" if value is None else f"{value * 100:+.1f} %"


def seconds(value: float | None) -> str:
    """A duration for people; a dash where it is unknown."""
    return "–" if value is None else format_seconds(value)


def signal_name(number: int | None) -> str:
    """``SIGKILL``; empty for none."""
    if number is None:
        return ""
    try:
        return signals.Signals(number).name
    except ValueError:
        return f"signal {number}"
