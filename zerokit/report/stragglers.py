"""The rank that the others wait for, from the seconds that each spends in collectives."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from zerokit.units import format_seconds

_SHARE = 0.15  # of the time since the first step
_SECONDS_A_STEP = 0.02
_FEWEST_STEPS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Straggler:
    """``seconds``: that the others wait for ``rank`` in each step; ``phase``: where its own time goes."""

    rank: int
    seconds: float
    share: float
    phase: str

    def __str__(self) -> str:
        where = "between steps (data, logging)" if self.phase == "other" else f"in {self.phase}"
        return (
            f"the others wait for rank {self.rank}: {format_seconds(self.seconds)} a step "
            f"({self.share:.0%} of their time), which it spends {where}"
        )


def find_straggler(ticks: Mapping[int, Mapping[str, Any]]) -> Straggler | None:
    """The rank that waits least, where the others wait for it; None where nobody does or nobody tells.

    Args:
        ticks: each rank's newest record; ``work`` holds seconds and waited seconds of each phase since the
            first step (:mod:`zerokit.launcher.rank.waits`).
    """
    work = {rank: known for rank, tick in ticks.items() if (known := _work(tick.get("work")))}
    steps = min((int(ticks[rank].get("steps") or 0) for rank in work), default=0) - 1
    if len(work) < 2 or len(work) < len(ticks) or steps < _FEWEST_STEPS:
        return None
    waited = {rank: sum(wait for _, wait in phases.values()) for rank, phases in work.items()}
    least = min(waited, key=lambda rank: waited[rank])
    others = [rank for rank in work if rank != least]
    total = statistics.median(sum(seconds for seconds, _ in work[rank].values()) for rank in others)
    held_up = statistics.median(waited[rank] for rank in others) - waited[least]
    if total <= 0 or held_up < _SHARE * total or held_up < _SECONDS_A_STEP * steps:
        return None

    def own(rank: int, phase: str) -> float:
        seconds, wait = work[rank].get(phase, (0.0, 0.0))
        return seconds - wait

    phase = max(
        work[least], key=lambda name: own(least, name) - statistics.median(own(r, name) for r in others)
    )
    return Straggler(rank=least, seconds=held_up / steps, share=held_up / total, phase=phase)


def _work(value: object) -> dict[str, tuple[float, float]]:
    if not isinstance(value, dict):
        return {}
    return {
        str(name): (float(pair[0]), float(pair[1]))
        for name, pair in value.items()
        if isinstance(pair, list) and len(pair) == 2 and all(isinstance(part, int | float) for part in pair)
    }
