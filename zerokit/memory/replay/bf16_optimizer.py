"""Stage 1 with bf16 weights and gradients accumulated in fp32: ``runtime/bf16_optimizer.py`` (0.19.8).

The engine replaces the ZeRO optimizer (engine.py:2305): states are divided, but every rank keeps one flat
fp32 buffer of all gradients for good, and no bucket.
"""

from __future__ import annotations

from zerokit.domain.deepspeed_settings import DeepSpeedSettings
from zerokit.memory.components import Component
from zerokit.memory.rank_model import ElementBytes
from zerokit.memory.replay.gradient_reduction import GradientReduction
from zerokit.memory.replay.optimizers import optimizer_temporaries


def runs_bf16_optimizer(settings: DeepSpeedSettings) -> bool:
    """Whether the engine takes ``BF16_Optimizer`` (``_do_optimizer_sanity_check``)."""
    element_bytes = ElementBytes.of(settings)
    return (
        settings.zero.stage == 1
        and settings.precision == "bf16"
        and (element_bytes.parameter, element_bytes.accumulation) == (2, 4)
        and settings.zero.offload_optimizer.device == "none"
    )


class Bf16OptimizerGradients(GradientReduction):
    """One rank's gradients: held as they come until the step, added into the flat buffer after each
    backward pass. The buffer is one of the rank's persistent states."""

    def gradient_ready(self, index: int, boundary: bool, first: bool) -> None:
        """Kept where autograd made it, or added to what is there."""
        if first:
            self.ledger.adopt(Component.GRADIENTS, self.sizes[index] * self.element_bytes.gradient)

    def end_of_backward(self, boundary: bool, first: bool) -> None:
        """``update_hp_grads`` (bf16_optimizer.py:523), then ``buffered_allreduce_fallback`` of the buffer:
        a view of it, converted whole for communication (engine.py:3801)."""
        self.ledger.burst(Component.GRADIENT_COPY, self.model.largest * 4)
        if boundary and self.element_bytes.communication != 4:
            elements = self.part.size * self.part.count
            self.ledger.burst(Component.REDUCE_COPY, elements * self.element_bytes.communication)

    def step(self) -> None:
        """``step``: the partition's gradient is a view of the buffer."""
        temporaries = optimizer_temporaries(self.settings)
        self.ledger.burst(Component.OPTIMIZER_TEMPORARIES, self.part.size * 4 * temporaries)
        self.ledger.set(Component.GRADIENTS, 0)
