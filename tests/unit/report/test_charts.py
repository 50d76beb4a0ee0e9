"""The charts as a reader meets them: what is drawn, in which colours, and what is said in words."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.support.report_pages import CONTEXT, report
from zerokit.cli import run
from zerokit.report import charts, drawing
from zerokit.report.html import render_html

GIB = 1 << 30


def drawings(chart: str) -> dict[int, ElementTree.Element]:
    """Width → SVG."""
    found = re.findall(r'<svg class="w(\d+)".*?</svg>', chart)
    texts = re.findall(r"<svg .*?</svg>", chart)
    return {int(width): ElementTree.fromstring(text) for width, text in zip(found, texts, strict=True)}


def words(svg: ElementTree.Element) -> list[str]:
    return [text.text or "" for text in svg.iter("text")]


def filled(svg: ElementTree.Element, style: str) -> list[tuple[float, float, float, float]]:
    """Left, top, right and bottom of the areas of a style."""
    boxes = []
    for path in svg.iter("path"):
        if f"fill: var(--{style})" in path.get("style", ""):
            numbers = [float(number) for number in re.findall(r"-?[\d.]+", path.get("d", ""))]
            across, down = numbers[::2], numbers[1::2]
            boxes.append((min(across), min(down), max(across), max(down)))
    return boxes


def line_of(svg: ElementTree.Element, style: str) -> list[tuple[float, float]]:
    (path,) = [part for part in svg.iter("path") if f"stroke: var(--{style})" in part.get("style", "")]
    numbers = [float(number) for number in re.findall(r"-?[\d.]+", path.get("d", ""))]
    return list(zip(numbers[::2], numbers[1::2], strict=True))


@pytest.fixture
def not_imported(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Matplotlib is imported anew, and back as it was afterwards."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    drawing.why_unavailable.cache_clear()
    yield
    drawing.why_unavailable.cache_clear()


def over_time(**more: object) -> str:
    line = charts.Line(label="allocated", points=[(0.0, 0.0), (50.0, 8 * GIB), (200.0, 40 * GIB)], style="s0")
    return str(charts.over_time("Memory", [line], **more))  # type: ignore[arg-type]


def test_values_are_where_the_axes_say() -> None:
    limit = charts.Level(label="the card's memory", value=50 * GIB, style="limit")
    chart = over_time(levels=[limit])
    assert set(drawings(chart)) == set(charts.WIDTHS)
    for width, svg in drawings(chart).items():
        assert float(svg.get("viewBox", "").split()[2]) == width
        ticks = {text.text: (float(text.get("x", 0)), float(text.get("y", 0))) for text in svg.iter("text")}
        assert {"0", "20", "40", "1 min", "2 min", "3 min"} <= ticks.keys()
        (x0, y0), (x1, y1), (x2, y2) = line_of(svg, "s0")
        minute = ticks["2 min"][0] - ticks["1 min"][0]
        twenty = ticks["20"][1] - ticks["40"][1]
        assert (x1 - x0) / minute == pytest.approx(50 / 60, rel=0.03)
        assert (x2 - x0) / minute == pytest.approx(200 / 60, rel=0.03)
        assert (y0 - y1) / twenty == pytest.approx(8 / 20, rel=0.03)
        assert (y0 - y2) / twenty == pytest.approx(2, rel=0.03)
        assert (y0 - line_of(svg, "limit")[0][1]) / twenty == pytest.approx(2.5, rel=0.03)
    assert 'aria-label="Memory; allocated up to 40.0 GiB; the card&#x27;s memory 50.0 GiB"' in chart


def test_a_limit_far_above_is_named_and_not_drawn() -> None:
    limit = charts.Level(label="the card's memory", value=800 * GIB, style="limit")
    chart = over_time(levels=[limit])
    assert "the card&#x27;s memory, 800.0 GiB: beyond this chart" in chart
    assert all("var(--limit)" not in ElementTree.tostring(svg, "unicode") for svg in drawings(chart).values())


def test_no_peak_is_lost_where_points_are_many() -> None:
    points = [(float(at), float(GIB)) for at in range(5000)]
    points[3333] = (3333.0, 7.0 * GIB)
    chart = str(charts.over_time("x", [charts.Line(label="a", points=points, style="s0")]))
    for width, svg in drawings(chart).items():
        line = line_of(svg, "s0")
        lowest, highest = max(y for _, y in line), min(y for _, y in line)
        assert len(line) <= width and lowest - highest > 40
        assert next(x for x, y in line if y == highest) / width == pytest.approx(3333 / 5000, abs=0.1)


def test_bars_are_as_long_as_their_values() -> None:
    rows = [
        charts.Bar(label="predicted", parts=[("a", 10.0 * GIB, "c0"), ("b", 20.0 * GIB, "c1")], note="sum"),
        charts.Bar(label="measured", parts=[("c", 60.0 * GIB, "m0")]),
    ]
    chart = str(charts.bars("Peak", rows, limit=charts.Level(label="limit", value=80.0 * GIB, style="limit")))
    for svg in drawings(chart).values():
        (a,), (b,), (c,) = (filled(svg, style) for style in ("c0", "c1", "m0"))
        assert b[2] - b[0] == pytest.approx(2 * (a[2] - a[0]), abs=0.3) and b[0] == a[2] and b[1] == a[1]
        assert c[2] - c[0] == pytest.approx(6 * (a[2] - a[0]), abs=0.5) and c[1] > a[3]
        marks = filled(svg, "limit")
        assert [mark[2] - a[0] for mark in marks] == pytest.approx([8 * (a[2] - a[0])] * 2, abs=0.5)
        assert words(svg) == ["predicted", "30.00 GiB, sum", "measured", "60.00 GiB"]
        assert [t.text for t in svg.iter("title")] == ["a: 10.00 GiB", "b: 20.00 GiB", "c: 60.00 GiB"]
    assert 'aria-label="Peak; predicted 30.00 GiB, sum; measured 60.00 GiB"' in chart


def test_each_candidate_is_a_dot_and_the_choice_is_larger() -> None:
    dots = [
        charts.Dot(across=1.0, up=10.0 * GIB, style="others", title="ZeRO-1"),
        charts.Dot(across=2.0, up=5.0 * GIB, style="others", title="ZeRO-3"),
        charts.Dot(across=1.5, up=8.0 * GIB, style="chosen", title="ZeRO-2", radius=8),
    ]
    chart = str(charts.points("Memory", dots, across="seconds", legend=[("chosen", "the choice")]))
    for svg in drawings(chart).values():
        (chosen,), others = filled(svg, "chosen"), filled(svg, "others")
        assert len(others) == 2 and chosen[2] - chosen[0] > others[0][2] - others[0][0]
        assert chosen[2] - chosen[0] == pytest.approx(chosen[3] - chosen[1], abs=0.3), "round"
        assert "seconds" in words(svg)
        assert [title.text for title in svg.iter("title")] == ["ZeRO-1", "ZeRO-3", "ZeRO-2"]
    assert "the choice: 8.00 GiB, 1.5 s" in chart


def test_specks_are_where_the_axes_say_and_those_far_above_the_limit_are_left_out() -> None:
    dot = charts.Dot(across=2.0, up=40.0 * GIB, style="chosen", title="the choice")
    specks = [(1.0, 20.0 * GIB), (1.0, 20.0 * GIB), (2.0, 40.0 * GIB), (1.0, 500.0 * GIB)]
    limit = charts.Level(label="limit", value=60.0 * GIB, style="limit")
    corners = [(1.0, 60.0 * GIB), (2.0, 60.0 * GIB), (2.0, 40.0 * GIB)]
    chart = str(
        charts.points(
            "x", [dot], across="seconds", legend=[], frontier=corners, specks={"speck": specks}, limit=limit
        )
    )
    for svg in drawings(chart).values():
        (path,) = [part for part in svg.iter("path") if "fill: var(--speck)" in part.get("style", "")]
        squares = [part for part in path.get("d", "").split("M") if part.strip()]
        assert len(squares) == 2, "of two in one place there is one, and none far above the limit"
        (chosen,) = filled(svg, "chosen")
        left, top, right, bottom = filled(svg, "speck")[0]
        assert right - 1.5 == pytest.approx((chosen[0] + chosen[2]) / 2, abs=1)
        assert top + 1.5 == pytest.approx((chosen[1] + chosen[3]) / 2, abs=1)
        assert bottom - top - 3 == pytest.approx(top + 1.5 - line_of(svg, "limit")[0][1], abs=1.5)
        assert len(line_of(svg, "better")) == 3 and left < right


def test_areas_lie_upon_each_other() -> None:
    parts = [("a", 10.0 * GIB, "c0"), ("b", 5.0 * GIB, "c1")]
    chart = str(charts.areas("x", [charts.StackedArea(start=10.0, end=30.0, parts=parts)], end=40.0))
    for svg in drawings(chart).values():
        (a,), (b,) = filled(svg, "c0"), filled(svg, "c1")
        assert (b[0], b[2], b[3]) == (a[0], a[2], a[1])
        assert a[3] - a[1] == pytest.approx(2 * (b[3] - b[1]), abs=0.3)


def test_every_colour_is_one_of_the_style_sheet() -> None:
    page = render_html(report(4), CONTEXT)
    used, defined = set(re.findall(r"var\(--([\w-]+)\)", page)), set(re.findall(r"--([\w-]+):", page))
    assert used <= defined and {"s0", "c0", "m0", "limit", "p-training", "e-save"} <= used
    svgs = "".join(re.findall(r"<svg .*?</svg>", page))
    assert not re.search(r"#[0-9a-f]{3,6}\b|\bid=|href|<style|DejaVu|http", svgs)


def test_the_same_run_makes_the_same_page_whatever_the_users_settings(tmp_path: Path) -> None:
    import matplotlib

    first = render_html(report(4), CONTEXT)
    with matplotlib.rc_context({"savefig.bbox": "tight", "axes.grid": True, "svg.fonttype": "path"}):
        assert render_html(report(4), CONTEXT) == first
        assert matplotlib.rcParams["svg.fonttype"] == "path"


def test_labels_of_any_kind_are_drawn_as_they_are(capfd: pytest.CaptureFixture[str]) -> None:
    labels = ["$x^2$ & <b>", "phase\x1b[31m\x07", "一二三四", "a" * 300]
    rows = [charts.Bar(label=label, parts=[("part", 1.0 * GIB, "c0")]) for label in labels]
    chart = str(charts.bars("x", rows))
    for svg in drawings(chart).values():
        names = words(svg)[::2]
        assert names[:3] == [
            "$x^2$ & <b>",
            "phase\N{REPLACEMENT CHARACTER}[31m\N{REPLACEMENT CHARACTER}",
            "一二三四",
        ]
        assert names[3].endswith("a…")
    assert capfd.readouterr() == ("", "")


@pytest.mark.usefixtures("not_imported")
def test_without_matplotlib_the_page_says_so_and_keeps_the_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.chdir(tmp_path)
    assert run(["plan", "--params", "7b", "--gpus", "8", "--gpu", "a100-80gb", "-q", "--html", "p.html"]) == 0
    plan, page = Path("p.html").read_text(), render_html(report(4), CONTEXT)
    for text in (plan, page):
        assert text.count("Matplotlib is not installed") == 1 and "pip install matplotlib" in text
        assert "<svg" not in text
    assert "allocated up to 46.0 GiB" in page and "rank 2: peak 40.00 GiB" in page
    assert "in backward" in plan
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.usefixtures("not_imported")
def test_a_matplotlib_for_another_numpy_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "matplotlib").mkdir()
    broken = "raise RuntimeError('module compiled against ABI version 0x1000009\\nmore')\n"
    (tmp_path / "matplotlib" / "__init__.py").write_text(broken)
    monkeypatch.syspath_prepend(tmp_path)
    assert (
        "no charts: Matplotlib cannot be imported: module compiled against ABI version 0x1000009. To draw"
        in render_html(report(2), CONTEXT)
    )


def test_flags_never_hide_each_other() -> None:
    positions = [0.5, 0.51, 0.52, 0.53, 0.9]
    assert drawing.flag_rows(positions, 0.05) == [0, 1, 2, None, 0]
    assert drawing.flags_height([None, None]) == 0 < drawing.flags_height([0]) < drawing.flags_height([0, 2])
