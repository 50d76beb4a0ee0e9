"""All strategies that a plan chose from: none is faster than the choice, and the frontier is Pareto's."""

from __future__ import annotations

from typing import Any

import pytest

from zerokit import planner
from zerokit.planner.plan_result import PlanResult
from zerokit.planner.survey import fastest_by_family, frontier, survey


def planned(top: int = 5, **options: Any) -> PlanResult:
    request = {"model": "llama-3.1-8b", "gpus": "8", "gpu": "h200", "seq_len": "4096", **options}
    return planner.plan(request, recipe=None, overrides=(), out=None, top=top, say=lambda _: None)


@pytest.mark.parametrize("options", [{}, {"zero": "3"}, {"method": "lora", "gpus": "2", "gpu": "rtx-4090"}])
def test_it_holds_what_the_search_found_and_nothing_better(options: dict[str, str]) -> None:
    result = planned(top=100, **options)
    found = survey(result)
    chosen = result.plan.chosen
    assert found.is_whole and found.legal >= 1 + len(found.fitting) + len(found.misfits)
    assert all(one.time.step_seconds >= chosen.time.step_seconds * (1 - 1e-9) for one in found.fitting)
    by_strategy = {one.strategy: one for one in found.fitting}
    for ranked in result.plan.alternatives:
        assert by_strategy[ranked.strategy].memory.min_vram_bytes == ranked.memory.min_vram_bytes
        assert by_strategy[ranked.strategy].time.step_seconds == pytest.approx(ranked.time.step_seconds)
    limit = result.cluster.gpu.driver_vram_bytes
    host = result.cluster.host_limit_bytes or 0
    assert all(one.memory.min_vram_bytes <= limit for one in found.fitting)
    for one in found.misfits:
        assert one.memory.min_vram_bytes > limit or one.memory.host_bytes_per_node > host


def test_no_candidate_beats_one_on_the_frontier() -> None:
    result = planned()
    others = survey(result).fitting
    best = frontier(others)
    for one in best:
        time, size = one.time.step_seconds, one.memory.min_vram_bytes
        assert not any(
            (other.time.step_seconds, other.memory.min_vram_bytes) != (time, size)
            and other.time.step_seconds <= time
            and other.memory.min_vram_bytes <= size
            for other in others
        )
    beaten = [one for one in others if one not in best]
    for one in beaten:
        assert any(
            other.time.step_seconds <= one.time.step_seconds
            and other.memory.min_vram_bytes <= one.memory.min_vram_bytes
            for other in best
        )


def test_the_first_of_each_family_is_its_fastest() -> None:
    others = survey(planned()).fitting
    firsts = fastest_by_family(others)
    assert len({one.strategy.family for one in others}) == len(firsts) < len(others)
    for first in firsts:
        same = [one for one in others if one.strategy.family == first.strategy.family]
        assert first.time.step_seconds == min(one.time.step_seconds for one in same)


def test_of_a_plan_that_leaves_gpus_idle_it_is_for_those_that_are_used() -> None:
    result = planned(model="gpt2", gpus="16", nodes="2", global_batch="16", seq_len="128")
    found = survey(result)
    used = {one.strategy.world_size for one in (*found.fitting, *found.misfits)}
    assert used == {result.cluster.gpus}
