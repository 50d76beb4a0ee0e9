"""Every figure in the documentation's prose comes from committed data or the code, or is known to be none."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks import quoted_figures
from benchmarks.quotes import UNTIED, sentences
from zerokit.search.explain import WORST_ERROR

ROOT = Path(__file__).resolve().parents[3]
NOT_QUOTED = (
    "accuracy.md",
    "other-calculators.md",
    "rehearsal-accuracy.md",
    "race.md",
    "faults.md",
    "security.md",
)
"""Written whole by commands, which their own tests hold; security.md names the test of each attack."""
UNIT = r"(?:%|points\b|[GMKT]i?B\b|[µm]?s\b|min\b|h\b|(?:second|minute)s\b)"
FIGURE = re.compile(rf"(?<![\w.`/#-])[-−+]?\d[\d,]*(?:\.\d+)?\s?{UNIT}")
PAGES = [
    page
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
    if page.name not in NOT_QUOTED
]


@pytest.fixture(scope="module")
def quoted() -> list[tuple[str, str]]:
    pytest.importorskip("numpy")
    return sentences()


def prose(text: str) -> str:
    """Without blocks of code and headings, on one line."""
    text = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    return " ".join(" ".join(line for line in text.splitlines() if not line.startswith("#")).split())


def figures(text: str) -> list[str]:
    text = re.sub(r"`[^`]*`", lambda code: " " * len(code[0]), text)
    return [text[max(0, found.start() - 60) : found.end() + 20] for found in FIGURE.finditer(text)]


def test_every_quoted_sentence_is_on_its_page(quoted: list[tuple[str, str]]) -> None:
    said = {page: prose((ROOT / page).read_text()) for page, _ in quoted}
    assert [f"{page}: {text}" for page, text in quoted if text not in said[page]] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_no_figure_stands_alone(page: Path, quoted: list[tuple[str, str]]) -> None:
    """Give it a row in benchmarks/quotes.py, or leave it out."""
    text = prose(page.read_text())
    name = str(page.relative_to(ROOT))
    for known in (*(sentence for where, sentence in quoted if where == name), *UNTIED):
        text = text.replace(known, "")
    assert figures(text) == []


def test_every_untied_phrase_is_still_there() -> None:
    every = " ".join(prose(page.read_text()) for page in PAGES)
    assert [phrase for phrase in UNTIED if phrase not in every] == []


@pytest.mark.parametrize(
    "text", ["off by 3 %", "took 0.5 GiB", "in 12 s", "within 1,024 MiB of", "2.5 ms a step"]
)
def test_a_figure_is_seen(text: str) -> None:
    assert len(figures(f"It was {text} there.")) == 1


@pytest.mark.parametrize("text", ["`--vram 24GiB`", "Qwen2.5 beside 3 GPUs", "version 0.19.8"])
def test_what_is_none_is_not(text: str) -> None:
    assert figures(text) == []


def test_a_narrow_fit_is_judged_by_the_worst_error_that_was_measured() -> None:
    assert f"{WORST_ERROR:.1%}" == f"{quoted_figures.all_runs()['worst']}%"
