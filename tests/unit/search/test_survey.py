"""Of very many settings a survey takes as many as it may, the fastest and the most frugal of each family."""

from __future__ import annotations

from zerokit.planner.request import resolve
from zerokit.search.plan import make_space
from zerokit.search.survey import survey


def test_settings_are_thinned_out_and_their_ends_stay() -> None:
    request = resolve({"model": "llama-3.1-8b", "gpus": "8", "gpu": "h200"}, say=lambda _: None).request
    space = make_space(request)[0]
    everything, legal = survey(space, 10**6)
    thinned, same = survey(space, 300)
    assert legal == same == len(everything) > 1000
    assert 200 < len(thinned) <= 400
    every = {one.strategy: one for one in everything}
    assert all(every[one.strategy] == one for one in thinned)
    for family in {one.strategy.family for one in everything}:
        of_family = [one.memory.min_vram_bytes for one in everything if one.strategy.family == family]
        of_thinned = [one.memory.min_vram_bytes for one in thinned if one.strategy.family == family]
        assert min(of_thinned) <= min(of_family) * 1.02
        times = [one.time.step_seconds for one in everything if one.strategy.family == family]
        assert min(times) == min(one.time.step_seconds for one in thinned if one.strategy.family == family)
