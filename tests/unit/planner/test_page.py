"""A plan's page says what it is a plan of, how it was made, and what to run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from zerokit import __version__, planner
from zerokit.cli import run
from zerokit.domain import strategy
from zerokit.domain.deepspeed_settings import DEEPSPEED_VERSION
from zerokit.planner.page import PlanPage, Survey, fastest_by_family, frontier, plan_page, survey, surveyed
from zerokit.planner.plan_result import PlanResult
from zerokit.planner.request import resolve
from zerokit.search.plan import make_space

REQUEST = {"model": "llama-3.1-8b", "gpus": "8", "gpu": "h200"}


def text_of(page: str) -> str:
    return " ".join(re.sub(r"<style>.*?</style>|<[^>]+>", " ", page, flags=re.DOTALL).split())


def test_what_the_command_line_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SOME_TOKEN", "a-secret-of-the-user")
    words = ["plan", "--model", "llama-3.1-8b", "--gpus", "8", "--gpu", "h200", "-q", "--html", "plan.html"]
    assert run([*words, "--out", "a-secret-of-the-user"]) == 0
    page = Path("plan.html").read_text()
    assert "<title>llama-3.1-8b on 8 × h200 (140.4 GiB each) · zerokit plan</title>" in page
    text = text_of(page)
    assert f"command zerokit {' '.join(words)} --out " in text
    versions = f"zerokit {__version__} DeepSpeed {DEEPSPEED_VERSION}"
    shown = ("model llama-3.1-8b, 8.03B parameters", "strategy ZeRO-", "batch 4 per GPU ×", "8 × h200")
    reasons = ("require more GPU memory than is available", "offload the weights below ZeRO-3")
    for part in (*shown, versions, "predicted: activations", *reasons):
        assert part in text, part
    assert re.search(r"made 20\d\d-\d\d-\d\d \d\d:\d\d UTC", text)
    command = text[text.index("command ") : text.index(" made 20")]
    assert "a-secret-of-the-user" not in command


def test_the_users_script_stands_in_the_next_command() -> None:
    result = planner.plan(REQUEST, recipe=None, overrides=(), out=None, top=5, say=lambda _: None)
    page = PlanPage(
        folder="a folder", script=("my train.py", "--lr", "1"), program="./launch.sh", written_at=0.0
    )
    source = plan_page(result, page, others=Survey())
    assert "<title>my train.py, llama-3.1-8b on 8 × h200 (140.4 GiB each) · zerokit plan</title>" in source
    text = text_of(source)
    assert "./launch.sh launch --plan &#39;a folder&#39; &#39;my train.py&#39; --lr 1" in text
    assert "made 1970-01-01 00:00 UTC" in text and "The script must" not in text
    parts = result.chosen.estimate.time_parts
    assert "Where time goes" in text and all(strategy.label(name) in text for name in parts)
    assert "train.py" in text_of(plan_page(result, PlanPage(folder="x", written_at=0.0), others=Survey()))


def test_of_a_plan_for_a_script_only_what_was_ranked_is_drawn() -> None:
    result = planner.plan(REQUEST, recipe=None, overrides=(), out=None, top=3, say=lambda _: None)
    others = Survey(fitting=result.plan.alternatives, legal=3)
    source = plan_page(result, PlanPage(folder="x", written_at=0.0), others=others)
    assert "The choice and 2 other strategies that fit." in text_of(source)
    assert "does not fit" not in source.partition("Memory required per GPU")[2].partition("</figure>")[0]


def planned(top: int = 5, **options: Any) -> PlanResult:
    request = {"model": "llama-3.1-8b", "gpus": "8", "gpu": "h200", "seq_len": "4096", **options}
    return planner.plan(request, recipe=None, overrides=(), out=None, top=top, say=lambda _: None)


@pytest.mark.slow
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


@pytest.mark.slow
def test_of_a_plan_that_leaves_gpus_idle_it_is_for_those_that_are_used() -> None:
    result = planned(model="gpt2", gpus="16", nodes="2", global_batch="16", seq_len="128")
    found = survey(result)
    used = {one.strategy.world_size for one in (*found.fitting, *found.misfits)}
    assert used == {result.cluster.gpus}


def test_settings_are_thinned_out_and_their_ends_stay() -> None:
    request = resolve({"model": "llama-3.1-8b", "gpus": "8", "gpu": "h200"}, say=lambda _: None).request
    space = make_space(request)[0]
    everything, legal = surveyed(space, 10**6)
    thinned, same = surveyed(space, 300)
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
