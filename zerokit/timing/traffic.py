"""What crosses links, network, PCIe and NVMe in a step, and how much of it compute hides.

Per GPU and step, with W the bytes of its weights and m micro-batches (DeepSpeed 0.19.8): stages 0
and 1 all-reduce once, at the accumulation boundary (2W), stage 2 every micro-batch (2mW); stages 1
and 2 gather the weights once (W). Stage 3 gathers for forward and for backward and reduces, every
micro-batch (3mW), less what ``stage3_max_reuse_distance`` keeps over the turn.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from zerokit.domain.deepspeed_settings import deepspeed
from zerokit.domain.hardware import Cluster
from zerokit.domain.job import Job, Lora
from zerokit.domain.model_shape import ModelShape
from zerokit.domain.strategy import Strategy
from zerokit.memory.rank_model import ElementBytes
from zerokit.timing import zero_3_host
from zerokit.timing.collectives import Route, route
from zerokit.timing.constants import Calibration, Constants
from zerokit.values import frozen_dataclass

_FETCHED_MODULES = 8
"""Of a layer, fetched apart where prefetching does not join them: about its linear modules and norms."""
_STAGE_0_STEP_SHARE = 18 / 4
"""Kernels of a tensor's step over those at stage 0, which keeps its gradients flat: norm and clipping alone
(runtime/bf16_optimizer.py:384)."""
_SWAPPED_BYTES = 12.0
"""Of a weight that go to NVMe and back: fp32 master weight and Adam's two moments."""
_QUANTIZED_GATHER, _QUANTIZED_REDUCE = 2, 4
"""ZeRO++: weights in 8 bits instead of 16, gradients in 4 (arXiv 2306.10209)."""


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


@frozen_dataclass
class _Flow:
    """Data-parallel traffic: seconds per micro-batch and per step, whether compute hides it."""

    route: Route
    per_micro: float
    per_step: float
    overlapped: bool


class Traffic:
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
        self.shape = shape
        self.job = job
        self.cluster = cluster
        self.constants = constants
        self.calibration = calibration
        self.trainable = trainable
        self._routes: dict[tuple[int, int, float], Route] = {}
        self._tensors = self._tensors_of_all_stages()
        self._tensor_of_an_element = self._mean_tensor_of_an_element()
        self._copying = self._pcie()
        self._small_tensors = zero_3_host.small_tensors(shape)
        self._weight_bytes = shape.weight_bytes(2.0, job.packed_base_bytes) / shape.parameters

    def step(self, strategy: Strategy, work: Work) -> dict[str, float]:
        """Seconds of a step by what they are spent on; they sum to the step's time."""
        settings = strategy.settings
        micros, stages = settings.gradient_accumulation, strategy.pipeline_parallel
        flow = self._data_parallel(strategy)
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
        last = work.backward_seconds if flow.overlapped and not settings.divides_gradients else 0.0
        parts[flow.route.kind] += max(flow.per_step - last, flow.per_step * self.constants.overlap_loss)
        parts["optimizer"] = self._optimizer(strategy)
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

    # ---------------------------------------------------------------- groups

    def _route(self, ranks: int, inner: int, share: float = 1.0) -> Route:
        key = (ranks, inner, share)
        if key not in self._routes:
            self._routes[key] = route(self.cluster, ranks, inner, self.constants, self.calibration, share)
        return self._routes[key]

    def rank_weights(self, strategy: Strategy) -> tuple[float, float]:
        """Elements of weights and of trainable ones on a rank before ZeRO divides them."""
        split = strategy.tensor_parallel * strategy.pipeline_parallel
        return self.shape.parameters / split, self.trainable / split

    def owned(self, strategy: Strategy) -> float:
        """Trainable elements that a rank's optimizer steps."""
        owned = self.rank_weights(strategy)[1]
        if strategy.settings.divides_states:
            owned /= strategy.zero_ranks
        return owned

    def _data_parallel(self, strategy: Strategy) -> _Flow:
        settings = strategy.settings
        zero = deepspeed(settings).zero
        # sequence-parallel peers average gradients and share ZeRO's partition too
        ranks = strategy.zero_ranks
        way = self._route(ranks, strategy.tensor_parallel)
        weights, trainable = self.rank_weights(strategy)
        element_bytes = settings.parameter_bytes
        gradients = element_bytes * trainable
        bucket = element_bytes * zero.reduce_bucket_size
        messages = max(1, math.ceil(gradients / bucket))
        if self.job.inference:
            gathers = weights * self._weight_bytes if zero.stage == 3 else 0.0
            return _Flow(route=way, per_micro=way.seconds(gathers, messages=self.shape.layers), per_step=0.0,
                         overlapped=True)  # fmt: skip
        gather_bucket = element_bytes * zero.allgather_bucket_size
        gather_updated = way.seconds(gradients, messages=max(1, math.ceil(gradients / gather_bucket)))
        if zero.stage <= 2:
            # buckets are all-reduced, and each rank keeps its part (use_multi_rank_bucket_allreduce, which
            # is DeepSpeed's default; zero/stage_1_and_2.py:1695)
            reduce = way.seconds(gradients, passes=2, messages=messages)
        if zero.stage <= 1:
            per_step = reduce + (gather_updated if zero.stage == 1 else 0.0)
            return _Flow(route=way, per_micro=0.0, per_step=per_step, overlapped=zero.overlaps)
        if zero.stage == 2:
            return _Flow(route=way, per_micro=reduce, per_step=gather_updated, overlapped=zero.overlaps)
        reduce = way.seconds(gradients, messages=messages)
        return self._stage_3(strategy, way, weights, reduce)

    def _stage_3(self, strategy: Strategy, way: Route, weights: float, reduce: float) -> _Flow:
        zero = deepspeed(strategy.settings).zero
        element_bytes = self._weight_bytes * strategy.settings.parameter_bytes / 2
        cached = min(weights, min(zero.max_reuse_distance, zero.max_live_parameters) / 2)
        gathers = (2 * weights - cached) * element_bytes
        gather_way = way
        if zero.zero_hpz_partition_size > 1:
            # the second copy inside the node serves the backward gathers (ZeRO++, arXiv 2306.10209)
            inner = self._route(zero.zero_hpz_partition_size, strategy.tensor_parallel)
            first = way.seconds(
                weights * element_bytes, messages=self._fetches(weights, zero.prefetch_bucket_size)
            )
            second = inner.seconds((weights - cached) * element_bytes, messages=self.shape.layers)
            return _Flow(route=way, per_micro=first + second + reduce, per_step=0.0, overlapped=zero.overlaps)
        if zero.zero_quantized_weights:
            gathers /= _QUANTIZED_GATHER
        if zero.zero_quantized_gradients:
            reduce /= _QUANTIZED_REDUCE
        fetches = 2 * self._fetches(weights, zero.prefetch_bucket_size)
        per_micro = gather_way.seconds(gathers, messages=fetches) + reduce
        return _Flow(route=way, per_micro=per_micro, per_step=0.0, overlapped=zero.overlaps)

    def _fetches(self, weights: float, prefetch_elements: int) -> int:
        """Gathers of one pass: prefetching joins parameters up to its bucket."""
        largest = max(1, max(prefetch_elements, weights / max(1, _FETCHED_MODULES * self.shape.layers)))
        return max(1, math.ceil(weights / largest))

    def _tensor(self, strategy: Strategy) -> tuple[float, str]:
        """All-reduces of activations: two a layer in each direction, one more pass when recomputing."""
        tp = strategy.tensor_parallel
        if tp == 1:
            return 0.0, "link"
        c, settings = self.constants, strategy.settings
        way = self._route(tp, 1, c.tensor_link_share)
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
        way = self._route(sp, strategy.tensor_parallel)
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
        way = self._route(2, inner if not inside else 1)
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

    def _optimizer(self, strategy: Strategy) -> float:
        """Adam on the GPU over what it steps of the owned partition; only launches when the host does it."""
        c, settings = self.constants, strategy.settings
        kernels = 0.0
        if settings.divides_weights:
            kernels = c.stage3_step_seconds * self.tensors(strategy)
        else:
            ranks = strategy.zero_ranks if settings.divides_states else _STAGE_0_STEP_SHARE
            kernels = c.tensor_step_seconds * self.tensors(strategy) / ranks
        hbm = self.cluster.gpu.hbm_bytes_per_second * c.hbm_efficiency
        on_gpu = self.owned(strategy) * (1 - self._hosted(strategy))
        kernels = max(kernels, c.adam_bytes * on_gpu / hbm)
        if settings.divides_weights and strategy.zero_ranks > 1 and self.job.method == "full":
            kernels += c.persistent_gather_seconds * self._small_tensors
        return self._sub_groups(strategy) * c.step_launch_seconds + kernels

    def _sub_groups(self, strategy: Strategy) -> int:
        """How many a rank's optimizer step has. A tensor that reaches the limit goes into a sub-group whole,
        half of it beyond the limit as a rule."""
        zero = deepspeed(strategy.settings).zero
        beyond = self._tensor_of_an_element / 2 / strategy.tensor_parallel / strategy.zero_ranks
        return (
            max(1, math.ceil(self.owned(strategy) / (zero.sub_group_size + beyond))) if zero.stage == 3 else 1
        )

    def _hosted(self, strategy: Strategy) -> float:
        """Share of a rank's optimizer step that the host makes. Under a partial offload (``ratio``, stage 3
        alone) the first sub-groups stay on the GPU, with their gradients (zero/stage3.py:1100, 0.19.8)."""
        zero = deepspeed(strategy.settings).zero
        if zero.offload_optimizer.device == "none" or zero.stage == 0:
            return 0.0
        groups = self._sub_groups(strategy)
        return 1 - int((1 - zero.offload_optimizer.ratio) * groups) / groups

    def tensors(self, strategy: Strategy) -> float:
        """Trainable tensors of a rank's layers, near enough: each product is two (fused here, or with a
        bias)."""
        return self._tensors / strategy.pipeline_parallel

    def _mean_tensor_of_an_element(self) -> float:
        """Elements of the tensor in which an element of the layers lies, on average."""
        sizes = [
            module.n * gemm.k * (gemm.copies if gemm.stacked else 1)
            for stack in self.shape.stacks
            for gemm in stack.gemms
            for module in gemm.modules or (gemm,)
        ]
        return sum(size * size for size in sizes) / max(1, sum(sizes)) if self.job.method == "full" else 0.0

    def _tensors_of_all_stages(self) -> int:
        stacks = self.shape.stacks
        if self.job.method != "full":
            targets = (self.job.lora or Lora()).targets
            counts = (
                stack.layers * 3 * len(gemm.adapted(targets)) / max(1, len(gemm.modules))
                for stack in stacks
                for gemm in stack.gemms
            )
            return round(sum(counts))
        norms = 1 if self.shape.gated else 4
        return sum(stack.layers * (2 * len(stack.gemms) + norms) for stack in stacks)

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
            owned, hosted = trainable / ranks, self._hosted(strategy)
            down_per_step, per_micro = self._offloaded_gradients(strategy, owned)
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
            owned_bytes = weights * self._weight_bytes / ranks
            parts["weights_per_micro"] += gathers * owned_bytes / up
            if optimizer == "none" and not self.job.inference:
                # stepped on the GPU, each sub-group's fp32 weights go back to the host before the next is
                # stepped, and are cast there (deepspeed/runtime/zero/stage3.py:2858, 0.19.8)
                seconds = max(self.constants.blocking_cast_seconds, 4 / down)
                parts["pcie_per_step"] += seconds * trainable / ranks
            if parameters == "nvme":
                parts["nvme_per_micro"] += gathers * owned_bytes / disk
        return parts

    def _offloaded_gradients(self, strategy: Strategy, owned: float) -> tuple[float, float]:
        """Bytes of gradients that go to the host once a step, and both ways each micro-batch.

        At the boundary they go down as wide as the master weights (zero/stage_1_and_2.py:1888,
        zero/stage3.py:1443). Until then stage 1 adds them up on the GPU, and stage 2 too when it is to do so
        in fp32; else stage 2 on the host, from which the sum comes back to be added to
        (zero/stage_1_and_2.py:2166), as stage 3 does even without accumulation (zero/stage3.py:2021).
        """
        settings = deepspeed(strategy.settings)
        low = settings.bf16_master_weights_and_grads or settings.fp16_master_weights_and_grads
        step = (2.0 if low else 4.0) * owned
        summed = (
            settings.zero.stage == 2
            and settings.gradient_accumulation > 1
            and not ElementBytes.of(settings).compact
        )
        on_host = settings.divides_weights or summed
        return step, settings.parameter_bytes * owned if on_host else 0.0


def _overlap(compute: float, communication: float, overlapped: bool, loss: float) -> float:
    """What of ``communication`` is not hidden behind ``compute``."""
    if not overlapped:
        return communication
    return max(0.0, communication - compute) + loss * min(compute, communication)
