"""ZeRO stage 0: whole gradients, all-reduced at the end (``runtime/fp16/fused_optimizer.py``, 0.19.8)."""

from __future__ import annotations

from zerokit.memory.components import Component
from zerokit.memory.replay.gradient_reduction import GradientReduction
from zerokit.memory.replay.optimizers import client, optimizer_temporaries

ALL_REDUCE_ELEMENTS = 500_000_000  # MEMORY_OPT_ALLREDUCE_SIZE, runtime/engine.py


class WholeGradients(GradientReduction):
    """Every rank keeps the gradient of every parameter."""

    def gradient_ready(self, index: int, boundary: bool, first: bool) -> None:
        """Kept where autograd made it, or added to what is there."""
        if first:
            self.ledger.adopt(Component.GRADIENTS, self.sizes[index] * self.element_bytes.gradient)

    def end_of_backward(self, boundary: bool, first: bool) -> None:
        """``buffered_allreduce_fallback``: zeros for parameters without a gradient
        (``_get_gradients_for_reduction``), then flat copies; the last gradient overshoots the limit."""
        if not boundary:
            return
        unused = sum(self.sizes[index] for index in self.model.unused)
        self.ledger.add(Component.GRADIENTS, unused * self.element_bytes.gradient)
        elements = min(sum(self.sizes), ALL_REDUCE_ELEMENTS + max(self.sizes, default=0))
        gradient, communication = self.element_bytes.gradient, self.element_bytes.communication
        converted = communication if communication != gradient else 0  # engine.py:3801
        self.ledger.burst(Component.REDUCE_COPY, elements * (gradient + converted))

    def step(self) -> None:
        """``FP16_Optimizer.step``: every gradient in fp32, then one flat copy of them.

        With fp32 weights DeepSpeed hands the step to the optimizer itself: nothing is copied.
        """
        ledger, total = self.ledger, self.model.trainable_numel
        temporaries = 4 * total * optimizer_temporaries(self.settings)
        if client(self.settings) is not None:  # FP16_UnfusedOptimizer keeps both gradients for the step
            wide = 4 * total if self.element_bytes.parameter == 2 else 0
            ledger.burst(Component.OPTIMIZER_TEMPORARIES, wide + temporaries)
        elif self.element_bytes.parameter == 2:
            ledger.add(Component.FP32_GRADIENT, 4 * total)
            ledger.add(Component.FLAT_GRADIENT, 4 * total)
            ledger.set(Component.FP32_GRADIENT, 0)
            ledger.set(Component.GRADIENTS, 0)
            ledger.set(Component.FLAT_GRADIENT, 0)
        else:
            ledger.burst(Component.OPTIMIZER_TEMPORARIES, temporaries)
        ledger.set(Component.GRADIENTS, 0)
