"""The rank that a report speaks of where it shows one: the one whose measured peak is highest."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

Rank = TypeVar("Rank")


def worst_rank(ranks: Sequence[Rank], peak_bytes: Callable[[Rank], int | None]) -> Rank:
    """The rank with the highest peak, the first of several alike; one without a figure comes last.

    Args:
        ranks: at least one.
        peak_bytes: the figure that decides, in bytes: of the GPU where it was measured, else of the host.
    """
    return max(ranks, key=lambda rank: peak_bytes(rank) or 0)
