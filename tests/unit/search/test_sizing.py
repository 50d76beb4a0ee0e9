"""Which of the ranked plans ``zerokit tune`` runs: the fastest first, none twice under other names."""

from __future__ import annotations

from tests.support.requests import request_for
from zerokit.domain.job import Job
from zerokit.domain.strategy import Candidate
from zerokit.search.plan import make_plan
from zerokit.search.sizing import distinct


def ranked(count: int) -> list[Candidate]:
    plan = make_plan(request_for("llama-3.2-1b", "h200", count, job=Job(seq_len=2048)), top=12)
    return [plan.chosen, *plan.alternatives]


def test_on_one_gpu_a_stage_is_not_tried_again_under_another_name() -> None:
    plans = ranked(1)
    stages = [c.strategy.settings.zero.stage for c in plans]
    assert {0, 1, 2} <= set(stages)  # the same kernels on one GPU, but for those that gather gradients
    chosen = distinct(plans, 3)
    assert chosen[0] == plans[0]
    assert len({(c.strategy.family[1:], c.strategy.settings.zero.stage == 3) for c in chosen}) == 3
    assert [plans.index(c) for c in chosen] == sorted(plans.index(c) for c in chosen)


def test_as_many_as_asked_for_when_there_are_as_many() -> None:
    plans = ranked(2)
    assert [len(distinct(plans, count)) for count in (1, 2, 5, 12, 40)] == [1, 2, 5, len(plans), len(plans)]
    assert distinct(plans, len(plans)) == plans
