"""Memory over time as an inline SVG: a line a rank, the prediction and the card's limit beside them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from html import escape
from typing import Any

from zerokit.report.schema import RankReport, RunReport
from zerokit.units import GIB, format_seconds

_WIDTH, _HEIGHT = 960, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 12, 14, 30
_MOST_LINES = 8
_TIME, _ALLOCATED, _HOST = 0, 3, 6  # positions in a timeline point


@dataclass(frozen=True, slots=True, kw_only=True)
class _Scale:
    seconds: float
    limit_bytes: float

    def x(self, at: float) -> float:
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * min(1.0, at / self.seconds)

    def y(self, used: float) -> float:
        return _HEIGHT - _BOTTOM - (_HEIGHT - _TOP - _BOTTOM) * min(1.0, used / self.limit_bytes)


def timeline_svg(run: RunReport) -> Any:
    """The chart, marked as safe HTML; None where nothing was recorded."""
    from markupsafe import Markup

    field = _ALLOCATED if run.gpu_measured else _HOST
    series = {rank.rank: points for rank in run.ranks if len(points := _points(rank, field)) > 1}
    if not series:
        return None
    shown = sorted(series, key=lambda rank: -max(used for _, used in series[rank]))[:_MOST_LINES]
    pair = run.predicted_vs_measured.peak_bytes if run.predicted_vs_measured else None
    predicted = pair.predicted if pair and run.on_gpu == run.gpu_measured else None
    peak = max(used for rank in shown for _, used in series[rank])
    top = max(peak, predicted or 0) * 1.08 or 1.0
    scale = _Scale(seconds=max(series[rank][-1][0] for rank in shown) or 1.0, limit_bytes=top)
    body = [*_axes(scale), *_prediction(scale, predicted)]
    body += [_line(scale, rank, number, series[rank]) for number, rank in enumerate(sorted(shown))]
    what = "GPU memory allocated" if run.gpu_measured else "Host memory"
    left_out = f"; the fullest {len(shown)} of {len(series)} ranks" if len(series) > len(shown) else ""
    caption = f"{what} over time, GiB{left_out}"
    return Markup(
        f'<figure><svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(caption)}">'
        + "".join(body)
        + f"</svg><figcaption>{escape(caption)}</figcaption></figure>"
    )


def _points(rank: RankReport, field: int) -> list[tuple[float, float]]:
    points = []
    for point in rank.timeline:
        if len(point) <= field:
            continue
        at, used = point[_TIME], point[field]
        if all(
            isinstance(value, int | float) and math.isfinite(value) and value >= 0 for value in (at, used)
        ):
            points.append((float(at), float(used)))
    return sorted(points)


def _axes(scale: _Scale) -> list[str]:
    drawn = []
    for tick in _ticks(scale.limit_bytes / GIB):
        y = scale.y(tick * GIB)
        drawn.append(f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        drawn.append(f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{tick:g}</text>')
    for tick in _ticks(scale.seconds):
        label = escape(format_seconds(tick) if tick else "0")
        drawn.append(f'<text x="{scale.x(tick):.1f}" y="{_HEIGHT - 8}" text-anchor="middle">{label}</text>')
    return drawn


def _ticks(limit: float) -> list[float]:
    """Four to eight round values from zero up to ``limit``."""
    raw = limit / 6
    power = 10.0 ** math.floor(math.log10(raw)) if raw > 0 else 1.0
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= raw)
    return [step * number for number in range(int(limit / step) + 1)]


def _prediction(scale: _Scale, predicted: float | None) -> list[str]:
    if not predicted or predicted < 0:
        return []
    y = scale.y(predicted)
    return [
        f'<line class="predicted" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>',
        f'<text x="{_WIDTH - _RIGHT}" y="{y - 5:.1f}" text-anchor="end">predicted peak</text>',
    ]


def _line(scale: _Scale, rank: int, number: int, points: list[tuple[float, float]]) -> str:
    path = " ".join(f"{scale.x(at):.1f},{scale.y(used):.1f}" for at, used in points)
    return f'<polyline class="series s{number}" points="{path}"><title>rank {rank}</title></polyline>'
