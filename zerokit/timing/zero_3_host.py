"""What ZeRO-3's host does in a step besides launching the model's kernels: how often, not how long.

Counted in rehearsals of DeepSpeed 0.19.8 (Llama 1B and 3B, Qwen2.5 1.5B, Qwen3 0.6B, on one and two ranks,
with and without checkpointing); ``zerokit.timing.constants`` has what each costs. The hooks of a layer's
modules are most of it, alike for these families. A gather joins parameters up to the prefetch bucket while
fewer elements are live than ``max_live_parameters``; beyond, a module's release makes room for the next few
weights only (partitioned_param_coordinator.py, ``max_params_to_prefetch``). Weights below
``param_persistence_threshold`` are never released, but gathered one by one after each optimizer step
(stage3.py, ``_post_step``).
"""

from __future__ import annotations

from zerokit.domain.deepspeed_settings import ZeroSettings
from zerokit.domain.model_shape import ModelShape, Stack

_GATHERS_BEYOND = 3.0
"""Of a layer and pass, once as many weights are live as may be."""
_BUCKET_FILL = 1.2
"""Gathers over bucketfuls: a parameter is not cut."""
_NORM_KERNELS = 8.0
_PLAIN_LAYER_KERNELS = 38.0
"""Of a Llama layer, which has two norms; a further norm is eight kernels."""
_QUERY_BIASES = ("qwen2",)
"""Families whose queries, keys and values have biases, though their other products have none."""


def gathers(shape: ModelShape, weights: float, zero: ZeroSettings) -> tuple[float, float]:
    """Gathers of one micro-batch: in forward, and in backward.

    Args:
        weights: elements that the ranks hold together.
    """
    bucket = max(1, zero.prefetch_bucket_size)
    live = min(weights, zero.max_live_parameters)
    forward = _BUCKET_FILL * live / bucket + (1 - live / weights) * _GATHERS_BEYOND * shape.layers
    cached = min(weights, min(zero.max_reuse_distance, zero.max_live_parameters) / 2)
    return forward, max(0.0, forward - _BUCKET_FILL * cached / bucket)


def small_tensors(shape: ModelShape) -> float:
    """Norms and biases of all layers: nearly all are below the persistence threshold."""
    biases = 3 if shape.family.startswith(_QUERY_BIASES) else 0
    return sum(stack.layers * (_norms_and_biases(stack, shape.gated) + biases) for stack in shape.stacks)


def _norms_and_biases(stack: Stack, gated: bool) -> float:
    if gated:
        return 2 + max(0.0, stack.kernels - _PLAIN_LAYER_KERNELS) / _NORM_KERNELS
    return 4 + len(stack.gemms)
