"""What ZeRO-3's host does in a step besides launching the model's kernels: how often, not how long.

DeepSpeed 0.19.8, beside rehearsals of its loops (Llama, Qwen2.5, Qwen3, Mistral; 0.5B to 8B; two ranks);
``zerokit.timing.constants`` has what each costs. Each module that begins gathers the next weights up to the
prefetch bucket while fewer elements are live than ``max_live_parameters``; beyond, the weights that a module
releases make room for the next few only (partitioned_param_coordinator.py:427, ``max_params_to_prefetch``).
A gradient goes into the reduce bucket, which is reduced before where it has no room for it (stage3.py,
``reduce_independent_p_g_buckets_and_remove_grads``). Weights below ``param_persistence_threshold`` are never
released, but gathered one by one after each optimizer step (stage3.py, ``_post_step``). A gather is a
collective for each dtype in it (partition_parameters.py:1468, ``_all_gather_coalesced``): two where peft's
adapters are in fp32. Frozen weights that are used while backward recomputes belong to the module whose
backward began it, and are released at its end (partitioned_param_coordinator.py:393 and 504). It is part of
the layer's last projection, so that all are gathered anew, one by one, as backward comes to them. A
reentrant checkpoint recomputes a layer before the backward of any of its modules begins, and keeps them.
"""

from __future__ import annotations

from typing import NamedTuple

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


class _Tensor(NamedTuple):
    """``size``: elements; ``added``: whether it is an adapter's; ``layered``: whether it is in a layer."""

    size: float
    added: bool = False
    layered: bool = True


class _Large(NamedTuple):
    """Tensors above a threshold, their elements together, and how many are adapters'."""

    tensors: list[_Tensor]
    size: float
    added: int


class Zero3Order:
    """The weights of a model in the order in which ZeRO-3 gathers them, and their gradients in the other.
    ``parts``: how many ranks hold each weight together before ZeRO divides it (tensor parallel).
    ``adapters``: on which modules, None: on none; ``narrow``: in the dtype of the weights, not in fp32."""

    def __init__(self, shape: ModelShape, parts: int, adapters: Lora | None, *, narrow: bool = False) -> None:
        embedding = _Tensor(shape.vocab * shape.hidden / parts, layered=False)
        self._tensors = [embedding]
        for stack in shape.stacks:
            layer = [one._replace(size=one.size / parts) for one in _layer(stack, shape, adapters)]
            self._tensors += layer * stack.layers
        self._tensors += [] if shape.tied else [embedding]
        self._layers = shape.layers
        self._sizes = [one.size for one in self._tensors]
        self._weights = sum(self._sizes)
        self._narrow = narrow
        self._above: dict[int, _Large] = {}
        self._gathers: dict[tuple[int, int], tuple[int, int]] = {}
        self._reductions: dict[int, int] = {}

    def gathers(self, zero: ZeroSettings) -> tuple[float, float]:
        """Gathers of one micro-batch: in forward, and in backward, ``anew`` apart."""
        count, joined = len(self._large(zero).tensors), self._joined(zero)[0]
        live = min(1.0, zero.max_live_parameters / self._weights)
        beyond = min(float(count), max(joined, _GATHERS_BEYOND * self._layers))
        forward = live * joined + (1 - live) * beyond
        reach = _KEPT_OF_REACH * min(zero.max_reuse_distance, zero.max_live_parameters)
        kept = min(1.0, reach / self._weights)
        return forward, max(0.0, forward - joined * kept)

    def dtypes(self, zero: ZeroSettings) -> float:
        """Collectives of a gather, on average."""
        gathers, collectives = self._joined(zero)
        return collectives / max(1, gathers)

    def anew(self, zero: ZeroSettings) -> tuple[int, float]:
        """Frozen weights that a backward pass with adapters gathers again where it has recomputed with them:
        how many, and their share of all weights."""
        sizes = [one.size for one in self._large(zero).tensors if one.layered and not one.added]
        return len(sizes), sum(sizes) / self._weights

    def adapters(self, zero: ZeroSettings) -> int:
        """Tensors of adapters that are released after each pass."""
        return self._large(zero).added

    def released(self, zero: ZeroSettings) -> float:
        """Share of the weights that are not persistent."""
        return self._large(zero).size / self._weights

    def persistent(self, zero: ZeroSettings) -> int:
        """Tensors that are gathered one by one after an optimizer step, frozen ones too."""
        return len(self._sizes) - len(self._large(zero).tensors)

    def _large(self, zero: ZeroSettings) -> _Large:
        """What is gathered to be released. Mixtures have many thousands, and a search asks often."""
        threshold = zero.param_persistence_threshold
        if threshold not in self._above:
            tensors = [one for one in self._tensors if one.size > threshold]
            size, added = sum(one.size for one in tensors), sum(one.added for one in tensors)
            self._above[threshold] = _Large(tensors, size, added)
        return self._above[threshold]

    def _joined(self, zero: ZeroSettings) -> tuple[int, int]:
        """Gathers that join tensors until they reach the prefetch bucket, and their collectives."""
        key = zero.param_persistence_threshold, zero.prefetch_bucket_size
        if key not in self._gathers:
            gathers, collectives, room = 0, 0, 0.0
            met: set[bool] = set()
            for size, added, _ in self._large(zero).tensors:
                if room <= 0:
                    gathers, room, met = gathers + 1, float(zero.prefetch_bucket_size), set()
                wide = added and not self._narrow
                collectives += wide not in met
                met.add(wide)
                room -= size
            self._gathers[key] = gathers, collectives
        return self._gathers[key]

    def reductions(self, zero: ZeroSettings) -> int:
        """Reduce-scatters of one micro-batch, all weights trained."""
        bucket = zero.reduce_bucket_size
        if bucket not in self._reductions:
            count, filled = 1, 0.0
            for size in reversed(self._sizes):
                if filled and filled + size > bucket:
                    count, filled = count + 1, 0.0
                filled += size
            self._reductions[bucket] = count
        return self._reductions[bucket]


def _layer(stack: Stack, shape: ModelShape, adapters: Lora | None) -> list[_Tensor]:
    """A layer's tensors in their order, each part after its norm."""
    tensors = [_Tensor(stack.hidden)] * (_norms_and_biases(stack, shape) - 1)
    for kind in ("attention", "mlp"):
        for gemm in stack.gemms:
            if gemm.kind == kind:
                tensors += _of_product(gemm, adapters)
        if kind == "attention":
            tensors.append(_Tensor(stack.hidden))
    return tensors


def _of_product(gemm: Gemm, adapters: Lora | None) -> list[_Tensor]:
    """Each tensor that a product stands for."""
    stacked = gemm.copies if gemm.stacked else 1
    tensors = [_Tensor(n * gemm.k * stacked) for n in [module.n for module in gemm.modules] or [gemm.n]]
    if adapters:
        for module in gemm.adapted(adapters.targets):
            tensors += [_Tensor(adapters.rank * width, added=True) for width in (gemm.k, module.n)]
    return tensors * (1 if gemm.stacked else gemm.copies)


def _norms_and_biases(stack: Stack, shape: ModelShape) -> int:
    if not shape.gated:
        return 4 + len(stack.gemms)
    biases = 3 if shape.family.startswith(_QUERY_BIASES) else 0
    return 2 + biases + max(0, round((stack.kernels - _PLAIN_LAYER_KERNELS) / _NORM_KERNELS))
