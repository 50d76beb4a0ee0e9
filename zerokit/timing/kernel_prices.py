"""Seconds that one operator's kernels take on a GPU.

Rates were measured on an H200 (``h200-operators.jsonl``: single operators; ``kernels.jsonl``: kernels of
training steps by kind); other GPUs scale them by the catalogue's product rate and memory bandwidth, which
is as good as their memory systems are alike: not measured.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from zerokit.domain.hardware import Gpu
from zerokit.timing.operators import CAST, CAUSAL, STRIDED, TRITON, UNALIGNED, IssuedOperator

LAUNCH_SECONDS = 1.8e-6
"""A kernel that does next to nothing, back to back (``floor``); it scales with no rate."""
_REFERENCE_BANDWIDTH = 4.8e12
_REFERENCE_PRODUCTS = 989e12

_SIXTEEN_BIT = ("bfloat16", "float16")
_FP8_SPEED = 2.0
"""Of FP8 products over those in 16 bits, wherever a GPU has them (H100 and L40S datasheets: 1,979 for 989 and
733 for 366 dense TFLOP/s); not measured."""
_REDUCTIONS = frozenset({
    "sum", "mean", "amax", "amin", "max", "min", "any", "all", "argmax", "linalg_vector_norm", "norm",
    "_foreach_norm", "multi_tensor_l2norm", "var_mean", "std", "cumsum",
})  # fmt: skip
_BY_BYTES = ("_foreach", "_fused", "multi_tensor", TRITON, "embedding", "index", "scatter", "gather")
"""Kernels of their own, which know no broadcasting."""
_NORMS = ("native_layer_norm", "_fused_rms_norm", "native_group_norm")


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelRates:
    """What kernels reach on one GPU. FLOP/s, bytes and elements per second.

    Attributes:
        product: large 16-bit products; ``rows``, ``columns``: the m and n at which a side halves the rate.
        attention: of heads of 128, long sequences; ``attention_ramp_seconds``: before it reaches the rate.
        vectorized: bytes of contiguous elementwise kernels.
        strided: elements of kernels that broadcast or read through strides.
        widening: elements that become twice as wide.
        concatenation: elements of ``cat``.
    """

    product: float = 790e12
    product32: float = 52e12
    unaligned: float = 120e12
    product_rows: float = 40.0
    product_columns: float = 70.0
    attention: float = 530e12
    attention_head_power: float = 0.5
    attention_backward: float = 0.92
    attention_seconds: float = 6e-6
    attention_backward_seconds: float = 15e-6
    vectorized: float = 4.1e12
    strided: float = 0.37e12
    widening: float = 0.34e12
    concatenation: float = 0.25e12
    reduction: float = 3.2e12
    softmax: float = 2.1e12
    softmax_backward: float = 3.0e12
    logsumexp: float = 0.9e12
    adam: float = 3.4e12


H200 = KernelRates()


def rates(gpu: Gpu, measured_flops: float | None = None, measured_copy: float | None = None) -> KernelRates:
    """Rates of a GPU of the catalogue. ``measured_flops``: largest 16-bit product rate measured on the
    machine (``doctor --measure``). ``measured_copy``: bytes per second of a copy inside the GPU, read and
    written."""
    peak = gpu.peak_flops.get("bf16") or gpu.peak_flops.get("fp16") or gpu.peak_flops["fp32"]
    efficiency = gpu.matmul_efficiency or H200.product / _REFERENCE_PRODUCTS
    product = measured_flops or peak * efficiency
    products = product / H200.product
    memory = (
        measured_copy / H200.vectorized if measured_copy else gpu.hbm_bytes_per_second / _REFERENCE_BANDWIDTH
    )
    return KernelRates(
        product=product,
        product32=gpu.peak_flops.get("fp32", H200.product32 * products) * 0.8,
        unaligned=H200.unaligned * products,
        attention=H200.attention * products,
        vectorized=H200.vectorized * memory,
        strided=H200.strided * memory,
        widening=H200.widening * memory,
        concatenation=H200.concatenation * memory,
        reduction=H200.reduction * memory,
        softmax=H200.softmax * memory,
        softmax_backward=H200.softmax_backward * memory,
        logsumexp=H200.logsumexp * memory,
        adam=H200.adam * memory,
    )


_SLOWED = {"product": 1.64, "attention": 1.14, "elementwise": 1.11}


def seconds(event: IssuedOperator, rate: KernelRates) -> float:
    """Seconds of one ``kernel`` event, without the gap to the one before."""
    return LAUNCH_SECONDS * max(1, event.launches) + _work(event, rate)


def slowed(event: IssuedOperator, ranks: int) -> float:
    """How many times as long its kernels take beside a collective of several ranks.

    Of a step on two H200s under ZeRO-3 (``wide.sft.z3.two`` of ``script-times-fifth.jsonl``, profiled), each
    kernel against itself where no collective ran: 111 products, 7 attentions, 647 others. The same of
    ``medium.z3.two``: 1.57, 1.16, 1.26. Products on persistent thread blocks wait for multiprocessors that
    NCCL's kernels hold.
    """
    return 1.0 if ranks < 2 else _SLOWED.get(kind(event), _SLOWED["elementwise"])


def kind(event: IssuedOperator) -> str:
    """``product``, ``attention``, ``loss``, ``optimizer`` or ``elementwise``, as a reader groups them."""
    name = event.name
    if is_product(event) or name.startswith("convolution"):
        return "product"
    if is_attention(event):
        return "attention"
    if "softmax" in name or name.startswith("nll_loss"):
        return "loss"
    return "optimizer" if "adam" in name else "elementwise"


def is_product(event: IssuedOperator) -> bool:
    """Whether a recorded operator is one matrix product."""
    return bool(event.flops) and len(event.shapes) == 1 and len(event.shapes[0]) == 4


def is_attention(event: IssuedOperator) -> bool:
    """Whether it is a fused attention kernel: three shapes of query, key and value."""
    return bool(event.flops) and len(event.shapes) == 3


def _work(event: IssuedOperator, rate: KernelRates) -> float:
    if is_product(event):
        return _product(event, rate)
    if is_attention(event):
        return _attention(event, rate)
    if event.flops:
        return max(event.flops / (0.5 * _peak(event, rate)), event.bytes / rate.vectorized)
    return event.bytes / _bandwidth(event, rate) if not _by_elements(event) else _elements(event, rate)


def _peak(event: IssuedOperator, rate: KernelRates) -> float:
    if event.dtype.startswith("float8"):
        return rate.product * _FP8_SPEED
    return rate.product if event.dtype in _SIXTEEN_BIT else rate.product32


def _product(event: IssuedOperator, rate: KernelRates) -> float:
    _, m, n, _ = event.shapes[0]
    peak = _peak(event, rate)
    if event.layout == UNALIGNED:
        peak = min(peak, rate.unaligned)
    reached = peak / ((1 + rate.product_rows / m) * (1 + rate.product_columns / n))
    return max(event.flops / reached, event.bytes / rate.vectorized)


def _attention(event: IssuedOperator, rate: KernelRates) -> float:
    query = event.shapes[0]
    length, width = query[2], query[3]
    backward = event.name.endswith("backward")
    reached = rate.attention * math.pow(min(1.0, width / 128), rate.attention_head_power)
    # tiles of 128 on the diagonal are computed whole
    waste = 1 + 128 / length if event.layout == CAUSAL else 1.0
    if backward:
        reached *= rate.attention_backward
    begin = rate.attention_backward_seconds if backward else rate.attention_seconds
    return begin + max(event.flops * waste / reached, event.bytes / rate.vectorized)


def _largest(event: IssuedOperator) -> int:
    return max((math.prod(shape) for shape in event.shapes), default=1)


def _by_elements(event: IssuedOperator) -> bool:
    name = event.name
    if name in _REDUCTIONS or "softmax" in name or name.startswith(("nll", *_BY_BYTES, *_NORMS)):
        return False
    return event.layout in (STRIDED, CAST)


def _elements(event: IssuedOperator, rate: KernelRates) -> float:
    by_bytes = event.bytes / rate.vectorized
    if event.name in ("cat", "stack"):
        return max(by_bytes, _largest(event) / rate.concatenation)
    if event.layout == STRIDED:
        return max(by_bytes, _largest(event) / rate.strided)
    widens = event.bytes_written > event.bytes_read
    return max(by_bytes, _largest(event) / rate.widening) if widens else by_bytes


def _bandwidth(event: IssuedOperator, rate: KernelRates) -> float:
    name = event.name
    if "softmax" in name:
        return rate.softmax_backward if "backward" in name else rate.softmax
    if name == "logsumexp":
        return rate.logsumexp
    if "adam" in name:
        return rate.adam
    return rate.reduction if name in _REDUCTIONS else rate.vectorized
