"""What every way to reduce gradients below ZeRO-3 has in common: when they come, and what is held of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from itertools import chain

from zerokit.domain.deepspeed_settings import DeepSpeedSettings
from zerokit.memory.components import Component
from zerokit.memory.ledger import Ledger
from zerokit.memory.rank_model import ElementBytes, Overlay, RankModel
from zerokit.memory.replay.partition import Partition


class GradientReduction(ABC):
    """One rank's gradients over the micro-steps of an optimizer step, and the step. Bytes go to the ledger.

    ``boundary``: the last micro-step before the optimizer's; ``first``: the first after it.
    """

    def __init__(
        self, model: RankModel, settings: DeepSpeedSettings, part: Partition, ledger: Ledger
    ) -> None:
        self.model = model
        self.settings = settings
        self.zero = settings.zero
        self.part = part
        self.ledger = ledger
        self.element_bytes = ElementBytes.of(settings)
        self.sizes = model.trainable_sizes

    def backward(self, boundary: bool, first: bool) -> Overlay:
        """Every gradient in the order of the backward pass."""
        return self._held(first)

    @abstractmethod
    def gradient_ready(self, index: int, boundary: bool, first: bool) -> None:
        """Autograd has made the gradient of trainable parameter ``index``."""

    @abstractmethod
    def end_of_backward(self, boundary: bool, first: bool) -> None:
        """What the engine does when the last gradient is there."""

    @abstractmethod
    def step(self) -> None:
        """The optimizer's step; the gradients are gone afterwards."""

    def _open_buckets(self) -> None:
        """Allocate the buckets at the first gradient. This base has none."""
        return

    def _held(self, first: bool) -> Overlay:
        """Gradients add up until the end of backward, or are added to those that are there."""
        ledger, marks = self.ledger, self.model.gradient_indexes
        start = ledger.total
        opening = next((i for i, index in enumerate(marks) if index >= 0), len(marks))
        if opening < len(marks):
            self._open_buckets()
        level = ledger.total
        if first:
            accumulated = self.model.accumulated_gradients(self.element_bytes.gradient)
            after = [level + size for size in accumulated]
            ledger.adopt(Component.GRADIENTS, accumulated[-1])
        else:
            after = [level] * len(marks)
        after[:opening] = [start] * opening
        during = [*after[:opening], *chain([level], after[opening:])][: len(marks)]
        return Overlay(start=start, during=tuple(during), after=tuple(after))
