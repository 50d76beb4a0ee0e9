"""What Matplotlib draws, as SVG that goes into a page: colours by name, text as text, nothing to load.

A style's name stands in the SVG as ``var(--NAME)``, so that the page's style sheet colours it, for light and
dark. Lengths are CSS pixels (Matplotlib's points, at 72 to the inch), values are those of the axes.
"""

from __future__ import annotations

import functools
import io
import logging
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING
from xml.etree import ElementTree

if TYPE_CHECKING:
    from matplotlib.artist import Artist


_DPI = 72  # a point is a pixel
_FONT = "system-ui, sans-serif"
_MEASURED_FONT = "DejaVu Sans"  # comes with Matplotlib; wider than what browsers show
_NUMBER = re.compile(r"-?\d+\.\d+(?:e-?\d+)?")
_PLACEHOLDER = re.compile(r"#fe([0-9a-f]{4})")
_FLAG_HEIGHT, _FLAG_ROWS = 19, 3
_SPECK = 3  # pixels
_SETTINGS = {"svg.fonttype": "none", "svg.hashsalt": "zerokit", "font.family": ["sans-serif"],
             "font.sans-serif": [_MEASURED_FONT], "path.simplify": True}  # fmt: skip


@functools.cache
def why_unavailable() -> str:
    """Why nothing can be drawn here, as a sentence; empty where Matplotlib works."""
    try:
        with _quiet():
            import matplotlib.backends.backend_svg
            import matplotlib.figure  # noqa: F401
    except ModuleNotFoundError as error:
        name = (error.name or "").partition(".")[0]
        return f"{'Matplotlib' if name == 'matplotlib' else name} is not installed."
    except Exception as error:  # one that was built for another NumPy fails in ways of its own
        return f"Matplotlib cannot be imported: {error}".partition("\n")[0].rstrip(".") + "."
    return ""


Margins = tuple[float, float, float, float]  # pixels around the axes: left, right, top, bottom
Ticks = Sequence[tuple[float, str]]  # values of an axis and their labels


def round_values(limit: float, *, unit: float, most: int, suffix: str = "") -> Ticks:
    """At most so many round multiples of ``unit`` from zero to ``limit``; zero has no ``suffix``."""
    from matplotlib.ticker import MaxNLocator

    highest = limit / unit
    found = MaxNLocator(nbins=most, steps=[1, 2, 5, 10]).tick_values(0, highest)
    values = [float(value) for value in found if 0 <= value <= highest]
    return [(value * unit, f"{value:g}{suffix if value else ''}") for value in values]


class Canvas:
    """One drawing of a fixed size, in pixels, with axes from zero to ``limits`` (across, up)."""

    def __init__(
        self, width: float, height: float, margins: Margins, limits: tuple[float, float], font_size: float
    ) -> None:
        from matplotlib.figure import Figure

        self.width, self.height, self.font_size = width, height, font_size
        left, right, top, bottom = margins
        self.plot_width, self.plot_height = width - left - right, height - top - bottom
        self._styles: list[str] = []
        self._titles: list[str] = []
        self._figure = Figure(figsize=(width / _DPI, height / _DPI), dpi=_DPI)
        self._figure.patch.set_visible(False)
        self._axes = self._figure.add_axes(
            (left / width, bottom / height, self.plot_width / width, self.plot_height / height)
        )
        self._axes.set(xlim=(0, limits[0]), ylim=(0, limits[1]))
        self._axes.patch.set_visible(False)
        self._axes.set_axis_off()

    def colour(self, style: str) -> str:
        """A colour that stands for the style until the drawing is written."""
        if style not in self._styles:
            self._styles.append(style)
        return f"#fe{self._styles.index(style):04x}"

    def ticks(self, across: Ticks, up: Ticks) -> None:
        """Label both axes, with a line across the plot for each value that goes up."""
        self._axes.set_axis_on()
        self._axes.set_axisbelow(True)
        for spine in self._axes.spines.values():
            spine.set_visible(False)
        self._axes.tick_params(
            left=False, bottom=False, labelsize=self.font_size, labelcolor=self.colour("soft"), pad=5
        )
        self._axes.grid(axis="y", color=self.colour("rule"), linewidth=1, clip_on=False)
        for axis, ticks in ((self._axes.xaxis, across), (self._axes.yaxis, up)):
            axis.set_ticks([value for value, _ in ticks], labels=[text for _, text in ticks])

    def area(
        self,
        start: float,
        end: float,
        low: float,
        high: float,
        *,
        style: str,
        title: str = "",
        layer: float = 1,
    ) -> None:
        """A filled rectangle."""
        from matplotlib.patches import Rectangle

        colour = self.colour(style)
        patch = Rectangle(
            (start, low), end - start, high - low, facecolor=colour, linewidth=0, zorder=layer, clip_on=False
        )
        self._axes.add_patch(patch)
        self._titled(patch, title)

    def line(self, points: Sequence[tuple[float, float]], *, style: str, title: str, width: float) -> None:
        """Values joined by a line."""
        (line,) = self._axes.plot(
            *zip(*points, strict=True), color=self.colour(style), linewidth=width, clip_on=False, zorder=2.5
        )
        self._titled(line, title)

    def level(self, value: float, *, style: str, dashed: bool) -> None:
        """A line from the left to the right."""
        self._axes.axhline(
            value, color=self.colour(style), linewidth=1.5 if dashed else 2, zorder=2.2, clip_on=False,
            linestyle=(0, (6, 4)) if dashed else "solid",
        )  # fmt: skip

    def event(self, at: float, *, style: str, title: str, strong: bool) -> None:
        """A line from the bottom to the top; a strong one is solid."""
        line = self._axes.axvline(
            at, color=self.colour(style), linewidth=2.5 if strong else 1.5, zorder=2.8, clip_on=False,
            linestyle="solid" if strong else (0, (2, 3)),
        )  # fmt: skip
        self._titled(line, title)

    def flag(self, at: float, row: int, letter: str, *, style: str, title: str) -> None:
        """A letter in a box above the plot, in one of the rows there; the lowest is row 0."""
        flag = self._axes.annotate(
            _readable(letter), (at, 1), xycoords=("data", "axes fraction"),
            xytext=(0, 8 + _FLAG_HEIGHT * row), textcoords="offset points", ha="center", va="center_baseline",
            fontsize=self.font_size - 0.5, fontweight="bold", color=self.colour("ink"), zorder=5,
            annotation_clip=False, bbox={"boxstyle": "round,pad=0.22", "facecolor": self.colour("paper"),
                  "edgecolor": self.colour(style), "linewidth": 1.5}, parse_math=False,
        )  # fmt: skip
        self._titled(flag, title)

    def dot(self, across: float, up: float, *, style: str, title: str, radius: float) -> None:
        """A filled circle of so many pixels."""
        from matplotlib.patches import Ellipse

        (_, right), (_, top) = self._axes.get_xlim(), self._axes.get_ylim()
        width, height = 2 * radius * right / self.plot_width, 2 * radius * top / self.plot_height
        dot = Ellipse(
            (across, up), width, height, facecolor=self.colour(style), linewidth=0, zorder=3, clip_on=False
        )
        self._axes.add_patch(dot)
        self._titled(dot, title)

    def specks(self, points: Sequence[tuple[float, float]], *, style: str) -> None:
        """Many small squares as one path; of those in one place a single one."""
        from matplotlib.patches import PathPatch
        from matplotlib.path import Path

        (_, right), (_, top) = self._axes.get_xlim(), self._axes.get_ylim()
        wide, high = right / self.plot_width, top / self.plot_height
        places = sorted({(round(x / wide), round(y / high)) for x, y in points})
        if not places:
            return
        half = _SPECK / 2
        corners = ((-half, -half), (half, -half), (half, half), (-half, half), (-half, -half))
        vertices = [((x + dx) * wide, (y + dy) * high) for x, y in places for dx, dy in corners]
        codes = [Path.MOVETO, Path.LINETO, Path.LINETO, Path.LINETO, Path.CLOSEPOLY] * len(places)
        colour = self.colour(style)
        path = Path(vertices, codes)
        self._axes.add_patch(PathPatch(path, facecolor=colour, linewidth=0, zorder=1.5, clip_on=False))

    def text(
        self, left: float, top: float, text: str, *, style: str = "ink", align: str = "left", most: int = 0
    ) -> None:
        """A text whose baseline is so many pixels from the top. ``most``: characters; the rest is cut."""
        text = _readable(text)
        if most and len(text) > most:
            text = f"{text[: most - 1]}…"
        self._figure.text(
            left / self.width, 1 - top / self.height, text, ha=align, va="baseline", fontsize=self.font_size,
            color=self.colour(style), parse_math=False,
        )  # fmt: skip

    def _titled(self, artist: Artist, title: str) -> None:
        """Give the artist what a browser shows when the pointer is on it."""
        if title:
            artist.set_gid(f"title-{len(self._titles)}")
            self._titles.append(_readable(title))

    def svg(self, name: str) -> str:
        """The drawing as an ``<svg>`` element of the class ``name``, without ids, styles or links."""
        written = io.BytesIO()
        self._figure.savefig(written, format="svg", metadata={"Date": None})
        root = ElementTree.Element(
            "svg", {"class": name, "viewBox": f"0 0 {self.width:g} {self.height:g}", "aria-hidden": "true"}
        )
        root.extend(self._leaves(ElementTree.fromstring(written.getvalue()), ""))
        text = ElementTree.tostring(root, encoding="unicode").replace(
            f"'{_MEASURED_FONT}', sans-serif", _FONT
        )
        return _PLACEHOLDER.sub(lambda found: f"var(--{self._styles[int(found[1], 16)]})", text)

    def _leaves(self, group: ElementTree.Element, title: str) -> Iterator[ElementTree.Element]:
        """Paths and texts out of Matplotlib's groups, each with the title of its group."""
        for part in group:
            kind = part.tag.rpartition("}")[2]
            if kind == "g":
                number = re.fullmatch(r"title-(\d+)", part.get("id", ""))
                yield from self._leaves(part, self._titles[int(number[1])] if number else title)
            elif kind in ("path", "text"):
                kept = {key: part.attrib[key] for key in ("d", "x", "y", "style") if key in part.attrib}
                leaf = ElementTree.Element(kind, {key: _rounded(value) for key, value in kept.items()})
                leaf.text = part.text
                if title:
                    ElementTree.SubElement(leaf, "title").text = title
                yield leaf


@contextmanager
def matplotlib_settings() -> Iterator[None]:
    """Matplotlib as it comes, whatever the user's settings are, and silent."""
    import matplotlib

    with _quiet(), matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_SETTINGS)
        yield


@contextmanager
def _quiet() -> Iterator[None]:
    """No word about fonts: not that their list is written for the first time, nor what they lack."""
    logger = logging.getLogger("matplotlib")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


def flag_rows(positions: Sequence[float], apart: float) -> list[int | None]:
    """The row of each flag, so that none hides another; None where there is no room. ``positions`` (the most
    important first) and how far ``apart`` flags are at least: shares of the width."""
    rows: list[list[float]] = [[] for _ in range(_FLAG_ROWS)]
    found: list[int | None] = []
    for at in positions:
        row = next((n for n, row in enumerate(rows) if all(abs(at - other) >= apart for other in row)), None)
        if row is not None:
            rows[row].append(at)
        found.append(row)
    return found


def flags_height(rows: Sequence[int | None]) -> int:
    """Pixels above the plot that the flags take."""
    return _FLAG_HEIGHT * (1 + max((row for row in rows if row is not None), default=-1))


def _readable(text: str) -> str:
    """Without what XML cannot hold."""
    return "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in text)


def _rounded(text: str) -> str:
    """Numbers to a tenth of a pixel, on one line."""
    short = _NUMBER.sub(lambda found: f"{float(found[0]):.1f}".removesuffix(".0"), text)
    return " ".join(short.split())


WIDE = 600  # pixels


def font_size(width: int) -> float:
    """So that text has at least 11 pixels in the narrowest figure that shows a drawing of this width."""
    return 12.5 if width < WIDE else 13.5
