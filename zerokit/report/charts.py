"""Charts as static HTML and SVG: lines, stacked bars and points, with text that keeps its size on a phone.

The drawing is an SVG stretched to its place; ticks, names and the legend are HTML beside it, so that no text
is scaled with it. Every string is escaped; nothing needs a script or a network. Values are bytes, seconds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

from zerokit.units import format_gib, format_seconds, shown_unit

if TYPE_CHECKING:
    from markupsafe import Markup

Point = tuple[float, float]
_WIDTH, _HEIGHT = 1000, 400
_ROOM = 1.08  # above the highest value
_FLAG_ROOM = 0.045  # of the width, from one flag to the next: 13 pixels on a phone
_FLAG_ROWS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """Values over time. ``style``: the CSS class that colours it."""

    label: str
    points: Sequence[Point]
    style: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """A value that holds all the time: a limit, a prediction."""

    label: str
    value: float
    style: str


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
    """Bytes over seconds. A level far above everything is named in the legend and not drawn.

    Args:
        marks: the most important first: where many are close, not all have room for a flag.
        scale: the value that at least reaches to the top; the same for charts that are compared.
    """
    end = max([line.points[-1][0] for line in lines] + [mark.at for mark in marks], default=0.0) or 1.0
    highest = max((value for line in lines for _, value in line.points), default=0.0)
    highest = max(highest, scale)
    in_view = [level for level in levels if level.value <= 2.5 * highest]
    top = max([highest, *(level.value for level in in_view)]) * _ROOM or 1.0
    body = [_span(span, end) for span in spans]
    y_labels, axis = _sizes(top, 3 if small else 6)
    body += [_horizontal(at, "grid") for at, _ in y_labels]
    body += [_horizontal(level.value / top, level.style) for level in in_view]
    body += [_polyline(line, end, top) for line in lines]
    body += [_vertical(mark, end) for mark in marks]
    legend = [(line.style, line.label) for line in lines] if not small else []
    legend += [(level.style, f"{level.label}, {format_gib(level.value, 1)}" + ("" if level in in_view else
               ": beyond this chart")) for level in levels]  # fmt: skip
    legend += list(dict.fromkeys((span.style, span.label) for span in spans))
    x_labels = [
        (tick / end, format_seconds(tick) if tick else "0") for tick in _ticks(end, 2 if small else 6)
    ]
    return _figure(
        caption, "".join(body), x_labels, y_labels, legend, small=small, axes=("", axis), end=end,
        marks=() if small else marks,
    )  # fmt: skip


def areas(caption: str, stacks: Sequence[StackedArea], *, end: float, level: Level | None = None) -> Markup:
    """Stacked areas of bytes over ``end`` seconds, and the parts in a legend."""
    heights = [sum(value for _, value, _ in stack.parts) for stack in stacks]
    top = max([*heights, level.value if level else 0.0]) * _ROOM or 1.0
    y_labels, axis = _sizes(top, 6)
    body = [_horizontal(at, "grid") for at, _ in y_labels]
    legend: dict[tuple[str, str], None] = {}
    for stack in stacks:
        x, width, below = _WIDTH * stack.start / end, _WIDTH * (stack.end - stack.start) / end, 0.0
        for label, value, style in stack.parts:
            legend[style, label] = None
            below += value
            y, height = _HEIGHT * (1 - below / top), _HEIGHT * value / top
            body.append(
                f'<rect class="{style}" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}">'
                f"<title>{escape(label)}</title></rect>"
            )
    if level:
        body.append(_horizontal(level.value / top, level.style))
    keys = [*legend, *([(level.style, f"{level.label}, {format_gib(level.value, 1)}")] if level else [])]
    x_labels = [(tick / end, format_seconds(tick) if tick else "0") for tick in _ticks(end, 6)]
    return _figure(caption, "".join(body), x_labels, y_labels, keys, axes=("", axis))


def bars(
    caption: str,
    rows: Sequence[Bar],
    *,
    limit: Level | None = None,
    shown_as: Callable[[float], str] = format_gib,
) -> Markup:
    """Horizontal bars on one scale, each with its parts and total, and the parts in a legend.

    Args:
        shown_as: how a value is written: bytes, unless it says otherwise.
    """
    top = max([row.total for row in rows] + [limit.value if limit else 0.0]) or 1.0
    html_rows = []
    for row in rows:
        parts = "".join(
            f'<span class="part {style}" style="width:{100 * value / top:.2f}%"></span>'
            for _, value, style in row.parts
        )
        mark = f'<span class="mark" style="left:{100 * limit.value / top:.2f}%"></span>' if limit else ""
        note = f' <span class="soft">{escape(row.note)}</span>' if row.note else ""
        html_rows.append(
            f'<div class="row"><div class="name">{escape(row.label)}</div>'
            f'<div class="bar">{parts}{mark}</div>'
            f'<div class="value">{shown_as(row.total)}{note}</div></div>'
        )
    legend: dict[tuple[str, str], None] = {}
    for row in rows:
        legend.update(dict.fromkeys((style, label) for label, value, style in row.parts if value))
    keys = [*legend, *([(limit.style, f"{limit.label}, {shown_as(limit.value)}")] if limit else [])]
    summary = "; ".join(f"{row.label} {shown_as(row.total)}" for row in rows)
    return markup(
        f'<figure class="bars" role="group" aria-label="{escape(f"{caption}: {summary}")}">'
        f"<figcaption>{escape(caption)}</figcaption>{''.join(html_rows)}{_legend(keys)}</figure>"
    )


def points(
    caption: str,
    dots: Sequence[tuple[float, float, str]],
    *,
    across: str,
    legend: Sequence[tuple[str, str]],
) -> Markup:
    """Seconds (across, named so) against bytes (up), a dot each: ``(seconds, bytes, style)``."""
    right = max((x for x, _, _ in dots), default=0.0) * _ROOM or 1.0
    top = max((y for _, y, _ in dots), default=0.0) * _ROOM or 1.0
    y_labels, axis = _sizes(top, 6)
    body = [_horizontal(at, "grid") for at, _ in y_labels]
    for x, y, style in dots:
        at, up = _WIDTH * x / right, _HEIGHT * (1 - y / top)
        # a line of no length with round caps is a round dot, however the picture is stretched
        body.append(f'<line class="dot {style}" x1="{at:.1f}" x2="{at:.1f}" y1="{up:.1f}" y2="{up:.1f}"/>')
    x_labels = [(tick / right, format_seconds(tick) if tick else "0") for tick in _ticks(right, 6)]
    return _figure(caption, "".join(body), x_labels, y_labels, legend, axes=(across, axis))


def thinned(values: Sequence[Point], most: int) -> list[Point]:
    """At most ``most`` points, the highest of each stretch, so that no peak is lost."""
    size = -(-len(values) // most) if values else 1
    return [max(values[at : at + size], key=lambda point: point[1]) for at in range(0, len(values), size)]


def _figure(
    caption: str,
    body: str,
    x_labels: Sequence[tuple[float, str]],
    y_labels: Sequence[tuple[float, str]],
    legend: Sequence[tuple[str, str]],
    *,
    small: bool = False,
    axes: tuple[str, str],
    marks: Sequence[Mark] = (),
    end: float = 1.0,
) -> Markup:
    across = "".join(f'<span style="left:{100 * at:.2f}%">{escape(text)}</span>' for at, text in x_labels)
    up = "".join(f'<span style="bottom:{100 * at:.2f}%">{escape(text)}</span>' for at, text in y_labels)
    named = f'<div class="axis">{escape(axes[0])}</div>' if axes[0] else ""
    kinds = {(mark.style, mark.letter, mark.label): 0 for mark in marks}
    for mark in marks:
        kinds[mark.style, mark.letter, mark.label] += 1
    legend_text = "".join(f"; {label}, {number} marked" for (_, _, label), number in kinds.items())
    return markup(
        f'<figure class="chart{" small" if small else ""}"><figcaption>{escape(caption)} '
        f'<span class="soft">{escape(axes[1])}</span></figcaption>'
        f'<div class="plot"><div class="up">{up}</div>'
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" preserveAspectRatio="none" role="img" '
        f'aria-label="{escape(caption + legend_text)}">{body}</svg>{_flags(marks, end)}'
        f'<div class="across">{across}</div></div>{named}{_legend(legend, list(kinds))}</figure>'
    )


def _flags(marks: Sequence[Mark], end: float) -> str:
    """A letter on the line of each mark, below another one where they are close, while there is room."""
    rows: list[list[float]] = [[] for _ in range(_FLAG_ROWS)]
    flags = []
    for mark in marks:
        at = min(1.0, mark.at / end)
        for number, row in enumerate(rows):
            if all(abs(at - other) >= _FLAG_ROOM for other in row):
                row.append(at)
                place = f"left:{100 * at:.2f}%;top:{1.3 * number:.1f}rem"
                flags.append(
                    f'<span class="flag {mark.style}" style="{place}" title="{escape(mark.title)}">'
                    f"{escape(mark.letter)}</span>"
                )
                break
    return f'<div class="flags" aria-hidden="true">{"".join(flags)}</div>' if flags else ""


def _legend(keys: Sequence[tuple[str, str]], flags: Sequence[tuple[str, str, str]] = ()) -> str:
    items = "".join(f'<li><span class="key {style}"></span>{escape(label)}</li>' for style, label in keys)
    items += "".join(
        f'<li><span class="flag {style}" aria-hidden="true">{escape(letter)}</span>{escape(label)}</li>'
        for style, letter, label in flags
    )
    return f'<ul class="legend">{items}</ul>' if items else ""


def _horizontal(share: float, style: str) -> str:
    y = _HEIGHT * (1 - min(1.0, share))
    return f'<line class="{style}" x1="0" x2="{_WIDTH}" y1="{y:.1f}" y2="{y:.1f}"/>'


def _vertical(mark: Mark, end: float) -> str:
    x = _WIDTH * min(1.0, mark.at / end)
    return (
        f'<line class="event {mark.style}" x1="{x:.1f}" x2="{x:.1f}" y1="0" y2="{_HEIGHT}">'
        f"<title>{escape(mark.title)}</title></line>"
    )


def _span(span: Span, end: float) -> str:
    x, width = _WIDTH * span.start / end, _WIDTH * (span.end - span.start) / end
    return (
        f'<rect class="{span.style}" x="{x:.1f}" y="0" width="{width:.1f}" height="{_HEIGHT}">'
        f"<title>{escape(span.label)}</title></rect>"
    )


def _polyline(line: Line, end: float, top: float) -> str:
    path = " ".join(f"{_WIDTH * at / end:.0f},{_HEIGHT * (1 - used / top):.0f}" for at, used in line.points)
    title = f"<title>{escape(line.label)}</title>"
    return f'<polyline class="series {line.style}" points="{path}">{title}</polyline>'


def _sizes(top: float, about: int) -> tuple[list[tuple[float, str]], str]:
    """Round sizes from zero up to ``top`` bytes, each with its share of it, and their unit."""
    unit, name = shown_unit(top)
    return [(tick * unit / top, f"{tick:g}") for tick in _ticks(top / unit, about)], name


def _ticks(limit: float, about: int) -> list[float]:
    """Some round values from zero up to ``limit``."""
    raw = limit / about
    power = 10.0 ** math.floor(math.log10(raw)) if raw > 0 else 1.0
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= raw)
    return [step * number for number in range(int(limit / step) + 1)]
