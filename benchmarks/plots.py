"""Two small plots as SVG text: predicted against measured, and errors by group."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

_FONT = "font-family='system-ui, sans-serif' font-size='12'"


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """Points of one colour: (measured, predicted), and what they are."""

    title: str
    colour: str
    points: Sequence[tuple[float, float]]


def scatter(series: Sequence[Series], *, title: str, across: str, up: str) -> str:
    """Points on logarithmic axes of equal range, with the diagonal on which a prediction is right."""
    values = [value for one in series for point in one.points for value in point if value > 0]
    low, high = 10 ** math.floor(math.log10(min(values))), max(values) * 1.15
    side, left, top = 440.0, 64.0, 44.0

    def along(value: float) -> float:
        return side * math.log(max(value, low) / low) / math.log(high / low)

    def x(value: float) -> str:
        return f"{left + along(value):.1f}"

    def y(value: float) -> str:
        return f"{top + side - along(value):.1f}"

    parts = _head(left + side + 16, top + side + 24 + 18 * len(series) + 34, title)
    for tick in _ticks(low, high):
        parts.append(
            f"<path d='M{x(tick)} {top}V{top + side}M{left} {y(tick)}H{left + side}' stroke='#ddd'/>"
        )
        parts.append(f"<text x='{x(tick)}' y='{top + side + 16}' text-anchor='middle'>{tick:g}</text>")
        parts.append(f"<text x='{left - 6}' y='{float(y(tick)) + 4:.1f}' text-anchor='end'>{tick:g}</text>")
    parts.append(f"<path d='M{x(low)} {y(low)}L{x(high)} {y(high)}' stroke='#888' stroke-dasharray='4 3'/>")
    for one in series:
        dots = "".join(f"<circle cx='{x(a)}' cy='{y(b)}' r='3'/>" for a, b in one.points)
        parts.append(f"<g fill='{one.colour}' fill-opacity='0.7'>{dots}</g>")
    parts.append(
        f"<text x='{left + side / 2}' y='{top + side + 34}' text-anchor='middle'>{escape(across)}</text>"
    )
    middle = top + side / 2
    parts.append(
        f"<text text-anchor='middle' transform='translate(16 {middle}) rotate(-90)'>{escape(up)}</text>"
    )
    for number, one in enumerate(series):
        row = top + side + 54 + 18 * number
        parts.append(f"<circle cx='{left}' cy='{row - 4}' r='5' fill='{one.colour}'/>")
        parts.append(f"<text x='{left + 12}' y='{row}'>{escape(one.title)}</text>")
    return "".join([*parts, "</svg>\n"])


def strips(groups: Mapping[str, Mapping[str, Sequence[float]]], *, title: str, floor: float = 1e-5) -> str:
    """|error| (a fraction, at least ``floor``) of every run by group, logarithmic, medians marked."""
    names = [(group, name, values) for group, inside in groups.items() for name, values in inside.items()]
    left, top, width, line = 210.0, 44.0, 460.0, 17.0
    height = line * (len(names) + len(groups))
    high = max((max(values) for _, _, values in names if values), default=0.1)
    high = max(0.05, high * 1.3)

    def x(value: float) -> str:
        return f"{left + width * math.log(max(value, floor) / floor) / math.log(high / floor):.1f}"

    parts = _head(left + width + 20, top + height + 40, title)
    for tick in (t for t in (1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0) if floor <= t <= high):
        parts.append(f"<path d='M{x(tick)} {top}v{height:g}' stroke='#ddd'/>")
        parts.append(
            f"<text x='{x(tick)}' y='{top + height + 16:g}' text-anchor='middle'>{tick * 100:g} %</text>"
        )
    for bar, words in ((0.01, "1 %"), (0.03, "3 %")):
        if bar <= high:
            parts.append(f"<path d='M{x(bar)} {top}v{height:g}' stroke='#c33' stroke-dasharray='3 3'/>")
            parts.append(f"<text x='{x(bar)}' y='{top - 4}' text-anchor='middle' fill='#c33'>{words}</text>")
    row, before = top, ""
    for group, name, values in names:
        if group != before:
            row, before = row + line, group
            parts.append(f"<text x='8' y='{row - 4:g}' font-weight='bold'>{escape(group)}</text>")
        row += line
        parts.append(
            f"<text x='{left - 8}' y='{row - 4:g}' text-anchor='end'>{escape(name)} ({len(values)})</text>"
        )
        dots = "".join(f"<circle cx='{x(value)}' cy='{row - 8:g}' r='3'/>" for value in values)
        parts.append(f"<g fill='#1668b8' fill-opacity='0.5'>{dots}</g>")
        ordered = sorted(values)
        parts.append(
            f"<path d='M{x(ordered[len(ordered) // 2])} {row - 14:g}v12' stroke='#111' stroke-width='2'/>"
        )
    return "".join([*parts, "</svg>\n"])


def _head(width: float, height: float, title: str) -> list[str]:
    box = f"viewBox='0 0 {width:g} {height:g}' width='{width:g}' height='{height:g}'"
    return [
        f"<svg xmlns='http://www.w3.org/2000/svg' {box} {_FONT} role='img'>",
        f"<title>{escape(title)}</title><rect width='100%' height='100%' fill='white'/>",
        f"<text x='8' y='20' font-size='14' font-weight='bold'>{escape(title)}</text>",
    ]


def _ticks(low: float, high: float) -> list[float]:
    steps = (10.0**power * digit for power in range(-6, 7) for digit in (1, 2, 5))
    return [tick for tick in steps if low <= tick <= high]
