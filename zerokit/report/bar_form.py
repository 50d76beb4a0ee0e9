"""Where the words of a bar chart are, and how much room they need: pixels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from zerokit.report import drawing

_WORDS_BESIDE = 600  # pixels: in narrower drawings, the words of a bar are above it
LETTER, _LONGEST_NAME = 8.0, 16  # pixels of a letter on the average, at most; letters of a bar's name


@dataclass(frozen=True, slots=True, kw_only=True)
class BarForm:
    """Where the words of bars are, and how much room there is: pixels.

    Attributes:
        pitch: from one bar to the next.
        apart: from one pair of bars to the next, in addition.
        below: under each bar.
        above: the words are above the bar, else beside it.
    """

    left: float
    right: float
    pitch: float
    apart: float
    thickness: float
    below: float
    font_size: float
    above: bool

    def write(self, canvas: drawing.Canvas, bottom: float, name: str, value: str) -> None:
        """The words of the bar whose lower edge is so many pixels from the top."""
        if self.above:
            baseline = bottom - self.thickness - 5
            canvas.text(0, baseline, name, most=24)
            canvas.text(canvas.width, baseline, value, align="right")
        else:
            baseline = bottom - 5.5
            canvas.text(0, baseline, name, most=_LONGEST_NAME)
            canvas.text(canvas.width - self.right + 12, baseline, value)


def bar_form(width: int, names: Sequence[str], values: Sequence[str]) -> BarForm:
    """Room for the words of bars in a drawing of this width."""
    if width < _WORDS_BESIDE:
        return BarForm(
            left=0, right=2, pitch=42, apart=8, thickness=18, below=0, font_size=font_size(width), above=True
        )
    left = LETTER * min(_LONGEST_NAME, max(map(len, names), default=0)) + 16
    right = LETTER * max(map(len, values), default=0) + 16
    return BarForm(
        left=left,
        right=right,
        pitch=27,
        apart=8,
        thickness=20,
        below=3.5,
        font_size=font_size(width),
        above=False,
    )


def font_size(width: int) -> float:
    """So that text has at least 11 pixels in the narrowest figure that shows a drawing of this width."""
    return 12.5 if width < _WORDS_BESIDE else 13.5
