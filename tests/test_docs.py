"""The documentation's site is built whole: every link leads somewhere, nothing is fetched from a network."""

from __future__ import annotations

import html.parser
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import zerokit
from zerokit.cli import commands
from zerokit.linter.explain import examples

ROOT = Path(__file__).resolve().parent.parent


class Page(html.parser.HTMLParser):
    """What a page loads, where it links to, and its anchors."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attrs}
        self.anchors.add(found.get("id", ""))
        if tag == "a" and "href" in found:
            self.links.append(found["href"])
        elif tag == "link" and "stylesheet" in found.get("rel", ""):
            self.loads.append(found["href"])
        elif tag in ("script", "img", "iframe") and "src" in found:
            self.loads.append(found["src"])


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("mkdocs")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "PYTHONWARNINGS": "ignore"}
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr  # strict: a broken link is an error
    return folder


def test_every_link_leads_somewhere_and_nothing_comes_from_a_network(site: Path) -> None:
    pages = {path: Page(path.read_text()) for path in site.rglob("*.html") if path.name != "404.html"}
    assert len(pages) > 100
    for path, page in pages.items():
        assert not [load for load in page.loads if re.match(r"(https?:)?//", load)], path
        for link in page.links:
            if re.match(r"[a-z]+:|//", link):
                continue
            target, _, anchor = link.partition("#")
            place = (path.parent / target).resolve() if target else path
            assert place.exists(), f"{path.name} links to {link}"
            assert not anchor or place.suffix != ".html" or anchor in pages[place].anchors, (
                f"{path.name}: {link}"
            )


def test_every_command_and_rule_is_documented(site: Path) -> None:
    page = (site / "commands.html").read_text()
    assert all(f'id="zerokit-{name}"' in page for name in commands())
    assert {path.stem for path in (site / "rules").glob("*.html")} == {*examples(), "index"}


def test_the_list_for_agents_names_pages_and_commands_that_there_are() -> None:
    listed = re.findall(r"\]\(([^)]+)\)", (ROOT / "llms.txt").read_text())
    assert listed and all((ROOT / name).is_file() for name in listed)
    named = set(re.findall(r"`zerokit ([a-z]+)", (ROOT / "SKILL.md").read_text()))
    assert named and named <= set(commands())


def test_a_notebook_shows_a_plan_as_a_table() -> None:
    plan = zerokit.plan(model="llama-3.1-8b", method="qlora", gpus=1, gpu="rtx-4090")
    text = plan._repr_html_()
    assert text.startswith("<table>") and "LoRA adapters of rank 16" in text and "load_in_4bit=True" in text
    assert "seq_len not given" in text and "⟨" not in text
    assert "<table>" in zerokit.estimate(model="gpt2", gpus=1, vram="24GiB")._repr_html_()
