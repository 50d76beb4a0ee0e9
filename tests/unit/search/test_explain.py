"""What a plan says of its choice and of the next best."""

from __future__ import annotations

import pytest

from zerokit.domain.strategy import REHEARSED, Candidate
from zerokit.planner.request import resolve
from zerokit.search.explain import runner_up
from zerokit.search.plan import make_plan
from zerokit.values import replace

TINY = {"params": "10m", "gpu": "h200", "seq_len": "128", "micro_batch": "1", "all_gpus": True}
FEWER_GPUS = "a model or batch so small is better trained on fewer GPUs"


@pytest.mark.parametrize(("gpus", "is_advised"), [("1", False), ("2", True)])
def test_fewer_gpus_are_advised_only_where_there_are_several(gpus: str, is_advised: bool) -> None:
    options = {**TINY, "gpus": gpus, "gradient_accumulation": "1"}
    advice = " ".join(make_plan(resolve(options).request, top=1).advice)
    assert "of their peak: launch takes" in advice
    assert (FEWER_GPUS in advice) is is_advised


@pytest.mark.parametrize(
    ("of_choice", "of_other", "is_said"),
    [(REHEARSED, "traced", True), (REHEARSED, REHEARSED, False), ("traced", "traced", False)],
)
def test_a_next_best_that_was_not_rehearsed_is_said_to_be(
    of_choice: str, of_other: str, is_said: bool
) -> None:
    """Beside the rehearsed times of strategies like it its own would read as a contradiction."""
    plan = make_plan(resolve({**TINY, "gpus": "2"}).request, top=2)

    def on(candidate: Candidate, basis: str) -> Candidate:
        return replace(candidate, memory=replace(candidate.memory, basis=basis))

    said = runner_up(on(plan.alternatives[0], of_other), on(plan.chosen, of_choice), timed=True)
    assert ("not rehearsed, estimated" in said) is is_said, said
