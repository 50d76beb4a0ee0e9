"""The calculator's page answers as the command does, with everything it needs beside it."""

from __future__ import annotations

import functools
import gzip
import http.server
import importlib.util
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tools import calculator
from zerokit.catalog import gpus, models

_LOADS_SECONDS, _ANSWERS_SECONDS = 60_000, 60_000


@pytest.fixture(scope="module")
def served(site: Path) -> Iterator[str]:
    """The address of the site."""
    if not (site / "calculator" / "zerokit.zip").is_file():
        pytest.skip("Pyodide was not fetched (python -m tools.calculator)")
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(site))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}/calculator.html"
        server.shutdown()


def opened(browser: Any, address: str, width: int = 800) -> Any:
    page = browser.new_context(viewport={"width": width, "height": 900}).new_page()
    page.goto(address)
    page.wait_for_selector("#calculator-form button:not([disabled])", timeout=_LOADS_SECONDS)
    return page


def answered(page: Any) -> str:
    """What the page shows first: the text of the plan, or why there is none."""
    page.evaluate("document.querySelector('#calculator-answer').replaceChildren()")
    page.click("#calculator-form button")
    page.wait_for_selector("#calculator-answer pre", timeout=_ANSWERS_SECONDS)
    return str(page.text_content("#calculator-answer pre code"))


def command(folder: Path, words: list[str]) -> str:
    """What the command prints on a machine with its own libraries alone: its plan, or its error."""
    libraries = folder / "libraries"
    if not libraries.is_dir():
        libraries.mkdir()
        for name in calculator.LIBRARIES:
            found = Path(str(importlib.util.find_spec(name).origin))  # type: ignore[union-attr]
            found = found.parent if found.name == "__init__.py" else found
            (libraries / found.name).symlink_to(found)
    here = folder / str(time.monotonic_ns())
    here.mkdir()
    path = os.pathsep.join([str(calculator.ROOT), str(libraries)])
    done = subprocess.run(
        [sys.executable, "-S", "-m", "zerokit", "plan", *words], cwd=here, capture_output=True, text=True,
        check=False, env={**{n: v for n, v in os.environ.items() if n != "COLUMNS"}, "PYTHONPATH": path},
    )  # fmt: skip
    return done.stderr if done.returncode else done.stdout


def test_the_page_answers_as_the_command_does(browser: Any, served: str, tmp_path: Path) -> None:
    """Offline, once it has loaded; with files, the link and the command."""
    page = opened(browser, served)
    page.context.set_offline(True)
    assert answered(page) == command(tmp_path, _words({}))
    began = time.monotonic()
    page.fill("[name=gpus]", "4")
    assert answered(page) == command(tmp_path, _words({"gpus": "4"}))
    assert time.monotonic() - began < 30
    names = page.locator("#calculator-answer a[download]").all_text_contents()
    assert "zerokit-plan/ds_config.json" in names and "zerokit-plan/plan.yaml" in names
    assert "gpus=4" in page.evaluate("location.hash")
    assert page.locator("#calculator-answer pre").last.text_content().startswith("zerokit plan --model")
    _drawn_frontier(page)


def _drawn_frontier(page: Any) -> None:
    """Each plan beside the first is faster or smaller than any other that is drawn."""
    page.wait_for_selector("#calculator-answer svg", timeout=_ANSWERS_SECONDS)
    drawn = page.locator("#calculator-answer svg circle title").all_text_contents()
    listed = page.locator("#calculator-answer ol li").all_text_contents()
    assert len(listed) == len(drawn) > 2
    sizes = [float(line.split(": ")[1].split(" GiB")[0]) for line in listed[1:]]
    times = [float(line.split(", ")[-1].split(" s")[0]) for line in listed[1:]]
    assert sizes == sorted(sizes, reverse=True) and times == sorted(times)


def test_a_link_holds_the_question(browser: Any, served: str, tmp_path: Path) -> None:
    page = opened(browser, f"{served}#model=qwen2.5-1.5b&gpus=1&gpu=l4&method=lora")
    page.wait_for_selector("#calculator-answer pre", timeout=_ANSWERS_SECONDS)
    asked = {"model": "qwen2.5-1.5b", "gpus": "1", "gpu": "l4", "method": "lora"}
    assert page.text_content("#calculator-answer pre code") == command(tmp_path, _words(asked))


def test_what_is_wrong_is_said_as_the_command_does(browser: Any, served: str, tmp_path: Path) -> None:
    page = opened(browser, served)
    page.fill("[name=model]", "lama-3.1-8b")
    said = answered(page)
    assert said == command(tmp_path, _words({"model": "lama-3.1-8b"})) and "llama-3.1-8b" in said


def test_more_options_are_answered_too(browser: Any, served: str, tmp_path: Path) -> None:
    """Files of another engine, an option without a plan, and what a browser has no part for."""
    page = opened(browser, served)
    page.fill("[name=more]", "--engine fsdp2 --top 2")
    assert answered(page) == command(tmp_path, [*_words({}), "--engine", "fsdp2", "--top", "2"])
    page.wait_for_selector("#calculator-answer ol", timeout=_ANSWERS_SECONDS)
    assert page.locator("#calculator-answer ol li").first.text_content().startswith("FSDP2, batch size ")
    names = page.locator("#calculator-answer a[download]").all_text_contents()
    assert "zerokit-plan/fully_shard.py" in names
    page.fill("[name=more]", "--help")
    assert answered(page).startswith("Usage: zerokit plan")
    for script_or_page in ("-- train.py", "--html plan.html"):
        page.fill("[name=more]", script_or_page)
        assert answered(page).startswith("this page cannot do that")


@pytest.mark.parametrize("width", [390, 800, 1440])
def test_the_page_is_readable_everywhere(browser: Any, served: str, width: int) -> None:
    """For everybody (axe), without a bar to scroll sideways, and by the keyboard alone."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    page = opened(browser, served, width)
    page.focus("[name=gpus]")
    page.keyboard.press("Enter")
    page.wait_for_selector("#calculator-answer svg", timeout=_ANSWERS_SECONDS)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    violations = axe.run(page).response["violations"]
    assert not violations, [
        (one["id"], [node["html"][:120] for node in one["nodes"][:3]]) for one in violations
    ]


def test_what_is_loaded_is_small(site: Path, served: str) -> None:
    """As a server sends it, compressed."""
    sizes = {path.name: len(gzip.compress(path.read_bytes())) for path in (site / "calculator").iterdir()}
    assert sum(sizes.values()) < 12e6, sizes


@pytest.mark.slow
@pytest.mark.timeout(3600)  # five seconds a question on two busy cores
def test_random_questions_are_answered_as_the_command_does(browser: Any, served: str, tmp_path: Path) -> None:
    draw, page = random.Random(7), opened(browser, served)
    for _ in range(200):
        asked = {
            "model": draw.choice(models.names()), "gpus": draw.choice(["1", "2", "4", "8", "16", "64"]),
            "gpu": draw.choice(gpus.names()), "method": draw.choice(["full", "lora", "qlora"]),
            "seq-len": draw.choice(["", "512", "2048", "8192"]),
            "global-batch": draw.choice(["", "8", "256"]),
            "trainer": draw.choice(["", "trl", "axolotl"]),
        }  # fmt: skip
        for name, value in asked.items():
            box = page.locator(f"[name={name}]")
            box.select_option(value) if name in ("method", "trainer") else box.fill(value)
        assert answered(page) == command(tmp_path, _words(asked)), asked


def _words(asked: dict[str, str]) -> list[str]:
    given = {"model": "llama-3.1-8b", "gpus": "8", "gpu": "h100-sxm-80gb", "method": "full", **asked}
    order = ("model", "gpus", "gpu", "method", "seq-len", "global-batch", "trainer")
    return [word for name in order if given.get(name) for word in (f"--{name}", given[name])]
