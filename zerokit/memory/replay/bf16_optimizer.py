"""Stage 1 with bf16 weights and gradients accumulated in fp32: ``runtime/bf16_optimizer.py`` (0.19.8).

The engine replaces the ZeRO optimizer (engine.py:2305): states are divided, but every rank keeps one flat
fp32 buffer of all gradients for good, and no bucket.
"""

from __future__ import annotations

from zerokit.domain.deepspeed_settings import DeepSpeedSettings
from zerokit.memory.components import Component
from zerokit.memory.rank_model import Precision
from zerokit.memory.replay.optimizers import optimizer_temporaries
from zerokit.memory.replay.zero_1_2 import Stage12


def runs_bf16_optimizer(settings: DeepSpeedSettings) -> bool:
    """Whether the engine takes ``BF16_Optimizer`` (``_do_optimizer_sanity_check``)."""
    width = Precision.of(settings)
    return (
        settings.zero.stage == 1
        and settings.precision == "bf16"
        and (width.parameter, width.accumulation) == (2, 4)
        and settings.zero.offload_optimizer.device == "none"
    )


class Bf16Gradients(Stage12):
    """One rank's gradients: held as they come until the step, added into the flat buffer after each
    backward pass. The buffer is one of the rank's persistent states."""

    def _accumulates_apart(self) -> bool:
        return False

    def _in_hook(self, boundary: bool) -> bool:
        return False

    def _open_buckets(self) -> None:
        return

    def end_of_backward(self, boundary: bool, first: bool) -> None:
        """``update_hp_grads`` (bf16_optimizer.py:523), then ``buffered_allreduce_fallback`` of the buffer:
        a view of it, converted whole for communication (engine.py:3801)."""
        self.ledger.burst(Component.GRADIENT_COPY, self.layout.largest * 4)
        if boundary and self.bytes.communication != 4:
            elements = self.part.size * self.part.count
            self.ledger.burst(Component.REDUCE_COPY, elements * self.bytes.communication)

    def step(self) -> None:
        """``step``: the partition's gradient is a view of the buffer."""
        temporaries = optimizer_temporaries(self.settings)
        self.ledger.burst(Component.OPTIMIZER_TEMPORARIES, self.part.size * 4 * temporaries)
        self.ledger.set(Component.GRADIENTS, 0)
