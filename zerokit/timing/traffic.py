"""What crosses links, network, PCIe and NVMe in a step, and how much of it compute hides.

What crosses between data-parallel ranks, the engine says (``zerokit.timing.traffic``).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from importlib import import_module

from zerokit.domain.hardware import Cluster
from zerokit.domain.job import Job
from zerokit.domain.model_shape import ModelShape
from zerokit.domain.strategy import Strategy
from zerokit.timing.constants import Calibration, Constants
from zerokit.timing.engine_step import EngineStep
from zerokit.timing.spread import Spread
from zerokit.values import frozen_dataclass

_ENGINES = {
    "deepspeed": "deepspeed_step.DeepSpeedStep",
    "fsdp2": "fsdp2_step.Fsdp2Step",
    "ddp": "ddp_step.DdpStep",
}
_SWAPPED_BYTES = 12.0
"""Of a weight that go to NVMe and back: fp32 master weight and Adam's two moments."""


@frozen_dataclass
class Work:
    """One micro-batch on one rank, data-parallel traffic left out. Seconds.

    Attributes:
        forward_seconds, backward_seconds: with launches and with the exchange of activations.
        gpu_seconds: kernels alone.
        exchange_seconds: kind of link -> activations crossing it (tensor and sequence parallel).
        head_seconds: the share of output head and loss.
    """

    forward_seconds: float
    backward_seconds: float
    gpu_seconds: float
    exchange_seconds: Mapping[str, float]
    head_seconds: float

    @property
    def seconds(self) -> float:
        """Forward and backward."""
        return self.forward_seconds + self.backward_seconds


class Traffic(Spread):
    """Step time from compute time: adds what is communicated, offloaded and stepped."""

    def __init__(
        self,
        shape: ModelShape,
        job: Job,
        cluster: Cluster,
        constants: Constants,
        calibration: Calibration,
        trainable: int,
    ) -> None:
        super().__init__(shape, job, cluster, constants, calibration, trainable)
        self._engines: dict[str, EngineStep] = {}
        self._copying = self._pcie()

    def engine(self, strategy: Strategy) -> EngineStep:
        """What the engine of a strategy adds; only what is asked for is imported."""
        name = strategy.settings.engine
        if name not in self._engines:
            module, _, own = _ENGINES[name].partition(".")
            self._engines[name] = getattr(import_module(f"zerokit.timing.{module}"), own)(self)
        return self._engines[name]

    def step(self, strategy: Strategy, work: Work) -> dict[str, float]:
        """Seconds of a step by what they are spent on; they sum to the step's time."""
        settings = strategy.settings
        micros, stages = settings.gradient_accumulation, strategy.pipeline_parallel
        flow = self.engine(strategy).data_parallel(strategy)
        offload = self._offload(strategy)
        busy = work.seconds
        # what crosses per micro-batch runs beside compute where DeepSpeed overlaps
        slowing = self.constants.overlap_loss * self._gpu_paced(work)
        exposed = _overlap(busy, flow.per_micro, flow.overlapped, slowing)
        loss = self.constants.copy_overlap_loss
        extra_pcie = offload["gradients_per_micro"]
        extra_pcie += _overlap(busy + exposed, offload["weights_per_micro"], True, loss)
        extra_nvme = _overlap(busy + exposed + extra_pcie, offload["nvme_per_micro"], True, loss)
        launch = max(0.0, busy - work.gpu_seconds - sum(work.exchange_seconds.values()))
        parts = {
            "compute": micros * work.gpu_seconds,
            "launch": micros * launch,
            "link": 0.0,
            "network": 0.0,
            "pcie": micros * extra_pcie + offload["pcie_per_step"],
            "host": offload["host_per_step"],
            "nvme": micros * extra_nvme + offload["nvme_per_step"],
        }
        for kind, seconds in work.exchange_seconds.items():
            parts[kind] += micros * seconds
        parts[flow.route.kind] += micros * exposed
        if self.job.inference:
            return parts
        last = work.backward_seconds if flow.overlapped_at_end else 0.0
        parts[flow.route.kind] += max(flow.per_step - last, flow.per_step * self.constants.overlap_loss)
        parts["optimizer"] = self.engine(strategy).optimizer(strategy)
        if stages > 1:
            self._pipeline(strategy, work, parts, busy + exposed)
        return parts

    def activations(self, strategy: Strategy) -> dict[str, float]:
        """Kind of link -> seconds in which activations cross it, for one micro-batch."""
        result: dict[str, float] = {}
        for seconds, kind in (self._tensor(strategy), self._sequence(strategy)):
            if seconds:
                result[kind] = result.get(kind, 0.0) + seconds
        return result

    @property
    def head_cut_by_vocabulary(self) -> bool:
        """Whether tensor-parallel ranks compute their share of the logits and of the loss. AutoTP keeps tied
        heads cut as their embedding is (deepspeed/module_inject/layers.py)."""
        return self.constants.vocab_parallel or self.shape.tied

    def _tensor(self, strategy: Strategy) -> tuple[float, str]:
        """All-reduces of activations: two a layer in each direction, one more pass when recomputing."""
        tp = strategy.tensor_parallel
        if tp == 1:
            return 0.0, "link"
        c, settings = self.constants, strategy.settings
        way = self.route(tp, 1, c.tensor_link_share)
        passes = c.tensor_parallel_collectives
        if self.job.inference:
            passes = passes // 2
        elif strategy.checkpointing == "full":
            # early stop spares the all-reduce after the last product
            passes += passes // 2 - (0 if self.job.is_reentrant(settings) else 1)
        tokens = settings.micro_batch * self.job.row_tokens / strategy.sequence_parallel
        seconds = 0.0
        for stack in self.shape.stacks:
            size = settings.parameter_bytes * tokens * stack.hidden
            layers = math.ceil(stack.layers / strategy.pipeline_parallel)
            seconds += layers * passes * way.seconds(size, passes=2)
        if not self.head_cut_by_vocabulary and not self.job.inference:
            # AutoTP gathers the logits (GatherFromTensorParallelRegion, deepspeed/module_inject/layers.py)
            seconds += way.seconds(settings.parameter_bytes * tokens * self.shape.vocab)
        return seconds, way.kind

    def _sequence(self, strategy: Strategy) -> tuple[float, str]:
        """Ulysses: queries, keys, values and outputs change from tokens to heads and back
        (arXiv 2309.14509, section 3.2)."""
        sp = strategy.sequence_parallel
        if sp == 1:
            return 0.0, "link"
        way = self.route(sp, strategy.tensor_parallel)
        passes = 3 if strategy.checkpointing == "full" else 1 if self.job.inference else 2
        tokens = strategy.settings.micro_batch * self.job.row_tokens / sp
        seconds = 0.0
        for stack in self.shape.stacks:
            exchanged = 2 * stack.attention_width + max(
                stack.kv_width, stack.kv_width * sp / self.shape.kv_heads / 2
            )
            size = strategy.settings.parameter_bytes * tokens * exchanged / strategy.tensor_parallel
            layers = math.ceil(stack.layers / strategy.pipeline_parallel)
            seconds += layers * passes * way.seconds(size, messages=4)
        return seconds, way.kind

    def _pipeline(self, strategy: Strategy, work: Work, parts: dict[str, float], per_micro: float) -> None:
        """Fill and drain, (p − 1) micro-batches long, and the sends between stages.

        ``work`` holds the layers of one stage and the whole head; only the last stage has the head.
        """
        settings, p = strategy.settings, strategy.pipeline_parallel
        inner = strategy.tensor_parallel * strategy.sequence_parallel * strategy.data_parallel
        inside = inner * p <= self.cluster.gpus_per_node
        way = self.route(2, inner if not inside else 1)
        size = settings.parameter_bytes * settings.micro_batch * self.job.row_tokens * self.shape.hidden
        send = 2 * way.seconds(size * 2 / strategy.sequence_parallel)
        parts[way.kind] = parts.get(way.kind, 0.0) + settings.gradient_accumulation * send
        parts["bubble"] = (p - 1) * (max(0.0, per_micro - work.head_seconds) + send)

    def _gpu_paced(self, work: Work) -> float:
        """What a micro-batch grows by for each second that the GPU takes longer: the slope of the smooth
        maximum of GPU and host."""
        power = 1.0 if self.cluster.gpu.name == "cpu" else self.constants.launch_join
        share = min(1.0, work.gpu_seconds / work.seconds) if work.seconds else 1.0
        return math.pow(share, power - 1)

    # ---------------------------------------------------------------- the step itself

    def _pcie(self) -> tuple[float, float]:
        """Host-to-device and device-to-host bytes/s of one GPU when all of the node copy at once."""
        c, calibration = self.constants, self.calibration
        pcie = self.cluster.gpu.pcie_bytes_per_second * c.pcie_efficiency
        per_node = self.cluster.gpus_per_node
        up = (calibration.host_to_device_bytes_per_second or c.host_to_device_bytes_per_second) / per_node
        down = (calibration.device_to_host_bytes_per_second or c.device_to_host_bytes_per_second) / per_node
        return min(pcie, up), min(pcie, down)

    def _offload(self, strategy: Strategy) -> dict[str, float]:
        """Seconds over PCIe, on the host and on NVMe; per micro-batch and per step."""
        settings = strategy.settings
        parts = {"gradients_per_micro": 0.0, "weights_per_micro": 0.0, "pcie_per_step": 0.0,
                 "host_per_step": 0.0, "nvme_per_micro": 0.0, "nvme_per_step": 0.0}  # fmt: skip
        optimizer, parameters = settings.optimizer_device, settings.weights_device
        if not settings.offloads:
            return parts
        ranks = strategy.zero_ranks
        weights, trainable = self.rank_weights(strategy)
        up, down = self._copying
        per_node = self.cluster.gpus_per_node
        disk = (self.calibration.nvme_bytes_per_second or self.cluster.nvme_bytes_per_second) / per_node
        element_bytes = settings.parameter_bytes
        if optimizer != "none" and not self.job.inference:
            owned, hosted = trainable / ranks, self.engine(strategy).hosted(strategy)
            down_per_step, per_micro = self.engine(strategy).offloaded_gradients(strategy, owned)
            owned *= hosted
            parts["pcie_per_step"] += down_per_step * hosted / down
            parts["gradients_per_micro"] += per_micro * (1 / down + 1 / up)
            if parameters == "none":
                parts["pcie_per_step"] += element_bytes * owned / up
            # the stepped weights are cast on the host (zero/stage_1_and_2.py:3095, zero/stage3.py:2858)
            parts["host_per_step"] += self.constants.cast_seconds * owned
            rate = (
                self.calibration.cpu_adam_parameters_per_second
                or self.constants.cpu_adam_parameters_per_second
            )
            parts["host_per_step"] += owned * per_node / rate
            if optimizer == "nvme":
                parts["nvme_per_step"] += 2 * _SWAPPED_BYTES * owned / disk
        if parameters != "none":
            gathers = 1 if self.job.inference else 2
            owned_bytes = weights * self.weight_bytes / ranks
            parts["weights_per_micro"] += gathers * owned_bytes / up
            if optimizer == "none" and not self.job.inference:
                # stepped on the GPU, each sub-group's fp32 weights go back to the host before the next is
                # stepped, and are cast there (deepspeed/runtime/zero/stage3.py:2858, 0.19.8)
                seconds = max(self.constants.blocking_cast_seconds, 4 / down)
                parts["pcie_per_step"] += seconds * trainable / ranks
            if parameters == "nvme":
                parts["nvme_per_micro"] += gathers * owned_bytes / disk
        return parts


def _overlap(compute: float, communication: float, overlapped: bool, loss: float) -> float:
    """What of ``communication`` is not hidden behind ``compute``."""
    if not overlapped:
        return communication
    return max(0.0, communication - compute) + loss * min(compute, communication)
