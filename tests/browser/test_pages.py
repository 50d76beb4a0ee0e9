"""The pages in a real browser: on a phone, a tablet and a desk, light and dark, and for everybody (axe).

UPDATE_SCREENSHOTS=1 pytest tests/browser -k looks      takes the screenshots in docs/images anew
"""

from __future__ import annotations

import base64
import math
import os
from pathlib import Path
from typing import Any

import pytest

from zerokit.cli import run
from zerokit.rehearsal.html import render_html as render_rehearsal
from zerokit.rehearsal.result import Change, GuessedValue, HeldAtPeak, RankMemory, Rehearsal
from zerokit.report.context import RunContext
from zerokit.report.html import render_comparison, render_html
from zerokit.report.schema import RunReport
from zerokit.timing.recorded_step import StepTime

GIB = 1 << 30
FIELDS = ["uptime_seconds", "phase", "steps", "allocated_bytes", "reserved_bytes", "device_used_bytes",
          "host_rss_bytes"]  # fmt: skip
SMALLEST_TEXT_PX = 11
OVERFLOW = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
SMALLEST = """Math.min(...[...document.querySelectorAll('figure *')].filter(e => e.childElementCount === 0 &&
  e.textContent.trim() && e.getClientRects().length && !e.closest('svg'))
  .map(e => parseFloat(getComputedStyle(e).fontSize)))"""
SCROLLED = """[...document.querySelectorAll('.wide, pre')].filter(e => e.scrollWidth > e.clientWidth + 1)
  .map(e => e.getAttribute('aria-label') || e.textContent.slice(0, 40))"""

IMAGES = Path(__file__).parents[2] / "docs" / "images"
LARGEST_BYTES = 150_000
MOST_UNLIKE = 0.015  # of full scale, on average over the cells; a page without its charts is 0.02 to 0.04
UNLIKE = """async ([first, second]) => {
  const [wide, high] = [48, 30], cells = [];
  for (const data of [first, second]) {
    const image = new Image();
    image.src = 'data:image/png;base64,' + data;
    await image.decode();
    const canvas = new OffscreenCanvas(wide, high), drawing = canvas.getContext('2d');
    drawing.imageSmoothingQuality = 'high';
    drawing.drawImage(image, 0, 0, wide, high);
    cells.push(drawing.getImageData(0, 0, wide, high).data);
  }
  const unlike = cells[0].reduce((sum, value, at) => sum + Math.abs(value - cells[1][at]), 0);
  return unlike / (wide * high * 3 * 255);
}"""


def phase_at(number: int, points: int) -> str:
    share = number / points
    if share < 0.1:
        return "load"
    if share < 0.2:
        return "init"
    if share > 0.95:
        return "save"
    return "eval" if 0.6 < share < 0.65 else ("forward", "backward", "step")[number % 3]


def rank(number: int, points: int, *, peak: int = 40 * GIB) -> dict[str, Any]:
    timeline = [
        [at * 0.5, phase_at(at, points), at // 3,
         round(peak * (0.6 + 0.4 * abs(math.sin(at / 9))) * min(1, at / 50)),
         peak + GIB, peak + 3 * GIB, 6 * GIB]
        for at in range(points)
    ]  # fmt: skip
    timeline[points // 2][3] = peak
    return {
        "rank": number, "host": f"node-{number // 8}", "state": "finished", "device": "cuda",
        "peak_allocated_bytes": peak, "peak_reserved_bytes": peak + GIB,
        "peak_device_used_bytes": peak + 3 * GIB,
        "device_total_bytes": 80 * GIB, "peak_host_rss_bytes": 6 * GIB,
        "alloc_retries": 3 if number == 1 else 0, "started_at": 1.79e9,
        "events": [{"at": 62.0, "what": "retry", "times": 3}] * (number == 1)
        + [{"at": points * 0.3, "what": "evaluation"}, {"at": points * 0.475, "what": "save"}],
        "peak_phase": "backward", "phases": {"load": GIB, "init": 9 * GIB, "forward": 38 * GIB,
                                           "backward": peak},
        "predicted_components": {"activations": 20 * GIB, "parameters": 12 * GIB, "loss": 9 * GIB},
        "steps": 100, "median_step_seconds": 1.4 if number == 5 else 1.0, "timeline": timeline,
        "timeline_fields": FIELDS,
        "phase_details": {name: {"seconds": seconds} for name, seconds in
                          (("load", 20.0), ("forward", 30.0), ("backward", 55.0), ("step", 12.0))},
        "engine": {"zero_stage": 2, "micro_batch": 4, "gradient_accumulation": 8,
                   "parameters": 8_000_000_000},
    }  # fmt: skip


def report(ranks: int, points: int = 300, **more: Any) -> RunReport:
    pair = {"predicted": 41 * GIB, "measured": 40 * GIB, "error_fraction": 0.025}
    body = {
        "schema": "zerokit.report/1", "outcome": "ok", "exit_code": 0, "script": "train.py", "device": "cuda",
        "started_at": 1.79e9, "elapsed_seconds": 150.0, "zerokit": "0.1.0", "expected_ranks": ranks,
        "ranks": [rank(n, points, peak=(46 if n == 3 else 40) * GIB) for n in range(ranks)],
        "predicted_vs_measured": {
            "kind": "gpu_memory", "rank": 3 if ranks > 3 else 0, "peak_bytes": pair,
            "phases": {"init": pair, "forward": pair, "backward": pair},
            "step_seconds": {"predicted": 0.98, "measured": 1.0, "error_fraction": -0.02},
            "predicted_for": "plan",
            "components": {
                "init": {"initialisation": 9 * GIB},
                "forward": {"activations": 18 * GIB, "parameters": 12 * GIB, "loss": 9 * GIB},
                "backward": {"activations": 20 * GIB, "parameters": 12 * GIB, "loss": 9 * GIB},
            },
        },
    }  # fmt: skip
    return RunReport.model_validate({**body, **more})


PLAN = {
    "request": {"model": "llama-3.1-8b", "method": "full"},
    "chosen": {
        "zero_stage": 2, "data_parallel": 8, "deepspeed_config": {"zero_optimization": {"stage": 2}},
        "estimate": {"time_parts": {"compute": 0.8, "link": 0.15, "optimizer": 0.03}},
    },
    "reasons": {"zero_optimization.stage": "optimizer states and gradients are divided " * 4},
    "cluster": {"gpu": "h100-sxm-80gb"},
}  # fmt: skip
CONTEXT = RunContext(plan=PLAN, command=("--model", "x" * 300, "--epochs", "1"))


LINE = "site-packages/transformers/models/llama/modeling_llama.py:243"
REHEARSAL = Rehearsal(
    complete=True, fits=True, min_vram_bytes=52 * GIB, gpu="h200", gpus=8, steps=3, repeats=True,
    ranks=tuple(
        RankMemory(
            rank=number, peak_allocated_bytes=48 * GIB, peak_phase="backward", peak_reserved_bytes=50 * GIB,
            smallest_reserved_bytes=49 * GIB, host_bytes=3 * GIB, written_bytes=16 * GIB,
            phases={"load": 15 * GIB, "init": 22 * GIB, "forward": 45 * GIB, "backward": 48 * GIB,
                    "step": 30 * GIB, "save": 15 * GIB},
            at_peak=(
                HeldAtPeak(what="activations", module="module.model.layers.*.self_attn.q_proj",
                           location=LINE, bytes=20 * GIB),
                HeldAtPeak(what="optimizer states", module="", location="", bytes=28 * GIB),
            ),
            lower_bounds={"generate": ("a cache that grows by the answers' lengths",)} if number else {},
        )
        for number in (0, 7)
    ),
    guesses=(GuessedValue(location=LINE, what="item of bool", value=False, times=2, decides_sizes=True),),
    stubbed=("triton kernels of flash-attn",), warnings=("torch 2.11 here, 2.4.0 in requirements.txt",),
    notes=("rank 0 stands for ranks 1 to 6",), versions={"torch": "2.11.0", "deepspeed": "0.19.8"},
    step_seconds=1.1,
    step=StepTime(seconds=1.1, low=1.0, high=1.3, paced_by="host", parts={}, host_factor=None, note=""),
    changes=(Change(what="activation checkpointing (`--gradient_checkpointing`)", saves_bytes=17 * GIB),),
)  # fmt: skip


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One of each kind: a good run, a failed one, two runs, a rehearsal, and a plan."""
    folder = tmp_path_factory.mktemp("pages")
    failure = {
        "rank": 3, "host": "node-0", "kind": "oom", "phase": "backward", "step": 7, "at": 1.79e9 + 80,
        "error": "CUDA out of memory", "traceback": "Traceback\n  File train.py\n" + "y" * 300,
        "oom": {"asked_bytes": 2 * GIB, "device_free_bytes": GIB},
        "try_next": ["--zero 3", "a smaller batch"],
    }  # fmt: skip
    texts = {
        "run": render_html(report(8), CONTEXT),
        "failed": render_html(report(8, outcome="oom", exit_code=10, first_failure=failure), CONTEXT),
        "rehearsal": render_rehearsal(REHEARSAL, "train.py"),
        "two": render_comparison((report(2), report(8)), ("runs/a", "runs/b"), (CONTEXT, RunContext())),
    }
    found = {name: folder / f"{name}.html" for name in (*texts, "plan")}
    for name, text in texts.items():
        found[name].write_text(text)
    here = Path.cwd()
    os.chdir(folder)
    try:
        assert (
            run(
                [
                    "plan",
                    "--model",
                    "llama-3.1-8b",
                    "--gpus",
                    "8",
                    "--gpu",
                    "h200",
                    "-q",
                    "--html",
                    "plan.html",
                ]
            )
            == 0
        )
    finally:
        os.chdir(here)
    return found


@pytest.mark.parametrize("name", ["run", "failed", "two", "rehearsal", "plan"])
def test_a_page_is_readable_everywhere(
    browser: Any, pages: dict[str, Path], name: str, tmp_path: Path
) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    for width, scheme in ((390, "dark"), (390, "light"), (800, "light"), (1440, "dark")):
        # the pages forbid scripts; axe is one
        context = browser.new_context(
            viewport={"width": width, "height": 900}, color_scheme=scheme, bypass_csp=True, offline=True
        )
        page = context.new_page()
        said: list[str] = []
        page.on("console", lambda message, said=said: said.append(message.text))
        page.on(
            "request", lambda request, said=said: request.url.startswith("file:") or said.append(request.url)
        )
        page.goto(pages[name].as_uri())
        assert page.evaluate(OVERFLOW) <= 0, f"{name} is wider than {width} pixels"
        assert page.evaluate(SMALLEST) >= SMALLEST_TEXT_PX
        for chart in page.query_selector_all(".plot svg"):
            box = chart.bounding_box()
            assert box["x"] >= 0 and box["width"] > 150 and box["x"] + box["width"] <= width
        scrolled = page.evaluate(SCROLLED)
        tables = [text for text in scrolled if not text.startswith("Traceback")]
        assert not tables and (not scrolled or width > 390), f"{name}: {scrolled} must be moved sideways"
        found = axe.run(page)
        assert not found.response["violations"], found.generate_report()
        page.screenshot(path=tmp_path / f"{name}-{width}-{scheme}.png", full_page=True)
        assert not said
        context.close()


def test_the_odd_ranks_are_marked(browser: Any, pages: dict[str, Path]) -> None:
    page = browser.new_page()
    page.goto(pages["run"].as_uri())
    odd = [part.inner_text() for part in page.query_selector_all(".odd p")]
    assert odd == ["peak +15% of the median", "1.40 times the median step time"]
    assert page.query_selector("main .answer p").inner_text() == "Every rank finished"
    spans = {part.text_content() for part in page.query_selector_all("svg rect title")}
    flags = page.query_selector_all(".flags .flag")
    assert [(flag.inner_text(), flag.get_attribute("title")) for flag in flags] == [
        ("S", "save, after 2.4 min"),
        ("E", "evaluation, after 90.0 s"),
    ]
    assert all(flag.bounding_box()["width"] >= 10 for flag in flags)
    assert page.locator(".small line.event").count() == 1  # rank 1's retries
    predicted = {name for name in spans if name.startswith("predicted: ")}
    assert spans - predicted == {"load", "init", "training", "eval", "save"}
    assert "predicted: activations" in predicted and len(predicted) == 4
    page.close()


def test_a_large_run_makes_a_small_page() -> None:
    text = render_html(report(64, 1000), CONTEXT)
    assert len(text.encode()) < 1_000_000
    assert text.count('class="chart small"') == 64


@pytest.mark.parametrize("name", ["run", "failed", "two", "rehearsal", "plan"])
def test_a_page_looks_as_it_did(browser: Any, pages: dict[str, Path], name: str) -> None:
    """Coarse enough for another font. The runs are made up for the tests; the plan is a real one."""
    context = browser.new_context(
        viewport={"width": 1440, "height": 1500}, device_scale_factor=0.5, color_scheme="light", offline=True
    )
    page = context.new_page()
    page.goto(pages[name].as_uri())
    taken = page.screenshot()
    kept = IMAGES / f"page-{name}.png"
    if os.environ.get("UPDATE_SCREENSHOTS"):
        kept.write_bytes(taken)
    page.add_style_tag(content="figure, svg { visibility: hidden }")
    without_charts = page.screenshot()
    assert kept.stat().st_size < LARGEST_BYTES
    blank = context.new_page()
    first, second, third = (
        base64.b64encode(image).decode() for image in (kept.read_bytes(), taken, without_charts)
    )
    unlike, charts = (blank.evaluate(UNLIKE, [first, other]) for other in (second, third))
    assert unlike < MOST_UNLIKE < charts
    context.close()
