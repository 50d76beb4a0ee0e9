"""How long this machine takes for a call of a small Python function."""

from __future__ import annotations

import time


class _Node:
    def __init__(self) -> None:
        self.seen: dict[int, int] = {}

    def visit(self, number: int) -> int:
        self.seen[number & 255] = number
        return len(self.seen)


def python_call_seconds(calls: int) -> float:
    """Seconds of one call, the mean of ``calls``."""
    visit = _Node().visit
    began = time.perf_counter()
    for number in range(calls):
        visit(number)
    return (time.perf_counter() - began) / calls
