"""Lay DeepSpeed's bytes over the activations of a pass and find the highest instant."""

from __future__ import annotations

from operator import add

from zerokit.domain.activations import Pass
from zerokit.memory.rank_model import Overlay


def highest(activations: Pass, overlay: Overlay) -> float:
    """The most live at once over the pass. Bytes."""
    peaks, levels = activations.peaks, activations.levels
    best = 0.0
    if len(overlay.stretches) * 4 < len(peaks):
        highest_known = activations.highest
        for marks, level in overlay.stretches:
            top = highest_known.get(marks)
            if top is None:
                top = highest_known[marks] = max(peaks[marks[0] : marks[1]])
            if top + level > best:
                best = top + level
    else:
        best = max(map(add, peaks, overlay.before))
    for index, during in overlay.bursts:
        total = levels[index] + during
        if total > best:
            best = total
    return best


def where(activations: Pass, overlay: Overlay) -> tuple[int, bool]:
    """(mark, whether on the way to it rather than at it) of the highest instant."""
    best, instant = -1.0, (0, True)
    before = overlay.start
    for index, (during, after) in enumerate(zip(overlay.during, overlay.after, strict=True)):
        if activations.peaks[index] + before > best:
            best, instant = activations.peaks[index] + before, (index, True)
        if activations.levels[index] + during > best:
            best, instant = activations.levels[index] + during, (index, False)
        before = after
    return instant
