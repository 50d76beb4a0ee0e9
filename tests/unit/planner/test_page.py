"""A plan's page says what it is a plan of, how it was made, and what to run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from zerokit import __version__, planner
from zerokit.cli import run
from zerokit.domain import time_parts
from zerokit.domain.deepspeed_settings import DEEPSPEED_VERSION
from zerokit.planner.page import PlanPage, plan_page
from zerokit.planner.survey import Survey, frontier, survey
from zerokit.search.explain import strategy_words

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
    assert "Where time goes" in text and all(time_parts.label(name) in text for name in parts)
    assert "train.py" in text_of(plan_page(result, PlanPage(folder="x", written_at=0.0), others=Survey()))


def test_the_page_of_a_plan_for_nodes_names_the_job_as_the_terminal_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    request = ("--params", "70b", "--gpus", "16", "--nodes", "2", "--gpu", "h200")
    assert run(["plan", *request, "--html", "plan.html"]) == 0
    command = "zerokit emit sbatch train.py > job.sh"
    assert command in capsys.readouterr().out
    assert command.replace(">", "&gt;") in text_of(Path("plan.html").read_text())


def test_the_frontier_is_drawn_among_all_candidates_with_the_words_of_their_strategies() -> None:
    result = planner.plan(REQUEST, recipe=None, overrides=(), out=None, top=5, say=lambda _: None)
    others = survey(result)
    source = plan_page(result, PlanPage(folder="x", written_at=0.0), others=others)
    assert len(source.encode()) < 1_000_000
    counts = f"Of {result.candidates:,} candidates the rules allow {others.legal:,}, and "
    assert f"{counts}{len(others.fitting) + 1:,} fit." in text_of(source)
    drawn = source.partition("Memory required per GPU")[2].partition("</figure>")[0]
    titles = set(re.findall(r"<title>(.*?)</title>", drawn))
    for candidate in frontier([result.plan.chosen, *others.fitting]):
        assert any(title.startswith(f"{strategy_words(candidate.strategy)}: ") for title in titles)
    assert all(
        re.fullmatch(r"ZeRO-\d, .*micro-batch \d+.*checkpointing: .* GiB, .*s", title) for title in titles
    )
    assert all(part in drawn for part in ("the choice", "does not fit", "fits, with slower settings"))


def test_of_a_plan_for_a_script_only_what_was_ranked_is_drawn() -> None:
    result = planner.plan(REQUEST, recipe=None, overrides=(), out=None, top=3, say=lambda _: None)
    others = Survey(fitting=result.plan.alternatives, legal=3)
    source = plan_page(result, PlanPage(folder="x", written_at=0.0), others=others)
    assert "The choice and 2 other strategies that fit." in text_of(source)
    assert "does not fit" not in source.partition("Memory required per GPU")[2].partition("</figure>")[0]
