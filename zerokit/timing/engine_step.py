"""What the engine that trains adds to a micro-batch and to a step; one class for each
(``zerokit.timing.step_time``)."""

from __future__ import annotations

from abc import ABC, abstractmethod

from zerokit.domain.strategy import Strategy
from zerokit.timing.collectives import Flow
from zerokit.timing.spread import Spread


class EngineStep(ABC):
    """One engine's part of the steps of one model and job on one cluster; it states what it does. Seconds.

    Args:
        spread: what is the same under every engine.
    """

    def __init__(self, spread: Spread) -> None:
        self._spread = spread
        self._shape, self._job, self._constants = spread.shape, spread.job, spread.constants
        self._hbm = spread.cluster.gpu.hbm_bytes_per_second * spread.constants.hbm_efficiency

    @abstractmethod
    def data_parallel(self, strategy: Strategy) -> Flow:
        """What crosses between data-parallel ranks."""

    def layer_launch(self, strategy: Strategy) -> tuple[float, float, float]:
        """More host time of a layer: forward, backward, recomputation."""
        return 0.0, 0.0, 0.0

    def reductions(self, strategy: Strategy) -> float:
        """How often gradients are reduced, per micro-batch."""
        return 1 / strategy.settings.gradient_accumulation

    def waits(self, strategy: Strategy) -> float:
        """How often the host waits for all ranks, per micro-batch."""
        return 0.0

    def hooks(self, strategy: Strategy) -> float:
        """Host time of Python's hooks on gradients, per micro-batch."""
        return 0.0

    @abstractmethod
    def gradients(self, strategy: Strategy) -> float:
        """GPU time of a micro-batch's copies of gradients and weights, products and link left out."""

    @abstractmethod
    def optimizer(self, strategy: Strategy) -> float:
        """The optimizer's step, but for what the host does of it."""

    def flattened(self, strategy: Strategy) -> float:
        """Elements of the gradients that the optimizer's step makes one tensor in fp32 of."""
        return 0.0

    def hosted(self, strategy: Strategy) -> float:
        """Share of a rank's optimizer step that the host makes."""
        return 0.0

    def offloaded_gradients(self, strategy: Strategy, owned: float) -> tuple[float, float]:
        """Bytes of gradients that go to the host once a step, and both ways each micro-batch."""
        return 0.0, 0.0
