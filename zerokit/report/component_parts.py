"""Predicted components as the parts of a bar or an area: the largest by name, the others together."""

from __future__ import annotations

from collections.abc import Mapping

from zerokit.memory.components import label

_COLOURS = 7  # classes c0 to c6 of the page's style sheet; the last is for the others


def styles(by_phase: Mapping[str, Mapping[str, int]]) -> dict[str, str]:
    """A colour for each of the largest components, the same in every phase."""
    most: dict[str, int] = {}
    for parts in by_phase.values():
        for name, size in parts.items():
            most[name] = max(size, most.get(name, 0))
    names = sorted(most, key=lambda name: -most[name])[: _COLOURS - 1]
    return {name: f"c{number}" for number, name in enumerate(names)}


def stacked(parts: Mapping[str, int], styles: Mapping[str, str]) -> list[tuple[str, float, str]]:
    """``(label, bytes, style)`` of each component, the largest anywhere first."""
    largest = [
        (f"predicted: {label(name)}", float(parts[name]), style)
        for name, style in styles.items()
        if parts.get(name)
    ]
    rest = sum(size for name, size in parts.items() if name not in styles)
    return [*largest, ("predicted: others", float(rest), f"c{_COLOURS - 1}")] if rest else largest
