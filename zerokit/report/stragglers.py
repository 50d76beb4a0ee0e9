"""The rank that the others wait for, from the seconds that each spends in collectives.

CPU ranks tell what their hosts waited since the first step; under NCCL the GPUs tell what they waited in
sampled steps, and those that all ranks sampled are compared.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from zerokit.units import format_seconds

_SHARE = 0.15  # of the time since the first step
_SECONDS_A_STEP = 0.02
_FEWEST_STEPS = 4
_FEWEST_SAMPLES = 3
_OF_SAMPLES = 0.75  # in which that rank must wait least
_Phases = Mapping[str, tuple[float, float]]
_Work = Mapping[int, _Phases]
"""Seconds of each rank's phases, and those of them that it waited."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Straggler:
    """``seconds``: that the others wait for ``rank`` in each step; ``phase``: where its own time goes.

    ``factor``: its own time, without waits, over the others' median; None: theirs is nothing.
    """

    rank: int
    seconds: float
    share: float
    phase: str
    factor: float | None

    def __str__(self) -> str:
        location = "between steps (data, logging)" if self.phase == "other" else f"in {self.phase}"
        own = f"; its own work takes {self.factor:.1f} times theirs" if self.factor else ""
        return (
            f"the others wait for rank {self.rank}: {format_seconds(self.seconds)} a step "
            f"({self.share:.0%} of their time), which it spends {location}{own}; look at what it alone does, "
            "at its batches, and at other processes on its cores or GPU"
        )


def find_straggler(ticks: Mapping[int, Mapping[str, Any]]) -> Straggler | None:
    """The rank that waits least, where the others wait for it; None where nobody does or nobody tells.

    Args:
        ticks: each rank's newest record; ``work`` holds seconds and waited seconds of each phase since the
            first step and ``sampled_work`` those of steps by
            their number (:mod:`zerokit.launcher.rank.waits`).

    One rank saves for all by design: what the others wait for that is none of a step.
    """
    if len(ticks) < 2:
        return None
    samples = {rank: _samples(tick.get("sampled_work")) for rank, tick in ticks.items()}
    if any(samples.values()):
        return _of_samples(samples)
    work = {rank: phase_seconds for rank, tick in ticks.items() if (phase_seconds := _work(tick.get("work")))}
    steps = min((int(ticks[rank].get("steps") or 0) for rank in work), default=0) - 1
    if len(work) < len(ticks) or steps < _FEWEST_STEPS:
        return None
    return _waited_for(work, steps)


def why_unknown(ticks: Mapping[int, Mapping[str, Any]]) -> str | None:
    """Why the GPUs did not measure who waits for whom; None where they did, or nothing is known."""
    for rank, tick in sorted(ticks.items()):
        sampling = tick.get("sampling")
        if isinstance(sampling, dict) and (reason := sampling.get("why_not")):
            return f"who waits for whom was not measured: {str(reason)[:200]} (rank {rank})"
    return None


def _of_samples(samples: Mapping[int, Mapping[str, _Phases]]) -> Straggler | None:
    """From the steps that all ranks sampled; one that is slow now and then is none."""
    common = set.intersection(*(set(steps) for steps in samples.values()))
    if len(common) < _FEWEST_SAMPLES:
        return None
    straggler = _waited_for(
        {rank: _sum([steps[step] for step in common]) for rank, steps in samples.items()}, len(common)
    )
    if straggler is None:
        return None
    waited = [
        {rank: sum(w for _, w in steps[step].values()) for rank, steps in samples.items()} for step in common
    ]
    least = sum(min(seconds, key=lambda rank: seconds[rank]) == straggler.rank for seconds in waited)
    return straggler if least >= _OF_SAMPLES * len(common) else None


def _sum(works: list[_Phases]) -> _Phases:
    names = {name for work in works for name in work}
    return {
        name: (
            sum(work[name][0] for work in works if name in work),
            sum(work[name][1] for work in works if name in work),
        )
        for name in sorted(names)
    }


def _waited_for(work: _Work, steps: int) -> Straggler | None:
    saved = _seconds_longer(work, "save")
    waited = {
        rank: max(0.0, sum(wait for _, wait in phases.values()) - (sum(saved.values()) - saved[rank]))
        for rank, phases in work.items()
    }
    least = min(waited, key=lambda rank: waited[rank])
    rest = [rank for rank in work if rank != least]
    total = statistics.median(sum(seconds for seconds, _ in work[rank].values()) for rank in rest)
    held_up = statistics.median(waited[rank] for rank in rest) - waited[least]
    if total <= 0 or held_up < _SHARE * total or held_up < _SECONDS_A_STEP * steps:
        return None

    phases = [name for name in work[least] if name != "save"]
    phase = max(phases, key=lambda name: _seconds_longer(work, name)[least], default="other")
    own = {
        rank: sum(seconds - wait for name, (seconds, wait) in phases.items() if name != "save")
        for rank, phases in work.items()
    }
    usual = statistics.median(own[rank] for rank in rest)
    return Straggler(
        rank=least, seconds=held_up / steps, share=held_up / total, phase=phase,
        factor=own[least] / usual if usual > 0 else None,
    )  # fmt: skip


def _seconds_longer(work: _Work, phase: str) -> dict[int, float]:
    """How much longer than half of the ranks (of two: than the other) each works in a phase; or 0."""
    own = {rank: seconds - wait for rank in work for seconds, wait in [work[rank].get(phase, (0.0, 0.0))]}
    usual = statistics.median_low(own.values())
    return {rank: max(0.0, seconds - usual) for rank, seconds in own.items()}


def _samples(value: object) -> dict[str, _Phases]:
    if not isinstance(value, dict):
        return {}
    return {str(step): work for step, phases in value.items() if (work := _work(phases))}


def _work(value: object) -> dict[str, tuple[float, float]]:
    if not isinstance(value, dict):
        return {}
    return {
        str(name): (float(pair[0]), float(pair[1]))
        for name, pair in value.items()
        if isinstance(pair, list) and len(pair) == 2 and all(isinstance(part, int | float) for part in pair)
    }
