"""What ZeRO-3's host does in a step besides launching the model's kernels: how often, not how long.

DeepSpeed 0.19.8, beside rehearsals of its loops (Llama, Qwen2.5, Qwen3, Mistral; 0.5B to 8B; two ranks);
``zerokit.timing.constants`` has what each costs. Each module that begins gathers the next weights up to the
prefetch bucket while fewer elements are live than ``max_live_parameters``; beyond, the weights that a module
releases make room for the next few only (partitioned_param_coordinator.py:427, ``max_params_to_prefetch``).
A gradient goes into the reduce bucket, which is reduced before where it has no room for it (stage3.py,
``reduce_independent_p_g_buckets_and_remove_grads``). Weights below ``param_persistence_threshold`` are never
released, but gathered one by one after each optimizer step (stage3.py, ``_post_step``).
"""

from __future__ import annotations

from collections.abc import Sequence

from zerokit.domain.deepspeed_settings import ZeroSettings
from zerokit.domain.job import Lora
from zerokit.domain.model_shape import Gemm, ModelShape, Stack

_GATHERS_BEYOND = 3.7
"""Of a layer and pass, once as many weights are live as may be: 2.8 to 4.8 in rehearsals."""
_KEPT_OF_REACH = 0.8
"""Of the elements within reach of their next use, those still there when backward begins: 0.4 to 1.1."""
_NORM_KERNELS = 8.0
_PLAIN_LAYER_KERNELS = 38.0
"""Of a Llama layer, which has two norms; a further norm is eight kernels."""
_QUERY_BIASES = ("qwen2",)
"""Families whose queries, keys and values have biases, though their other products have none."""


class Zero3Order:
    """The weights of a model in the order in which ZeRO-3 gathers them, and their gradients in the other.

    Args:
        parts: how many ranks hold each weight together before ZeRO divides it (tensor parallel).
        adapters: on which modules, None: on none.
    """

    def __init__(self, shape: ModelShape, parts: int, adapters: Lora | None) -> None:
        embedding = shape.vocab * shape.hidden
        layers = [size for stack in shape.stacks for size in _layer(stack, shape, adapters) * stack.layers]
        sizes = [embedding, *layers, *([] if shape.tied else [embedding])]
        self._layers = shape.layers
        self._sizes = [size / parts for size in sizes]
        self._weights = sum(self._sizes)

    def gathers(self, zero: ZeroSettings) -> tuple[float, float]:
        """Gathers of one micro-batch: in forward, and in backward."""
        large = [size for size in self._sizes if size > zero.param_persistence_threshold]
        joined = _filled(large, zero.prefetch_bucket_size)
        live = min(1.0, zero.max_live_parameters / self._weights)
        beyond = min(float(len(large)), max(joined, _GATHERS_BEYOND * self._layers))
        forward = live * joined + (1 - live) * beyond
        reach = _KEPT_OF_REACH * min(zero.max_reuse_distance, zero.max_live_parameters)
        kept = min(1.0, reach / self._weights)
        return forward, max(0.0, forward - joined * kept)

    def released(self, zero: ZeroSettings) -> float:
        """Share of the weights that are not persistent."""
        large = sum(size for size in self._sizes if size > zero.param_persistence_threshold)
        return large / self._weights

    def persistent(self, zero: ZeroSettings) -> int:
        """Tensors that are gathered one by one after an optimizer step, frozen ones too."""
        return sum(size <= zero.param_persistence_threshold for size in self._sizes)

    def reductions(self, zero: ZeroSettings) -> int:
        """Reduce-scatters of one micro-batch, all weights trained."""
        count, filled = 1, 0.0
        for size in reversed(self._sizes):
            if filled and filled + size > zero.reduce_bucket_size:
                count, filled = count + 1, 0.0
            filled += size
        return count


def _filled(sizes: Sequence[float], bucket: int) -> int:
    """Gathers that join tensors until they reach the bucket."""
    count, filled = 0, 0.0
    for size in sizes:
        filled += size
        if filled >= bucket:
            count, filled = count + 1, 0.0
    return count + (filled > 0)


def _layer(stack: Stack, shape: ModelShape, adapters: Lora | None) -> list[float]:
    """Elements of a layer's tensors in their order, each part after its norm."""
    sizes: list[float] = [stack.hidden] * (_norms_and_biases(stack, shape) - 1)
    for kind in ("attention", "mlp"):
        for gemm in stack.gemms:
            if gemm.kind == kind:
                sizes += _tensors(gemm, adapters)
        if kind == "attention":
            sizes.append(stack.hidden)
    return sizes


def _tensors(gemm: Gemm, adapters: Lora | None) -> list[float]:
    """Elements of each tensor that a product stands for."""
    stacked = gemm.copies if gemm.stacked else 1
    sizes: list[float] = [n * gemm.k * stacked for n in [module.n for module in gemm.modules] or [gemm.n]]
    if adapters:
        for module in gemm.adapted(adapters.targets):
            sizes += [adapters.rank * gemm.k, adapters.rank * module.n]
    return sizes * (1 if gemm.stacked else gemm.copies)


def _norms_and_biases(stack: Stack, shape: ModelShape) -> int:
    if not shape.gated:
        return 4 + len(stack.gemms)
    biases = 3 if shape.family.startswith(_QUERY_BIASES) else 0
    return 2 + biases + max(0, round((stack.kernels - _PLAIN_LAYER_KERNELS) / _NORM_KERNELS))
