"""Which of the ranked strategies are worth a run, or a rehearsal, each."""

from __future__ import annotations

from collections.abc import Sequence

from zerokit.domain.strategy import Candidate

_SAME_TIME = 0.01


def distinct(ranked: Sequence[Candidate], count: int) -> list[Candidate]:
    """The first ``count`` that are worth a run each; what they leave over fills up.

    With nobody to share with, or with little to reduce, stages 0 to 2 are one strategy with three names: such
    a one is not run again while others wait.
    """
    chosen: list[Candidate] = []
    for candidate in ranked:
        if not any(_alike(candidate, other) for other in chosen):
            chosen.append(candidate)
    rest = [candidate for candidate in ranked if candidate not in chosen]
    return sorted([*chosen, *rest][:count], key=ranked.index)


def _alike(first: Candidate, second: Candidate) -> bool:
    first_stage, *rest = first.strategy.family
    second_stage, *also = second.strategy.family
    similar_time = abs(first.time.step_seconds / second.time.step_seconds - 1) < _SAME_TIME
    is_alone = first.strategy.data_parallel * first.strategy.sequence_parallel == 1
    return rest == also and 3 not in (first_stage, second_stage) and (is_alone or similar_time)
