"""The charts of the pages, as figures of HTML: a caption, drawings in SVG, a legend.

Matplotlib draws each chart once per width of :data:`WIDTHS`, and the page shows the one that fits, so that
text keeps its size on a phone. Caption and legend are HTML, which wraps. Where Matplotlib is missing, a
figure says in words what it would show. Every string is escaped; nothing needs a script or a network. Values
are bytes, seconds.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

from zerokit.report import drawing
from zerokit.report.drawing import WIDE, font_size
from zerokit.report.measured import thinned
from zerokit.units import format_gib, format_seconds, shown_unit

if TYPE_CHECKING:
    from markupsafe import Markup

Point = tuple[float, float]
Paint = Callable[[int], drawing.Canvas]  # a drawing of a width
WIDTHS = (360, 560, 900)  # pixels; page.css.j2 chooses by the width that the figure has
_SMALL_WIDTHS = (160,)
_ROOM = 1.08  # above the highest value
_LETTER, _LONGEST_NAME = 8.0, 16  # pixels of a letter on the average, at most; letters of a bar's name
_BARS_APART = 8  # pixels, from one pair to the next, beside what each bar takes
ABOVE_LIMIT = 4 / 3  # how far a chart with a limit reaches
_FLAG_APART = 19  # pixels, from one flag to the next
_TIME_UNITS = (
    (1, 1e-3, "ms"),
    (120, 1, "s"),
    (7200, 60, "min"),
    (172800, 3600, "h"),
    (float("inf"), 86400, "d"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """Values over time. ``style``: the CSS variable that colours it."""

    label: str
    points: Sequence[Point]
    style: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """A value that holds all the time: a limit, a prediction."""

    label: str
    value: float
    style: str

    def key(self, shown_as: Callable[[float], str] = lambda value: format_gib(value, 1)) -> tuple[str, str]:
        """For a legend: the style, and the label with the value."""
        return self.style, f"{self.label}, {shown_as(self.value)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A stretch of time with a name: a phase."""

    label: str
    start: float
    end: float
    style: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """A moment. ``label``: its kind, for the legend; ``letter``: for its flag; ``title``: the whole of it."""

    at: float
    label: str
    letter: str
    style: str
    title: str
    strong: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class StackedArea:
    """A stretch of time with parts upon each other: ``(label, value, style)`` each, the lowest first."""

    start: float
    end: float
    parts: Sequence[tuple[str, float, str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """A bar of parts, one after the other: ``(label, value, style)`` each."""

    label: str
    parts: Sequence[tuple[str, float, str]]
    note: str = ""

    @property
    def total(self) -> float:
        """The bar's length."""
        return sum(value for _, value, _ in self.parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Dot:
    """Something that takes so many seconds (across) and bytes (up). ``title``: what the pointer shows."""

    across: float
    up: float
    style: str
    title: str
    radius: float = 4


def missing() -> str:
    """What to do for charts where there are none, as a sentence; empty where they can be drawn."""
    reason = drawing.why_unavailable()
    fix = "To draw them, install it (pip install matplotlib) and write the page again."
    return f"This page has no charts: {reason} {fix}" if reason else ""


def markup(text: str) -> Markup:
    """Text that a template puts in as it is."""
    from markupsafe import Markup

    return Markup(text)


def over_time(
    caption: str,
    lines: Sequence[Line],
    *,
    levels: Sequence[Level] = (),
    spans: Sequence[Span] = (),
    marks: Sequence[Mark] = (),
    small: bool = False,
    scale: float = 0.0,
) -> Markup:
    """Bytes over seconds, at least ``scale`` high. A level far above everything is named in the legend and
    not drawn. ``marks``: the most important first; where many are close, not all have room for a flag."""
    end = max([line.points[-1][0] for line in lines] + [mark.at for mark in marks], default=0.0) or 1.0
    highest = max((value for line in lines for _, value in line.points), default=0.0)
    highest = max(highest, scale)
    in_view = [level for level in levels if level.value <= 2.5 * highest]
    top = max([highest, *(level.value for level in in_view)]) * _ROOM or 1.0

    def paint(width: int) -> drawing.Canvas:
        flagged = () if small else marks
        rows = drawing.flag_rows([min(1.0, mark.at / end) for mark in flagged], _FLAG_APART / (width - 60))
        canvas = _axes(width, (end, top), above=drawing.flags_height(rows), small=small)
        for span in spans:
            canvas.area(span.start, span.end, 0, top, style=span.style, title=span.label, layer=0.2)
        for level in in_view:
            canvas.level(level.value, style=level.style, dashed=level.style == "predicted")
        for line in lines:
            canvas.line(
                thinned(line.points, width),
                style=line.style,
                title=line.label,
                width=1.5 if small else 2,
            )
        for mark in marks:
            canvas.event(min(end, mark.at), style=mark.style, title=mark.title, strong=mark.strong)
        for mark, row in zip(flagged, rows, strict=True):
            if row is not None:
                canvas.flag(min(end, mark.at), row, mark.letter, style=mark.style, title=mark.title)
        return canvas

    kinds = Counter((mark.style, mark.letter, mark.label) for mark in marks)
    legend = [(line.style, line.label) for line in lines] if not small else []
    legend += [(level.style, f"{level.label}, {format_gib(level.value, 1)}" + ("" if level in in_view else
               ": beyond this chart")) for level in levels]  # fmt: skip
    legend += list(dict.fromkeys((span.style, span.label) for span in spans))
    summary = [
        f"{line.label} up to {format_gib(max(value for _, value in line.points), 1)}"
        for line in lines
        if line.points
    ]
    summary += [f"{level.label} {format_gib(level.value, 1)}" for level in levels]
    summary += [f"{label}, {number} marked" for (_, _, label), number in kinds.items()]
    return _figure(
        caption, paint, summary, axis="" if small else shown_unit(top)[1], small=small,
        legend=legend, flags=() if small else list(kinds),
    )  # fmt: skip


def areas(caption: str, stacks: Sequence[StackedArea], *, end: float, level: Level | None = None) -> Markup:
    """Stacked areas of bytes over ``end`` seconds, and the parts in a legend."""
    heights = [sum(value for _, value, _ in stack.parts) for stack in stacks]
    top = max([*heights, level.value if level else 0.0]) * _ROOM or 1.0

    def paint(width: int) -> drawing.Canvas:
        canvas = _axes(width, (end, top))
        for stack in stacks:
            below = 0.0
            for label, value, style in stack.parts:
                canvas.area(stack.start, stack.end, below, below + value, style=style, title=label)
                below += value
        if level:
            canvas.level(level.value, style=level.style, dashed=True)
        return canvas

    legend = list(dict.fromkeys((style, label) for stack in stacks for label, _, style in stack.parts))
    legend += [level.key()] if level else []
    summary = [f"up to {format_gib(max(heights, default=0.0), 1)}", *(label for _, label in legend)]
    return _figure(caption, paint, summary, axis=shown_unit(top)[1], legend=legend)


def bars(
    caption: str,
    rows: Sequence[Bar],
    *,
    limit: Level | None = None,
    shown_as: Callable[[float], str] = format_gib,
) -> Markup:
    """Horizontal bars on one scale, each with its parts and total, and the parts in a legend."""
    top = max([row.total for row in rows] + [limit.value if limit else 0.0]) or 1.0
    words = [shown_as(row.total) + (f", {row.note}" if row.note else "") for row in rows]

    paired = any(not row.label for row in rows)

    def paint(width: int) -> drawing.Canvas:
        beside = width >= WIDE  # in narrower drawings, the words of a bar are above it
        left, right, pitch, thickness, below = 0.0, 2.0, 42, 18, 0.0
        if beside:
            left = _LETTER * min(_LONGEST_NAME, max(len(row.label) for row in rows)) + 16
            right, pitch, thickness, below = _LETTER * max(map(len, words)) + 16, 27, 20, 3.5
        starts = [
            sum(bool(row.label) for row in rows[: at + 1]) - 1 if paired else 0 for at in range(len(rows))
        ]
        height = pitch * len(rows) + _BARS_APART * starts[-1]
        canvas = drawing.Canvas(width, height + 8, (left, right, 4, 4), (top, height), font_size(width))
        for number, row in enumerate(rows):
            bottom = height - pitch * (number + 1) - _BARS_APART * starts[number] + below
            above = bottom + thickness
            canvas.area(0, top, bottom, above, style="shade", layer=0.5)
            start = 0.0
            for label, size, style in row.parts:
                title = f"{label}: {shown_as(size)}"
                canvas.area(start, start + size, bottom, above, style=style, title=title)
                start += size
            if limit:
                edge = limit.value - 3 * top / canvas.plot_width
                canvas.area(edge, limit.value, bottom - 2, above + 2, style=limit.style, layer=2)
            baseline = height + 4 - bottom - (5.5 if beside else thickness + 5)
            canvas.text(0, baseline, row.label, most=_LONGEST_NAME if beside else 24)
            end = width - right + 12 if beside else width
            canvas.text(end, baseline, words[number], align="left" if beside else "right")
        return canvas

    legend = list(dict.fromkeys((style, label) for row in rows for label, value, style in row.parts if value))
    legend += [limit.key(shown_as)] if limit else []
    summary = [f"{row.label} {value}".strip() for row, value in zip(rows, words, strict=True)]
    return _figure(caption, paint, summary, legend=legend)


def points(
    caption: str,
    dots: Sequence[Dot],
    *,
    across: str,
    legend: Sequence[tuple[str, str]],
    frontier: Sequence[Point] = (),
    specks: Mapping[str, Sequence[Point]] | None = None,
    limit: Level | None = None,
) -> Markup:
    """Seconds (across, named so) against bytes (up), a dot each; behind them a line along the ``frontier``
    and small ``specks`` by their style. The chart reaches a third above the ``limit`` at most, if no dot is
    higher."""
    behind = {style: list(found) for style, found in (specks or {}).items()}
    every = [(dot.across, dot.up) for dot in dots]
    high = max((y for _, y in every), default=0.0)
    ceiling = max(high, limit.value * ABOVE_LIMIT) if limit else math.inf
    seen = [point for found in behind.values() for point in found if point[1] <= ceiling]
    right = max((x for x, _ in [*every, *seen]), default=0.0) * _ROOM or 1.0
    top = max([high, *(y for _, y in seen), limit.value if limit else 0.0]) * _ROOM or 1.0

    def paint(width: int) -> drawing.Canvas:
        canvas = _axes(width, (right, top), named=across)
        for style, found in behind.items():
            canvas.specks([point for point in found if point[1] <= ceiling], style=style)
        if limit:
            canvas.level(limit.value, style=limit.style, dashed=False)
        if len(frontier) > 1:
            canvas.line(frontier, style="better", title="", width=1.5)
        for dot in dots:
            canvas.dot(dot.across, dot.up, style=dot.style, title=dot.title, radius=dot.radius)
        return canvas

    summary = [
        f"{label}: {len(found)}"
        if len(found) > 1
        else f"{label}: {format_gib(found[0].up)}, {format_seconds(found[0].across)}"
        for style, label in legend
        if (found := [dot for dot in dots if dot.style == style])
    ]
    keys = [*legend, *([limit.key()] if limit else [])]
    return _figure(caption, paint, summary, axis=shown_unit(top)[1], legend=keys)


def _axes(
    width: int, limits: tuple[float, float], *, above: float = 0, named: str = "", small: bool = False
) -> drawing.Canvas:
    """Axes of seconds across and bytes up, with their ticks."""
    (end, top), unit = limits, shown_unit(limits[1])[0]
    seconds, name = next((divisor, name) for limit, divisor, name in _TIME_UNITS if end < limit)
    most = (2, 3) if small else (max(4, width // 110), 6)
    across = drawing.round_values(end, unit=seconds, most=most[0], suffix=f" {name}")
    up = drawing.round_values(top, unit=unit, most=most[1])
    left = max(26 if small else 38, _LETTER * max(len(text) for _, text in up) + 7)
    right, below = (20, 20) if small else (28, 42 if named else 24)
    height = 84 if small else round(0.2 * width + 150) + above
    margins = (left, right, 7 + above, below)
    canvas = drawing.Canvas(width, height, margins, limits, 12 if small else font_size(width))
    canvas.ticks(across, up)
    if named:
        canvas.text(width - right, height - 5, named, style="soft", align="right")
    return canvas


def _figure(
    caption: str, paint: Paint, summary: Sequence[str], *, legend: Sequence[tuple[str, str]],
    flags: Sequence[tuple[str, str, str]] = (), axis: str = "", small: bool = False,
) -> Markup:  # fmt: skip
    """``legend``: style and label of each key; ``flags``: style, letter and label of each."""
    title = f'<figcaption>{escape(caption)} <span class="soft">{escape(axis)}</span></figcaption>'
    if drawing.why_unavailable():
        words = "" if small else f"<p>{escape('; '.join(summary))}</p>"
        return markup(f'<figure class="chart undrawn">{title}{words}</figure>')
    with drawing.matplotlib_settings():
        drawings = "".join(paint(width).svg(f"w{width}") for width in (_SMALL_WIDTHS if small else WIDTHS))
    label = escape("; ".join([caption, *summary]))
    keys = [(f'class="key {style}"', style, "", label) for style, label in legend]
    keys += [('class="flag"', style, letter, label) for style, letter, label in flags]
    hidden = ' aria-hidden="true"'
    items = "".join(
        f'<li><span {kind} style="--key:var(--{style})"{hidden if letter else ""}>'
        f"{escape(letter)}</span>{escape(text)}</li>"
        for kind, style, letter, text in keys
    )
    shown = f'<ul class="legend">{items}</ul>' if items else ""
    return markup(
        f'<figure class="chart{" small" if small else ""}">{title}'
        f'<div class="drawing" role="img" aria-label="{label}">{drawings}</div>{shown}</figure>'
    )
