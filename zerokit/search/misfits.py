"""Which strategies are known not to fit, by families that differ in knobs alone."""

from __future__ import annotations

from dataclasses import dataclass, field

from zerokit.search.space import Knobs, Layout, OffloadChoice
from zerokit.values import frozen_dataclass


@frozen_dataclass
class KnobFamily:
    """A strategy but for its knobs.

    ``frugal``: the settings of which one requires the least memory, the likeliest last.
    """

    layout: Layout
    placement: OffloadChoice
    checkpointing: str
    micro_batch: int
    accumulation: int
    variants: tuple[Knobs, ...]
    frugal: tuple[Knobs, ...]

    @property
    def fastest(self) -> tuple[Knobs, ...]:
        """The settings of which one is the fastest: a second copy of quantised weights may save nothing."""
        first = {chosen.hpz_partition_size: chosen for chosen in reversed(self.variants)}
        return tuple(first.values())

    @property
    def relatives(self) -> tuple[object, ...]:
        """What it shares with the families of other micro-batches: with as much accumulation (three are as
        many), a larger one requires more."""
        return self.layout, self.placement, self.checkpointing, min(3, self.accumulation)


@dataclass(slots=True, eq=False)
class Misfits:
    """Which settings of which families do not fit, as far as memory was asked."""

    # relatives and knobs -> (smallest micro-batch that does not fit, why)
    too_large: dict[tuple[object, ...], tuple[int, str]] = field(default_factory=dict)
    asked: set[tuple[object, ...]] = field(default_factory=set)

    def add(self, family: KnobFamily, *settings: Knobs, reason: str) -> None:
        """These settings do not fit, nor with a larger micro-batch."""
        for chosen in settings:
            self.too_large[(family.relatives, chosen)] = (family.micro_batch, reason)

    def known(self, family: KnobFamily, chosen: Knobs) -> str | None:
        """Why these settings do not fit, as they or a smaller micro-batch told; ``None``: none did."""
        limit = self.too_large.get((family.relatives, chosen))
        return limit[1] if limit is not None and family.micro_batch >= limit[0] else None

    def of(self, family: KnobFamily, chosen: Knobs) -> str | None:
        """Why these settings do not fit: they themselves, or all frugal ones; ``None``: that is not known."""
        return self.known(family, chosen) or self._of_all(family)

    def _of_all(self, family: KnobFamily) -> str | None:
        reasons = [self.known(family, frugal) for frugal in family.frugal]
        return reasons[-1] if all(reasons) else None

    def to_ask(self, family: KnobFamily, chosen: Knobs) -> bool:
        """Whether these settings were neither asked nor are known not to fit; notes them as asked."""
        key = (family.relatives, chosen, family.micro_batch)
        if key in self.asked or self.known(family, chosen):
            return False
        self.asked.add(key)
        return True
