"""What training without an engine adds to a micro-batch and to a step: one all-reduce, the optimizer.

``DistributedDataParallel`` of torch 2.13 copies gradients into buckets of 25 MiB as they come, all-reduces
each beside the backward pass, and copies it back (torch/csrc/distributed/c10d/reducer.cpp); Accelerate has it
do so in the last micro-batch of a step alone (``no_sync``, accelerate/accelerator.py, 1.15). All that is from
sizes; the host's part is left out, but for casts under autocast and an optimizer that steps its tensors one
by one.
"""

from __future__ import annotations

import math

from zerokit.domain.ddp_settings import ddp
from zerokit.domain.strategy import Strategy
from zerokit.timing.spread import EngineStep, Flow

_BUCKET_BYTES = 25 << 20
"""``bucket_cap_mb``'s default (torch/nn/parallel/distributed.py, 2.13)."""
_ADAM_PASSES = 7.0
"""Weight, gradient and two moments are read, all but the gradient written."""
_CLIPPING_PASSES = 3.0
"""Gradients are read for the norm, read and written where they are scaled."""
_ADDING_PASSES = 3.0
"""Of gradients to those that are there."""
_BUCKET_PASSES = 4.0
"""Into a bucket and out of it."""
_CAST_BYTES = 6.0
"""Of a weight that autocast reads in fp32 and writes in 16 bits; of its gradient the other way."""


class DdpStep(EngineStep):
    """Plain PyTorch's part."""

    def data_parallel(self, strategy: Strategy) -> Flow:
        """One all-reduce of all gradients, beside the last backward pass of a step."""
        way = self._spread.route(strategy.data_parallel, 1)
        gradients = self._spread.rank_weights(strategy)[1] * self._trained_bytes(strategy)
        messages = max(1, math.ceil(gradients / _BUCKET_BYTES))
        per_step = way.seconds(gradients, passes=2, messages=messages)
        return Flow(route=way, per_micro=0.0, per_step=per_step, overlapped=True, overlapped_at_end=True)

    def layer_launch(self, strategy: Strategy) -> tuple[float, float, float]:
        """Host time of a layer's casts under autocast: forward, backward, recomputation."""
        settings, c = ddp(strategy.settings), self._constants
        if not settings.autocast:
            return 0.0, 0.0, 0.0
        trained = self._job.method == "full"
        wide = c.launch_seconds * (settings.weight_bytes == 4)
        adapted = 0.0
        if not trained and settings.adapter_bytes == 4:
            adapted = c.launch_seconds * self._shape.adapted_share(self._job.adapters.targets)
        of_weights, of_adapters = c.autocast_launch, c.autocast_adapter_launch
        return (
            wide * of_weights[0] + adapted * of_adapters[0],
            wide * of_weights[1] * trained + adapted * of_adapters[1],
            wide * of_weights[2] + adapted * of_adapters[2],
        )

    def gradients(self, strategy: Strategy) -> float:
        """GPU time of casts under autocast, of adding gradients up and of buckets, per micro-batch."""
        settings = ddp(strategy.settings)
        weights, trained = self._spread.rank_weights(strategy)
        often = self.reductions(strategy)
        passes = _ADDING_PASSES * (1 - often) + _BUCKET_PASSES * often * (strategy.data_parallel > 1)
        size = passes * self._trained_bytes(strategy) * trained
        if settings.autocast:
            wide = weights if settings.weight_bytes == 4 else trained * settings.wide_adapters
            size += _CAST_BYTES * (wide + min(wide, trained))
        return size / self._hbm

    def optimizer(self, strategy: Strategy) -> float:
        """Adam over whole tensors, and the norm of their gradients."""
        passes = _ADAM_PASSES + (_CLIPPING_PASSES if strategy.settings.gradient_clipping else 0.0)
        moved = passes * self._trained_bytes(strategy) * self._spread.owned(strategy) / self._hbm
        return max(moved, self._spread.stepped_one_by_one(strategy, self._spread.tensors(strategy)))

    def _trained_bytes(self, strategy: Strategy) -> int:
        settings = ddp(strategy.settings)
        return settings.weight_bytes if self._job.method == "full" else settings.adapter_bytes
