"""What is allocated, by component, and the most there ever was since one last asked."""

from __future__ import annotations

from zerokit.memory.components import Component


class Ledger:
    """Live bytes by component. :meth:`peak` is the highest total since :meth:`mark`."""

    __slots__ = ("_best", "_best_total", "amounts", "total", "watching")

    def __init__(self) -> None:
        self.amounts: dict[Component, int] = {}
        self.total = 0
        self._best_total = 0
        self._best: dict[Component, int] = {}
        self.watching = False  # keep the composition of the peak, not only its size

    def add(self, component: Component, size_bytes: int) -> None:
        """Allocate (or free, when negative)."""
        if not size_bytes:
            return
        self.amounts[component] = self.amounts.get(component, 0) + size_bytes
        self.total += size_bytes
        if self.total > self._best_total:
            self._best_total = self.total
            if self.watching:
                self._best = dict(self.amounts)

    def adopt(self, component: Component, size_bytes: int) -> None:
        """Take over what autograd allocated: at this instant it still counts among the activations."""
        self.amounts[component] = self.amounts.get(component, 0) + size_bytes
        self.total += size_bytes

    def set(self, component: Component, size_bytes: int) -> None:
        """Make a component exactly this large."""
        self.add(component, size_bytes - self.amounts.get(component, 0))

    def burst(self, component: Component, size_bytes: int) -> None:
        """Allocate and free at once: only the peak feels it."""
        self.add(component, size_bytes)
        self.add(component, -size_bytes)

    def mark(self) -> None:
        """Start watching for a new peak."""
        self._best_total = self.total
        if self.watching:
            self._best = dict(self.amounts)

    @property
    def peak(self) -> int:
        """The highest total since the last :meth:`mark`. Bytes."""
        return self._best_total

    def composition(self) -> dict[Component, int]:
        """What the peak was made of; empty components left out."""
        return {name: size for name, size in self._best.items() if size}
