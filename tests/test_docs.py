"""The documentation's site is built whole: every link leads somewhere, nothing is fetched from a network."""

from __future__ import annotations

import contextlib
import html
import html.parser
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import click
import pytest

import zerokit
from tests.support.pages import SH_BLOCK, sh_commands
from zerokit.cli import cli, commands
from zerokit.linter.explain import examples

ROOT = Path(__file__).resolve().parent.parent


INLINE = re.compile(r"`(zerokit [a-z][^`]*)`")
ENDS_A_COMMAND = ("|", ">", "&&", "#")


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


def test_every_link_leads_somewhere_and_nothing_comes_from_a_network(site: Path) -> None:
    pages = {path: Page(path.read_text()) for path in site.rglob("*.html") if path.name != "404.html"}
    assert len(pages) > 100
    for path, page in pages.items():
        assert not [load for load in page.loads if re.match(r"(https?:)?//", load)], path
        for link in page.links:
            if re.match(r"[a-z]+:|//", link):
                continue
            target, _, anchor = link.partition("#")
            file = (path.parent / target).resolve() if target else path
            assert file.exists(), f"{path.name} links to {link}"
            assert not anchor or file.suffix != ".html" or anchor in pages[file].anchors, (
                f"{path.name}: {link}"
            )


def test_no_list_or_table_is_read_as_part_of_a_paragraph(site: Path) -> None:
    """Python-Markdown starts a list only after an empty line, or it prints its hyphens."""
    for path in site.rglob("*.html"):
        for paragraph in re.findall(r"<p>(.*?)</p>", path.read_text(), re.DOTALL):
            assert not re.search(r"^ *([-*+|] |\d+\. |#+ )", paragraph, re.MULTILINE), (path.name, paragraph)


def test_every_command_and_rule_is_documented(site: Path) -> None:
    page = (site / "commands.html").read_text()
    assert all(f'id="zerokit-{name}"' in page for name in commands())
    rules = {path.stem: path.read_text() for path in (site / "rules").glob("*.html")}
    assert set(rules) == {*examples(), "index"}
    for rule in examples():
        assert f'href="{rule}.html"' in rules["index"] and f'id="{rule}"' in rules[rule]


@pytest.mark.parametrize("words", [[], ["size"], ["launch"], ["emit", "sbatch"]])
def test_the_page_of_commands_shows_what_help_prints(site: Path, words: list[str]) -> None:
    page = html.unescape(re.sub(r"<[^>]*>", "", (site / "commands.html").read_text()))
    done = subprocess.run(
        [sys.executable, "-m", "zerokit", *words, "--help"],
        env={**os.environ, "COLUMNS": "80", "ZEROKIT_COMMAND": "zerokit"},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.strip() in page


def shown_commands(text: str) -> list[list[str]]:
    """The words of every zerokit command in a page's ``sh`` blocks and in its sentences."""
    lines = [line for line in sh_commands(text) if line.startswith("zerokit ")]
    found = []
    for line in [*lines, *INLINE.findall(SH_BLOCK.sub("", text))]:
        words = shlex.split(line, comments=True)
        end = next((at for at, word in enumerate(words) if word in ENDS_A_COMMAND), len(words))
        found.append(words[1 : end - (words[end - 1] == "…")])
    return found


def parse(words: list[str]) -> None:
    """Raises click.UsageError for a command, an option or a choice that there is not, or a missing value."""
    command: click.Command = cli
    context = click.Context(command)
    while isinstance(command, click.Group) and words:
        name, *words = words
        if name.startswith("-"):
            return
        next_command = command.get_command(context, name)
        if next_command is None:
            raise click.UsageError(f"there is no command {name}")
        command = next_command
        context = click.Context(command, parent=context, **command.context_settings)
    if isinstance(command, click.Group):
        return
    with contextlib.suppress(click.MissingParameter, click.exceptions.Exit):  # a sentence names a part only
        command.parse_args(context, [word for word in words if word != "-q"])


def test_every_command_on_the_pages_is_one_that_there_is() -> None:
    pages = [ROOT / "README.md", ROOT / "SKILL.md", *sorted((ROOT / "docs").rglob("*.md"))]
    shown = [(page, words) for page in pages for words in shown_commands(page.read_text())]
    assert len(shown) > 80
    for page, words in shown:
        try:
            parse(words)
        except click.UsageError as error:
            pytest.fail(f"{page.relative_to(ROOT)}: zerokit {shlex.join(words)}: {error.format_message()}")


@pytest.mark.parametrize("wrong", ["plan --modle x", "lunch train.py", "launch --plan", "emit sbtach"])
def test_a_wrong_command_on_a_page_would_be_found(wrong: str) -> None:
    with pytest.raises(click.UsageError):
        parse(shlex.split(wrong))


def test_the_list_for_agents_names_pages_and_commands_that_there_are() -> None:
    listed = re.findall(r"\]\(([^)]+)\)", (ROOT / "llms.txt").read_text())
    assert listed and all((ROOT / name).is_file() for name in listed)
    named = set(re.findall(r"`zerokit ([a-z]+)", (ROOT / "SKILL.md").read_text()))
    assert named and named <= set(commands())


def test_a_notebook_shows_a_plan_as_its_page_does() -> None:
    plan = zerokit.plan(model="llama-3.1-8b", method="qlora", gpus=1, gpu="rtx-4090")
    text = plan._repr_html_()
    assert text.startswith("<table>") and "LoRA, rank 16" in text and "load_in_4bit=True" in text
    assert "seq_len not given" in text and "⟨" not in text
    frame = re.search(r'<iframe srcdoc="([^"]*)"', text)
    assert frame is not None
    page = html.unescape(frame[1])
    assert page.lstrip().startswith("<!doctype html>") and page.count("<svg") > 3
    assert {"Where memory goes", "Memory against time"} <= set(re.findall(r"<h2[^>]*>([^<]+)</h2>", page))
    assert "<table>" in zerokit.estimate(model="gpt2", gpus=1, vram="24GiB")._repr_html_()


def test_a_notebook_shows_findings_as_a_table(tmp_path: Path) -> None:
    path = tmp_path / "<b>.json"
    path.write_text(
        '{"train_batch_size": 8, "zero_optimization": {"stage": 2, "offload_param": {"device": "cpu"}}}'
    )
    checked = zerokit.check(path)
    text = checked._repr_html_()
    assert checked.findings and "<b>" not in text and "&lt;b&gt;.json:1:" in text
    assert text.count("<tr>") == 1 + len(checked.findings)
    for finding in checked.findings:
        assert html.escape(finding.message) in text and html.escape(finding.fix) in text
