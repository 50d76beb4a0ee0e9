"""The pages in a real browser: on a phone, a tablet and a desk, light and dark, and for everybody (axe).

``python -m tests.browser.screenshots`` takes the pictures anew with which they are compared.
"""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest

from tests.browser.screenshots import IMAGES, half_size
from tests.support.report_pages import CONTEXT, NAMES, report, write_pages
from zerokit.report.html import render_html

SMALLEST_TEXT_PX = 11
OVERFLOW = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
SMALLEST = """Math.min(...[...document.querySelectorAll('figure *')].filter(e => e.tagName !== 'title' &&
  e.getClientRects().length && [...e.childNodes].some(n => n.nodeType === 3 && n.data.trim()))
  .map(e => parseFloat(getComputedStyle(e).fontSize) * (e.ownerSVGElement ? e.getScreenCTM().a : 1)))"""
# what a drawing shows: its box; texts that leave it or lie upon another one; ids that stand twice
DRAWN = """[...document.querySelectorAll('.drawing')].map(drawing => {
  const shown = [...drawing.querySelectorAll('svg')].filter(svg => svg.getClientRects().length);
  const box = shown[0].getBoundingClientRect();
  const texts = [...shown[0].querySelectorAll('text')].map(
    e => [e.firstChild.data, e.getBoundingClientRect()]);
  const outside = texts.filter(([, r]) => r.left < box.left - 1 || r.right > box.right + 1 ||
    r.top < box.top - 2 || r.bottom > box.bottom + 2);
  const upon = texts.filter(([, r], at) => texts.slice(at + 1).some(([, q]) => r.left < q.right - 1 &&
    q.left < r.right - 1 && r.top < q.bottom - 4 && q.top < r.bottom - 4));
  return {shown: shown.length, left: box.left, right: box.right, height: box.height,
    bad: [...outside, ...upon].map(([text]) => text)};
})"""
IDS = "[...document.querySelectorAll('[id]')].map(e => e.id)"
SCROLLED = """[...document.querySelectorAll('.wide, pre')].filter(e => e.scrollWidth > e.clientWidth + 1)
  .map(e => e.getAttribute('aria-label') || e.textContent.slice(0, 40))"""
# cells of tables that lie upon another cell of theirs
UPON = """[...document.querySelectorAll('tr')].flatMap(row => {
  const cells = [...row.children].map(e => [e.textContent.trim(), e.getBoundingClientRect()]);
  return cells.filter(([, r], at) => cells.slice(at + 1).some(([, q]) => r.left < q.right - 1 &&
    q.left < r.right - 1 && r.top < q.bottom - 1 && q.top < r.bottom - 1)).map(([text]) => text);
})"""

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


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return write_pages(tmp_path_factory.mktemp("pages"))


@pytest.mark.parametrize("name", NAMES)
def test_a_page_is_readable_everywhere(browser: Any, pages: dict[str, Path], name: str) -> None:
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
        for chart in page.evaluate(DRAWN):
            assert chart["shown"] == 1 and chart["bad"] == [], f"{name} at {width}: {chart}"
            assert chart["left"] >= 0 and chart["right"] <= width and chart["right"] - chart["left"] > 140
            assert chart["height"] > 20
        assert page.evaluate(UPON) == [], f"{name} at {width}"
        ids = page.evaluate(IDS)
        assert len(ids) == len(set(ids))
        scrolled = page.evaluate(SCROLLED)
        tables = [text for text in scrolled if not text.startswith("Traceback")]
        assert not tables and (not scrolled or width > 390), f"{name}: {scrolled} must be moved sideways"
        found = axe.run(page)
        assert not found.response["violations"], found.generate_report()
        assert not said
        context.close()


def test_the_odd_ranks_are_marked(browser: Any, pages: dict[str, Path]) -> None:
    page = browser.new_page()
    page.goto(pages["run"].as_uri())
    odd = [part.inner_text() for part in page.query_selector_all(".odd p")]
    assert odd == ["peak +15% of the median", "1.40 times the median step time"]
    assert page.query_selector("main .answer p").inner_text() == "Every rank finished"
    over_time = page.query_selector(".drawing svg.w900")
    titles = [part.text_content() for part in over_time.query_selector_all("path > title")]
    lines = {"allocated", "reserved by the allocator", "used of the device"}
    events = {"save, after 2.4 min", "evaluation, after 90.0 s"}
    assert set(titles) - lines - events == {"load", "init", "training", "eval", "save"}
    flags = [
        flag
        for flag in over_time.query_selector_all("text")
        if flag.evaluate("e => e.firstChild.data") in ("S", "E")
    ]
    assert {flag.query_selector("title").text_content() for flag in flags} == events
    assert all(flag.bounding_box()["width"] >= 7 for flag in flags)
    retries = [part.text_content() for part in page.query_selector_all(".small path > title")]
    assert [title for title in retries if "retries" in title] == ["3 allocation retries, after 62.0 s"]
    predicted = {part.text_content() for part in page.query_selector_all("svg.w900 title")}
    areas = {
        "predicted: activations",
        "predicted: parameters",
        "predicted: loss",
        "predicted: initialisation",
    }
    assert areas <= predicted
    page.close()


def test_a_large_run_makes_a_small_page() -> None:
    text = render_html(report(64, 1000), CONTEXT)
    assert len(text.encode()) < 1_000_000
    assert text.count('class="chart small"') == 64


@pytest.mark.parametrize("name", NAMES)
def test_a_page_looks_as_it_did(browser: Any, pages: dict[str, Path], name: str) -> None:
    """Coarse enough for another font. The runs are made up for the tests; the plan is a real one."""
    context, page = half_size(browser, pages[name])
    taken = page.screenshot()
    kept = IMAGES / f"page-{name}.png"
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
