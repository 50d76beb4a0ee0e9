"""GPU seconds of a model's layers and head, from the shapes of their products.

A product M×N×K runs at F·e with e = e_max / ((1 + M₀/M)(1 + N₀/N)); element-wise work is bound by HBM. What
the host and the links take is not here (``zerokit.timing.step_time``).
"""

from __future__ import annotations

import math
from collections.abc import Callable

from zerokit.domain.hardware import Gpu
from zerokit.domain.job import Job, Lora
from zerokit.domain.model_shape import Gemm, ModelShape, Stack
from zerokit.domain.strategy import Strategy
from zerokit.timing.constants import A100_PEAK_FLOPS, Calibration, Constants
from zerokit.values import frozen_dataclass

_EMULATION_SLOWDOWN = 8
"""Of bf16 on a GPU without it against fp16, where the catalogue has no fp32 rate: on Turing fp32 is 8 times
slower than fp16 on tensor cores (T4: 65 and 8.1 TFLOP/s, NVIDIA's datasheet)."""
_A100_EFFICIENCY = 0.87
"""271 of 312 TFLOP/s: the rate at which the half-saturation sizes of products were measured."""
_LOSS_FORWARD_SHARE = 0.4
"""Of the loss's traffic, what is read and written before backward (upcast, log-softmax): counted by tensors,
not measured apart."""
_WIDEST_FLASH_HEAD = 128
"""From which on the flash kernel runs at its full rate."""
_LOGITS_KEPT_SHARE = 0.5
"""Traffic of a loss that does not upcast its logits over one that does (only ForCausalLMLoss does)."""
_ALIGNED_ELEMENTS = 8
"""Tensor cores read rows of 16 bytes: a vocabulary of 16-bit elements must be a multiple of it."""
_QLORA_DEQUANTIZE_BYTES = 5.0  # per weight and pass: NF4 read, bf16 written and read again
_ROUTED_BYTES = 44.0
"""Of HBM traffic per token, expert that it passes and element of the hidden width, forward: two permutations,
the product with the expert's weight and a sum (``grouped_mm_experts_forward``, transformers/integrations/
moe.py, 5.17), four kernels that read through strides at 0.37e12 elements a second (``kernel_prices``)."""
_FOLDED_PASSES = 10.0
"""Over stacked experts in each forward pass, to add their adapters' product: a copy and ``baddbmm``, which
reads and writes at two thirds of the rate (two H200s), both twice, since ``register_parametrization`` calls
what it is given, too (torch/nn/utils/parametrize.py, 2.13; ``ParamWrapper``, peft 0.21)."""
_FOLDED_GRADIENT_PASSES = 2.0
"""Over the gradient of stacked experts, from which those of both factors are made."""


@frozen_dataclass
class Kernels:
    """GPU seconds (forward, backward) of the head, and of a layer of each stack with its attention scores
    (forward) and what checkpointing does not compute again: the same for every stage and offload."""

    layers: tuple[tuple[float, float, float, float], ...]
    head: tuple[float, float]


class KernelTimes:
    """Kernels of one model and job on one GPU; caches what strategies share."""

    def __init__(
        self,
        shape: ModelShape,
        job: Job,
        gpu: Gpu,
        constants: Constants,
        calibration: Calibration,
        head_cut_by_vocabulary: Callable[[Strategy], bool],
    ) -> None:
        self.shape = shape
        self.job = job
        self.gpu = gpu
        self.constants = constants
        self.calibration = calibration
        self.head_cut_by_vocabulary = head_cut_by_vocabulary
        self._cached: dict[tuple[object, ...], Kernels] = {}

    def peak(self, precision: str) -> float:
        """Largest matmul FLOP/s that the GPU keeps up in this precision."""
        gpu = self.gpu
        peaks = gpu.peak_flops
        datasheet = peaks.get(precision) or peaks.get("fp16") or max(peaks.values())
        short = gpu.matmul_efficiency or self.constants.matmul_efficiency
        efficiency = gpu.sustained_efficiency or short
        if precision != "fp32" and self.calibration.matmul_flops:
            return self.calibration.matmul_flops * efficiency / short  # it was measured in a short run
        if precision == "bf16" and "bf16" not in peaks:
            return peaks.get("fp32", datasheet / _EMULATION_SLOWDOWN) * efficiency  # emulated
        return datasheet * efficiency

    def of(self, strategy: Strategy) -> Kernels:
        """The kernels of one micro-batch."""
        settings = strategy.settings
        key = (
            settings.micro_batch,
            strategy.tensor_parallel,
            strategy.sequence_parallel,
            settings.precision,
            self.job.is_reentrant(settings),
        )
        if key not in self._cached:
            layers = (
                (*self._layer(stack, strategy), self._not_recomputed(stack, strategy))
                for stack in self.shape.stacks
            )
            self._cached[key] = Kernels(layers=tuple(layers), head=self._head(strategy))
        return self._cached[key]

    def least_seconds(self, precision: str) -> float:
        """Seconds of one GPU for a sequence: the layers' products alone, at the largest rate."""
        flops = 0.0
        for stack in self.shape.stacks:
            tokens = self.job.seq_len if stack.fixed_tokens is None else stack.fixed_tokens
            met = sum(g.n * g.k * (g.active if g.copies > 1 else 1.0) for g in stack.gemms)
            flops += 2.0 * stack.layers * met * tokens
        passes = 3 if self.job.method == "full" else 2
        return passes * flops / self.peak(precision)

    def tokens(self, stack: Stack, strategy: Strategy) -> float:
        """Rows of a layer's products."""
        micro = strategy.settings.micro_batch
        fixed = stack.fixed_tokens
        per_row = self.job.row_tokens if fixed is None else fixed * self.job.defaults.sequences
        return micro * per_row / strategy.sequence_parallel

    def _gemm(self, rows: float, n: float, k: float, peak: float) -> float:
        """Seconds of one product; ``rows`` × ``k`` by ``k`` × ``n``."""
        c = self.constants
        scale = math.sqrt(peak / (A100_PEAK_FLOPS * _A100_EFFICIENCY))
        slowdown = (1 + scale * c.gemm_m0 / rows) * (1 + scale * c.gemm_n0 / n)
        compute = 2.0 * rows * n * k / peak * slowdown
        # never faster than its operands can be read and its result written
        traffic = 2.0 * (rows * k + k * n + rows * n)
        return max(compute, traffic / (self.gpu.hbm_bytes_per_second * c.hbm_efficiency))

    def _layer(self, stack: Stack, strategy: Strategy) -> tuple[float, float, float]:
        """GPU seconds of one layer: forward, backward, and its attention scores alone (forward)."""
        c, job, tp = self.constants, self.job, strategy.tensor_parallel
        peak = self.peak(strategy.settings.precision)
        tokens = self.tokens(stack, strategy)
        products = sum(self._product(gemm, tokens, tp, peak) for gemm in stack.gemms)
        attention, attention_backward = self._attention(stack, strategy, tokens, peak)
        hbm = self.gpu.hbm_bytes_per_second * c.hbm_efficiency
        per_16_bit = strategy.settings.parameter_bytes / 2
        active = max((gemm.active for gemm in stack.gemms if gemm.copies > 1), default=1.0)
        gated = self.shape.gated
        per_hidden = c.hidden_bytes if gated else c.plain_hidden_bytes
        if strategy.settings.autocasts and per_16_bit > 1:
            # what products make is in 16 bits, the residual stream and its norms are in fp32
            per_16_bit, per_hidden = 1.0, c.autocast_hidden_share * per_hidden
        of_attention = gated * (c.rotary_bytes * stack.rotated + c.norm_bytes * stack.more_normed)
        routed = _ROUTED_BYTES * active if any(gemm.copies > 1 for gemm in stack.gemms) else 0.0
        size = (per_hidden + routed) * stack.hidden + of_attention + c.ffn_bytes * stack.ffn * active / tp
        elementwise = tokens * per_16_bit * size / hbm
        adapters = tokens * per_16_bit * c.adapter_bytes * self._adapted(stack) / hbm
        dequantize = 0.0
        if job.method == "qlora":
            dequantize = (
                _QLORA_DEQUANTIZE_BYTES * sum(g.parameters for g in stack.gemms if g.packable) / tp / hbm
            )
        folded = [gemm for gemm in stack.gemms if gemm.stacked and self._adapts(gemm)]
        experts = strategy.settings.parameter_bytes * sum(gemm.parameters for gemm in folded) / tp / hbm
        # frozen weights get no gradient: their products are done once, not twice, in backward
        backward = 2 * products
        if job.method != "full":
            backward = products + sum(self._product(gemm, tokens, tp, peak) for gemm in folded)
        return (
            products + attention + elementwise + adapters + dequantize + _FOLDED_PASSES * experts,
            backward + attention_backward + 2 * elementwise + adapters + dequantize
            + _FOLDED_GRADIENT_PASSES * experts,
            attention,
        )  # fmt: skip

    def _adapted(self, stack: Stack) -> float:
        """Outputs per token of the linear modules that have adapters."""
        if self.job.method == "full":
            return 0.0
        targets = (self.job.lora or Lora()).targets
        return sum(m.n * g.active for g in stack.gemms if not g.stacked for m in g.adapted(targets))

    def _adapts(self, gemm: Gemm) -> bool:
        """Whether some of its modules have adapters."""
        return self.job.method != "full" and bool(gemm.adapted((self.job.lora or Lora()).targets))

    def _not_recomputed(self, stack: Stack, strategy: Strategy) -> float:
        """The layer's last product: non-reentrant checkpointing stops when all that was saved is there
        again, which is before it (torch/utils/checkpoint.py, ``_StopRecomputationError``); but an adapter
        saves its own after it (peft/tuners/lora/layer.py, ``Linear.forward``)."""
        rows = [gemm for gemm in stack.gemms if gemm.kind == "mlp" and gemm.split == "row"]
        if self.job.is_reentrant(strategy.settings) or not rows or self._adapts(rows[-1]):
            return 0.0
        last = rows[-1]
        peak = self.peak(strategy.settings.precision)
        return self._product(last, self.tokens(stack, strategy), strategy.tensor_parallel, peak)

    def _product(self, gemm: Gemm, tokens: float, tp: int, peak: float) -> float:
        n = gemm.n / tp if gemm.split == "column" else gemm.n
        k = gemm.k / tp if gemm.split == "row" else gemm.k
        if gemm.copies == 1:
            return self._gemm(tokens, n, k, peak)
        used = min(gemm.copies, max(1.0, tokens * gemm.active))
        rows = tokens * gemm.active / used
        return used * self._gemm(rows, n, k, peak)

    def _attention(self, stack: Stack, strategy: Strategy, tokens: float, peak: float) -> tuple[float, float]:
        """Scores and their product with the values, forward and backward."""
        c, tp = self.constants, strategy.tensor_parallel
        span = stack.fixed_tokens if stack.fixed_tokens is not None else self.job.seq_len
        eager = self.job.attention == "eager"
        causal = 0.5 if stack.causal and not eager else 1.0
        pairs = tokens * span * (2 if stack.cross_attention else 1)  # sequence parallel: all rows, heads / sp
        flops = 4.0 * pairs * stack.attention_width / tp * causal
        rate = (
            peak
            * c.attention_efficiency
            * min(1.0, self.shape.head_dim / _WIDEST_FLASH_HEAD) ** c.attention_head_power
        )
        if not eager:
            return flops / rate, c.attention_backward * flops / rate
        heads = stack.attention_width / self.shape.head_dim / tp
        hbm = self.gpu.hbm_bytes_per_second * c.hbm_efficiency
        traffic = c.score_bytes * pairs * heads / hbm
        return flops / rate + traffic, 2 * flops / rate + 2 * traffic

    def _head(self, strategy: Strategy) -> tuple[float, float]:
        c, shape = self.constants, self.shape
        peak = self.peak(strategy.settings.precision)
        micro = strategy.settings.micro_batch
        rows = float(micro)
        if shape.head != "image-classification":
            rows = micro * self.job.row_tokens / strategy.sequence_parallel
        if self.job.inference:
            rows = float(micro)
        product = self._gemm(rows, shape.vocab, shape.hidden, peak) / strategy.tensor_parallel
        if shape.vocab % _ALIGNED_ELEMENTS and c.unaligned_flops < math.inf:
            product *= max(2.0, peak / c.unaligned_flops)
        logits = rows * shape.vocab
        if self.head_cut_by_vocabulary(strategy):
            logits /= strategy.tensor_parallel
        upcast = shape.head == "causal" or c.vocab_parallel
        per_logit = c.logit_bytes * (1.0 if upcast else _LOGITS_KEPT_SHARE)
        loss = per_logit * logits / (self.gpu.hbm_bytes_per_second * c.hbm_efficiency)
        backward = product if self.job.method != "full" else 2 * product
        return product + _LOSS_FORWARD_SHARE * loss, backward + (1 - _LOSS_FORWARD_SHARE) * loss
