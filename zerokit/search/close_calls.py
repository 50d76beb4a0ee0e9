"""How sure a time is, and where what nobody measured decides between two plans."""

from __future__ import annotations

from collections.abc import Sequence

from zerokit.domain.strategy import Candidate
from zerokit.search.explain import strategy_words
from zerokit.timing.evidence import measured_on_no_machine
from zerokit.timing.ranges import step_range, turned_by
from zerokit.timing.step_time import TimeModel
from zerokit.values import replace


def with_range(candidate: Candidate, timing: TimeModel) -> Candidate:
    """The candidate with the range of its step time, and what of its hardware was never measured."""
    seconds_range = step_range(timing, candidate.strategy, candidate.memory)
    none = measured_on_no_machine(timing, candidate.strategy)
    time = replace(candidate.time, step_seconds_range=seconds_range, measured_on_no_machine=none)
    return replace(candidate, time=time)


def close_call(chosen: Candidate, others: Sequence[Candidate], timing: TimeModel) -> tuple[str, ...]:
    """The first of the next best that may be faster than the choice, and what tells; empty: none may."""
    for rival in others:
        turn = turned_by(timing, chosen.strategy, rival.strategy)
        if turn is not None:
            what_tells = f"{turn.told_by} or `zerokit tune`" if turn.told_by else "`zerokit tune`"
            words = strategy_words(rival.strategy)
            return (
                f"{turn.name} decides between the choice and {words}: {what_tells} tells which is faster",
            )
    return ()
