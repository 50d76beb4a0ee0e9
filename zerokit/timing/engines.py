"""The engine that trains, as the time model sees it: one class for each."""

from __future__ import annotations

from typing import Protocol

from zerokit.domain.strategy import Strategy
from zerokit.timing.collectives import Flow
from zerokit.timing.deepspeed_step import DeepSpeedStep
from zerokit.timing.spread import Spread


class EngineStep(Protocol):
    """What an engine adds to a step. Seconds."""

    def data_parallel(self, strategy: Strategy) -> Flow:
        """What crosses between data-parallel ranks."""

    def layer_launch(self, strategy: Strategy) -> tuple[float, float, float]:
        """More host time of a layer: forward, backward, recomputation."""

    def reductions(self, strategy: Strategy) -> float:
        """How often gradients are reduced, per micro-batch."""

    def hooks(self, strategy: Strategy) -> float:
        """Host time of hooks on gradients, per micro-batch."""

    def gradients(self, strategy: Strategy) -> float:
        """GPU time of a micro-batch's copies of gradients and weights, products and link left out."""

    def optimizer(self, strategy: Strategy) -> float:
        """The optimizer's step, but for what the host does of it."""

    def flattened(self, strategy: Strategy) -> float:
        """Elements of the gradients that the optimizer's step makes one tensor in fp32 of."""

    def hosted(self, strategy: Strategy) -> float:
        """Share of a rank's optimizer step that the host makes."""

    def offloaded_gradients(self, strategy: Strategy, owned: float) -> tuple[float, float]:
        """Bytes of gradients that go to the host once a step, and both ways each micro-batch."""


def engine_step(name: str, spread: Spread) -> EngineStep:
    """What the engine of this name adds; only what is asked for is imported."""
    if name == "fsdp2":
        from zerokit.timing.fsdp2_step import Fsdp2Step

        return Fsdp2Step(spread)
    return DeepSpeedStep(spread)
