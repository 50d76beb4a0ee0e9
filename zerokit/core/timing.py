"""How long an optimizer step takes: a roofline with the shapes of the real matrix products.

Compute: forward = 2·P·tokens + 4·b·s²·width·c FLOPs (c = ½ when causal), backward twice that;
full checkpointing adds one forward of the layers (Megatron-LM, arXiv 2104.04473, appendix A). A
product M×N×K runs at F·e with e = e_max / ((1 + M₀/M)(1 + N₀/N)). Element-wise work is bound by
HBM, and short kernels by the time the host takes to launch them. Communication is
``zerokit.core.traffic``'s. Everything is kept per part, so that a plan can say what bounds it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from zerokit.core.constants import A100_PEAK_FLOPS, HUGGING_FACE, Calibration, Constants
from zerokit.core.hardware import Cluster
from zerokit.core.job import Job
from zerokit.core.shape import Gemm, ModelShape, Stack
from zerokit.core.strategy import Strategy, TimeEstimate
from zerokit.core.traffic import Traffic, Work

_QLORA_DEQUANTIZE_BYTES = 5.0  # per weight and pass: NF4 read, bf16 written and read again


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """GPU time of one pass over one pipeline stage, and the time its launches take on the host."""

    gpu_seconds: float
    launch_seconds: float

    def joined(self, power: float) -> float:
        """The longer of the two, smoothly: near equality each waits for the other now and then."""
        gpu, launch = self.gpu_seconds, self.launch_seconds
        longer = max(gpu, launch)
        if longer <= 0:
            return 0.0
        return longer * float((1 + (min(gpu, launch) / longer) ** power) ** (1 / power))


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroStep:
    """Compute of one micro-batch on one rank. ``head`` is the output head with the loss.

    ``layers`` and ``head`` hold forward and backward, recomputation included in the backward.
    """

    layers_forward: Pass
    layers_backward: Pass
    head_forward: Pass
    head_backward: Pass


class TimeModel:
    """Step times of one model and job on one cluster; caches what strategies share."""

    def __init__(
        self,
        shape: ModelShape,
        job: Job,
        cluster: Cluster,
        constants: Constants = HUGGING_FACE,
        calibration: Calibration | None = None,
        trainable: int | None = None,
    ) -> None:
        self.shape = shape
        self.job = job
        self.cluster = cluster
        self.constants = constants
        self.calibration = calibration or Calibration()
        self.traffic = Traffic(
            shape,
            job,
            cluster,
            constants,
            self.calibration,
            shape.parameters if trainable is None else trainable,
        )
        self._micro: dict[tuple[object, ...], MicroStep] = {}

    def peak(self, precision: str) -> float:
        """Largest matmul FLOP/s that the GPU reaches in this precision."""
        gpu = self.cluster.gpu
        peaks = gpu.peak_flops
        datasheet = peaks.get(precision) or peaks.get("fp16") or max(peaks.values())
        if precision != "fp32" and self.calibration.matmul_flops:
            return self.calibration.matmul_flops
        efficiency = gpu.matmul_efficiency or self.constants.matmul_efficiency
        if precision == "bf16" and "bf16" not in peaks:
            return peaks.get("fp32", datasheet / 8) * efficiency  # emulated
        return datasheet * efficiency

    def micro_step(self, strategy: Strategy) -> MicroStep:
        """Compute of one micro-batch on the pipeline stage with the most layers."""
        settings = strategy.settings
        key = (
            settings.micro_batch, strategy.tensor_parallel, strategy.sequence_parallel,
            strategy.pipeline_parallel, strategy.checkpointing, settings.precision, settings.zero.stage == 3,
        )  # fmt: skip
        found = self._micro.get(key)
        if found is None:
            found = self._micro[key] = self._compute(strategy)
        return found

    def estimate(self, strategy: Strategy) -> TimeEstimate:
        """Time of one optimizer step (or of one forward pass, when serving)."""
        micro = self.micro_step(strategy)
        power = self.constants.launch_join
        layers = (micro.layers_forward.joined(power), micro.layers_backward.joined(power))
        head = (micro.head_forward.joined(power), micro.head_backward.joined(power))
        gpu = sum(p.gpu_seconds for p in (micro.layers_forward, micro.layers_backward, micro.head_forward,
                                          micro.head_backward))  # fmt: skip
        if self.job.inference:
            layers, head = (layers[0], 0.0), (head[0], 0.0)
            gpu = micro.layers_forward.gpu_seconds + micro.head_forward.gpu_seconds
        work = Work(forward_seconds=layers[0] + head[0], backward_seconds=layers[1] + head[1],
                    gpu_seconds=gpu, layer_seconds=sum(layers), head_seconds=sum(head))  # fmt: skip
        parts = self.traffic.step(strategy, work)
        factor = self.calibration.step_factor
        parts = {name: value * factor for name, value in parts.items() if value > 0}
        total = sum(parts.values())
        tokens = strategy.global_batch * self.job.seq_len
        bounds = {name: value for name, value in parts.items() if name not in ("bubble", "optimizer")}
        return TimeEstimate(
            step_seconds=total,
            tokens_per_second_per_gpu=tokens / total / strategy.world_size,
            parts=parts,
            bound_by=max(bounds or parts, key=lambda name: parts[name]),
        )

    # ---------------------------------------------------------------- one micro-batch

    def _compute(self, strategy: Strategy) -> MicroStep:
        c, job = self.constants, self.job
        pp = strategy.pipeline_parallel
        forward = backward = recompute = count = 0.0
        for stack in self.shape.stacks:
            # the stage with the most layers sets the pace
            layers = math.ceil(stack.layers / pp) if pp > 1 else stack.layers
            fwd, bwd, attention = self._layer(stack, strategy)
            forward += layers * fwd
            backward += layers * bwd
            recompute += layers * (fwd if strategy.checkpointing == "full" else 0.0)
            if strategy.checkpointing == "selective":
                recompute += layers * attention
            count += layers
        launch = c.launch_seconds * (
            1.0 if self.shape.experts == 1 else 1.0 + 0.1 * min(16, self.shape.experts)
        )
        if strategy.settings.zero.stage == 3:
            launch += c.stage3_launch_seconds
        if job.method != "full":
            launch *= 1.7  # an adapter adds three kernels to each projection
        passes = 2.0 if strategy.checkpointing == "full" else 1.0
        head_forward, head_backward = self._head(strategy)
        return MicroStep(
            layers_forward=Pass(gpu_seconds=forward, launch_seconds=count * launch),
            layers_backward=Pass(gpu_seconds=backward + recompute, launch_seconds=passes * count * launch),
            head_forward=Pass(gpu_seconds=head_forward, launch_seconds=c.launch_seconds),
            head_backward=Pass(gpu_seconds=head_backward, launch_seconds=c.launch_seconds),
        )

    def _tokens(self, stack: Stack, strategy: Strategy) -> float:
        micro = strategy.settings.micro_batch
        per_sequence = stack.fixed_tokens if stack.fixed_tokens is not None else self.job.seq_len
        return micro * per_sequence / strategy.sequence_parallel

    def _gemm(self, rows: float, n: float, k: float, peak: float) -> float:
        """Seconds of one product; ``rows`` × ``k`` by ``k`` × ``n``."""
        c = self.constants
        scale = math.sqrt(peak / (A100_PEAK_FLOPS * 0.87))
        slowdown = (1 + scale * c.gemm_m0 / rows) * (1 + scale * c.gemm_n0 / n)
        compute = 2.0 * rows * n * k / peak * slowdown
        # never faster than its operands can be read and its result written
        traffic = 2.0 * (rows * k + k * n + rows * n)
        return max(compute, traffic / (self.cluster.gpu.hbm_bytes_per_second * c.hbm_efficiency))

    def _layer(self, stack: Stack, strategy: Strategy) -> tuple[float, float, float]:
        """GPU seconds of one layer: forward, backward, and its attention scores alone (forward)."""
        c, job, tp = self.constants, self.job, strategy.tensor_parallel
        precision = strategy.settings.precision
        peak = self.peak("fp16" if precision == "fp16" else precision)
        tokens = self._tokens(stack, strategy)
        products = sum(self._product(gemm, tokens, tp, peak) for gemm in stack.gemms)
        attention, attention_backward = self._attention(stack, strategy, tokens, peak)
        hbm = self.cluster.gpu.hbm_bytes_per_second * c.hbm_efficiency
        width = strategy.settings.parameter_bytes / 2
        active = max((gemm.active for gemm in stack.gemms if gemm.copies > 1), default=1.0)
        elementwise = (
            tokens * width * (c.hidden_bytes * stack.hidden + c.ffn_bytes * stack.ffn * active / tp) / hbm
        )
        dequantize = 0.0
        if job.method == "qlora":
            dequantize = _QLORA_DEQUANTIZE_BYTES * sum(g.parameters for g in stack.gemms) / tp / hbm
        # frozen weights get no gradient: their products are done once, not twice, in backward
        backward = products if job.method != "full" else 2 * products
        return (
            products + attention + elementwise + dequantize,
            backward + attention_backward + 2 * elementwise + dequantize,
            attention,
        )

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
        rate = peak * c.attention_efficiency
        if not eager:
            return flops / rate, c.attention_backward * flops / rate
        heads = stack.attention_width / self.shape.head_dim / tp
        hbm = self.cluster.gpu.hbm_bytes_per_second * c.hbm_efficiency
        traffic = c.score_bytes * pairs * heads / hbm
        return flops / rate + traffic, 2 * flops / rate + 2 * traffic

    def _head(self, strategy: Strategy) -> tuple[float, float]:
        c, shape = self.constants, self.shape
        peak = self.peak(strategy.settings.precision)
        micro = strategy.settings.micro_batch
        rows = float(micro)
        if shape.head != "image-classification":
            rows = micro * self.job.seq_len / strategy.sequence_parallel
        if self.job.inference:
            rows = float(micro)
        product = self._gemm(rows, shape.vocab, shape.hidden, peak) / strategy.tensor_parallel
        logits = rows * shape.vocab / (strategy.tensor_parallel if c.vocab_parallel else 1)
        loss = c.logit_bytes * logits / (self.cluster.gpu.hbm_bytes_per_second * c.hbm_efficiency)
        backward = product if self.job.method != "full" else 2 * product
        return product + 0.4 * loss, backward + 0.6 * loss
