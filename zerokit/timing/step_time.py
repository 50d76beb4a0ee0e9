"""How long an optimizer step takes: a roofline with the shapes of the real matrix products.

Compute: forward = 2·P·tokens + 4·b·s²·width·c FLOPs (c = ½ when causal), backward twice that;
full checkpointing adds one forward of the layers (Megatron-LM, arXiv 2104.04473, appendix A). A
product M×N×K runs at F·e with e = e_max / ((1 + M₀/M)(1 + N₀/N)). Element-wise work is bound by
HBM, and short kernels by the time the host takes to launch them. Communication is
``zerokit.timing.traffic``'s. Everything is kept per part, so that a plan can say what bounds it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from zerokit.domain.hardware import Cluster
from zerokit.domain.job import Job
from zerokit.domain.model_shape import ModelShape
from zerokit.domain.strategy import MemoryEstimate, Strategy, TimeEstimate
from zerokit.timing.allocator_retries import retry_seconds, spare_bytes
from zerokit.timing.constants import HUGGING_FACE, Calibration, Constants, at_host
from zerokit.timing.kernel_times import KernelTimes
from zerokit.timing.traffic import Traffic, Work

_FORWARD_SHARE = {"none": 1 / 2, "selective": 1 / 2, "full": 1 / 3}
"""Of the activations that cross links, those of the forward pass, by checkpointing: a recomputed forward
pass sends them a second time within backward."""


def _join(gpu: float, launch: float, power: float) -> float:
    """The longer of GPU and host time, smoothly: near equality each waits for the other now and then."""
    longer = max(gpu, launch)
    if longer <= 0:
        return 0.0
    return longer * float((1 + (min(gpu, launch) / longer) ** power) ** (1 / power))


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
        self.stack = constants
        self.calibration = calibration or Calibration()
        factor = self.calibration.host_factor
        self.constants = constants = constants if factor is None else at_host(constants, factor)
        self.traffic = Traffic(
            shape,
            job,
            cluster,
            constants,
            self.calibration,
            shape.parameters if trainable is None else trainable,
        )
        self.kernels = KernelTimes(
            shape, job, cluster.gpu, constants, self.calibration, self.traffic.head_cut_by_vocabulary
        )
        self._work: dict[tuple[object, ...], Work] = {}
        self._layer_kernels = shape.layer_kernels

    @property
    def trainable(self) -> int:
        """Elements of the weights that get gradients, before anything divides them."""
        return self.traffic.trainable

    def work(self, strategy: Strategy) -> Work:
        """One micro-batch on the pipeline stage with the most layers."""
        settings = strategy.settings
        key = (
            settings.micro_batch, strategy.tensor_parallel, strategy.sequence_parallel,
            strategy.pipeline_parallel, strategy.checkpointing, settings.precision, *settings.family,
            self.traffic.engine(strategy).reductions(strategy), strategy.data_parallel,
        )  # fmt: skip
        cached_work = self._work.get(key)
        if cached_work is None:
            cached_work = self._work[key] = self._micro_batch(strategy)
        return cached_work

    def estimate(self, strategy: Strategy) -> TimeEstimate:
        """Time of one optimizer step (or of one forward pass, when serving)."""
        parts = self.traffic.step(strategy, self.work(strategy))
        calibrated = self.calibration.tuned or self.calibration.rehearsed
        factor = calibrated.of(strategy.family) if calibrated is not None else 1.0
        return self._estimate(strategy, {name: value * factor for name, value in parts.items() if value > 0})

    def least_seconds(self, precision: str) -> float:
        """No strategy trains the job's global batch faster: the layers' products, divided evenly over all
        GPUs. 0 where measured factors may say less."""
        measured = self.calibration
        if measured.layer_factors or measured.tuned is not None or measured.rehearsed is not None:
            return 0.0
        return (self.job.global_batch or 0) * self.kernels.least_seconds(precision) / self.cluster.gpus

    def with_retries(
        self, estimate: TimeEstimate, strategy: Strategy, memory: MemoryEstimate
    ) -> TimeEstimate:
        """The estimate and what the allocator costs where ``memory`` leaves it little of the card."""
        seconds = self.retry_seconds(strategy, spare_bytes(memory, strategy, self.job, self.cluster))
        return self._estimate(strategy, {**estimate.parts, "retries": seconds}) if seconds else estimate

    def retry_seconds(self, strategy: Strategy, headroom: int) -> float:
        """Seconds of a step, with so many bytes left beyond the peak."""
        tuned = self.calibration.tuned
        if tuned is not None and strategy.family in tuned.by_family:
            return 0.0  # it ran: its factor holds them
        flattened = self.traffic.engine(strategy).flattened(strategy)
        return retry_seconds(
            self.shape, self.job, strategy, self.cluster, self.constants, flattened, headroom
        )

    def _estimate(self, strategy: Strategy, parts: Mapping[str, float]) -> TimeEstimate:
        total = sum(parts.values())
        tokens = strategy.global_batch * self.job.row_tokens
        bounds = {name: value for name, value in parts.items() if name not in ("bubble", "optimizer")}
        return TimeEstimate(
            step_seconds=total,
            tokens_per_second_per_gpu=tokens / total / strategy.world_size,
            parts=parts,
            bound_by=max(bounds or parts, key=lambda name: parts[name]),
        )

    # ---------------------------------------------------------------- one micro-batch

    def _micro_batch(self, strategy: Strategy) -> Work:
        c, pp = self.constants, strategy.pipeline_parallel
        forward = backward = count = 0.0
        kernels = self.kernels.of(strategy)
        for stack, (fwd, bwd, attention, kept) in zip(self.shape.stacks, kernels.layers, strict=True):
            # the stage with the most layers sets the pace
            layers = math.ceil(stack.layers / pp) if pp > 1 else stack.layers
            forward += layers * fwd
            backward += layers * bwd
            if strategy.checkpointing == "full":
                backward += layers * (fwd - kept)
            if strategy.recomputed(self.job.attention) == "selective":
                backward += layers * attention
            count += layers
        head_forward, head_backward = kernels.head
        if self.job.inference:
            backward = head_backward = 0.0
        exchange = self.traffic.activations(strategy)
        crossing = sum(exchange.values())
        part = 1.0 if self.job.inference else _FORWARD_SHARE[strategy.checkpointing]
        launch, launch_backward = self._layer_launch(strategy)
        passes = 0.0 if self.job.inference else 1.0
        hooks = 0.0
        if passes:
            # every rank holds and adds up all gradients of its layers, whatever ZeRO does with them after
            engine = self.traffic.engine(strategy)
            backward += engine.gradients(strategy)
            hooks = engine.hooks(strategy)
        # CPU ranks launch on the cores that compute: one after the other
        power = 1.0 if self.cluster.gpu.name == "cpu" else c.launch_join
        layer_seconds = (
            _join(forward + part * crossing, count * launch, power),
            _join(backward + (1 - part) * crossing, passes * count * launch_backward + hooks, power),
        )
        factor = self.calibration.layer_factor(
            self.shape.hidden, strategy.tensor_parallel, self.kernels.tokens(self.shape.stacks[0], strategy)
        )
        layer_seconds = (layer_seconds[0] * factor, layer_seconds[1] * factor)
        head_seconds = (
            _join(head_forward, c.launch_seconds, power),
            _join(head_backward, c.launch_seconds, power) if passes else 0.0,
        )
        return Work(
            forward_seconds=layer_seconds[0] + head_seconds[0],
            backward_seconds=layer_seconds[1] + head_seconds[1],
            gpu_seconds=(forward + backward) * factor + head_forward + head_backward,
            exchange_seconds={kind: seconds * factor for kind, seconds in exchange.items()},
            head_seconds=sum(head_seconds),
        )

    def _layer_launch(self, strategy: Strategy) -> tuple[float, float]:
        """Host time to launch one layer's kernels, forward and backward."""
        c = self.constants
        adapted = self.job.method != "full"
        times = self._layer_kernels / c.launch_kernels if c.launch_kernels else 1.0
        seconds = c.launch_seconds * (times + (c.adapter_launch - 1.0 if adapted else 0.0))
        # what each pass over a layer costs besides
        more = c.tensor_launch_seconds * (strategy.tensor_parallel - 1)
        forward, backward, recompute = self.traffic.engine(strategy).layer_launch(strategy)
        backward += c.backward_launch * seconds + more
        if strategy.checkpointing == "full":
            forward += c.checkpoint_seconds
            backward += c.recompute_launch * seconds + more + recompute
        return seconds + more + forward, backward
