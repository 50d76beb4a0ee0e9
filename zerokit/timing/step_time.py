"""How long an optimizer step takes: a roofline with the shapes of the real matrix products.

Compute: forward = 2·P·tokens + 4·b·s²·width·c FLOPs (c = ½ when causal), backward twice that;
full checkpointing adds one forward of the layers (Megatron-LM, arXiv 2104.04473, appendix A). A
product M×N×K runs at F·e with e = e_max / ((1 + M₀/M)(1 + N₀/N)). Element-wise work is bound by
HBM, and short kernels by the time the host takes to launch them. Communication is what
:class:`Traffic` adds. Everything is kept per part, so that a plan can say what bounds it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

from zerokit.domain.hardware import Cluster
from zerokit.domain.job import Job
from zerokit.domain.model_shape import ModelShape
from zerokit.domain.strategy import MemoryEstimate, Strategy, TimeEstimate
from zerokit.memory.card import allocator_bytes, keeps_memory
from zerokit.timing.constants import HUGGING_FACE, Calibration, Constants, at_host
from zerokit.timing.host_speed import USUAL, of_slowest_usually
from zerokit.timing.kernel_times import KernelTimes
from zerokit.timing.spread import EngineStep, Spread
from zerokit.values import frozen_dataclass

# What PyTorch's allocator costs near the card's limit: memory given back and mapped again.
#
# With expandable segments the allocator keeps what was freed mapped. A tensor that fits into none of
# the holes gets new pages at the end of the segment; where the limit forbids them, it waits for the
# GPU, gives **every** cached page back and maps what it needs (``num_alloc_retries``;
# c10/cuda/CUDACachingAllocator.cpp of torch 2.11: ``release_cached_blocks``, ``ExpandableSegment``).
# So it is the largest tensors that retry: the holes that the rest of a step leaves are smaller.
#
# What is cached beside the peak is about as large as the largest tensor. In the runs on several GPUs
# of ``benchmarks/measure/data/quality.jsonl`` that nothing held back, reserved less allocated was 2.1 to
# 7 GiB where the loss's fp32 logits were 1 to 7.8 GiB. Below that the number of retries grows as room
# shrinks, to about two per occurrence: 0 at 4 GiB to spare, 1 at 2, 2 at 1 and 4 at 0.5 for a tensor of
# 5 GiB; 2.2, 0.6, 1.9 and 1 a micro-batch in the four runs of ``quality.jsonl`` that were held to a card.

_FP32 = 4


def spare_bytes(memory: MemoryEstimate, strategy: Strategy, job: Job, cluster: Cluster) -> int:
    """What the allocator may hold beyond the peak on this card; below 0 where the run does not fit."""
    keeps, peak = keeps_memory(strategy, job.defaults), memory.worst.peak_allocated_bytes
    required = memory.min_vram_bytes - allocator_bytes(cluster.gpu, peak, keeps=keeps)
    return cluster.gpu.driver_vram_bytes - required


def large_blocks(
    shape: ModelShape, job: Job, strategy: Strategy, flattened: float
) -> list[tuple[float, int]]:
    """(bytes, times a step) of the tensors for which no hole is large enough; ``flattened``: elements of the
    gradients that the optimizer's step makes one tensor in fp32 of."""
    settings = strategy.settings
    blocks: list[tuple[float, int]] = []
    if shape.head == "causal":
        # transformers/loss/loss_utils.py, ForCausalLMLoss: "Upcast to float"
        tokens = settings.micro_batch * job.row_tokens / strategy.sequence_parallel
        blocks.append((_FP32 * tokens * shape.vocab, settings.gradient_accumulation))
    if flattened:
        blocks.append((_FP32 * flattened, 1))
    return blocks


def most_spare_bytes(least_vram: int, strategy: Strategy, job: Job, cluster: Cluster) -> int:
    """The most that ``spare_bytes`` can say of an estimate that needs ``least_vram`` or more."""
    keeps, vram = keeps_memory(strategy, job.defaults), cluster.gpu.vram_bytes
    return cluster.gpu.driver_vram_bytes - least_vram + allocator_bytes(cluster.gpu, vram, keeps=keeps)


def retry_seconds(
    shape: ModelShape,
    job: Job,
    strategy: Strategy,
    cluster: Cluster,
    constants: Constants,
    flattened: float,
    headroom: int,
) -> float:
    """Seconds of a step in which pages are given back and mapped again; 0 with room enough.

    A retry moves what is spare and the tensor's own size. The driver does it for one process of the
    host at a time (two GPUs took 1.8 times as long as one), and the ranks of a node reach it together.
    It never falls as ``headroom`` shrinks, from what any run must have on (``fits.EXPANDABLE_BYTES``).
    """
    if job.inference or headroom < 0 or cluster.on_cpu:
        return 0.0
    per_byte = constants.remap_seconds_per_byte * cluster.gpus_per_node
    seconds = 0.0
    for size, times in large_blocks(shape, job, strategy, flattened):
        cached = size + constants.cached_bytes
        if headroom < cached:
            retries = constants.most_retries * (1 - headroom / cached)
            seconds += times * retries * (headroom + size) * per_byte
    return seconds


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


def _engine_step(name: str) -> type[EngineStep]:
    """What an engine adds to a step; only the one that is asked for is imported."""
    if name == "fsdp2":
        from zerokit.timing.fsdp2_step import Fsdp2Step

        return Fsdp2Step
    if name == "ddp":
        from zerokit.timing.ddp_step import DdpStep

        return DdpStep
    from zerokit.timing.deepspeed_step import DeepSpeedStep

    return DeepSpeedStep


class Traffic(Spread):
    """Step time from compute time: adds what is communicated, offloaded and stepped."""

    @cached_property
    def _engines(self) -> dict[str, EngineStep]:
        return {}

    def engine(self, strategy: Strategy) -> EngineStep:
        """What the engine of a strategy adds."""
        name = strategy.settings.engine
        if name not in self._engines:
            self._engines[name] = _engine_step(name)(self)
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
        parts[flow.route.kind] += flow.after_step
        parts["optimizer"] = self.engine(strategy).optimizer(strategy)
        if stages > 1:
            self._pipeline(strategy, work, parts, busy + exposed)
        return parts

    def activations(self, strategy: Strategy) -> dict[str, float]:
        """Kind of link -> seconds in which activations cross it, for one micro-batch."""
        result: dict[str, float] = {}
        for seconds, kind in (self._tensor(strategy), self.engine(strategy).shared_sequences(strategy)):
            if seconds:
                result[kind] = result.get(kind, 0.0) + seconds
        return result

    def head_cut_by_vocabulary(self, strategy: Strategy) -> bool:
        """Whether tensor-parallel ranks compute their share of the logits and of the loss. AutoTP keeps tied
        heads cut as their embedding is (deepspeed/module_inject/layers.py), Transformers gathers all."""
        return self.constants.vocab_parallel or (self.shape.tied and strategy.engine == "deepspeed")

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
        passes += self.engine(strategy).more_all_reduces
        tokens = settings.micro_batch * self.job.row_tokens / strategy.sequence_parallel
        seconds = 0.0
        for stack in self.shape.stacks:
            size = settings.parameter_bytes * tokens * stack.hidden
            layers = math.ceil(stack.layers / strategy.pipeline_parallel)
            seconds += layers * passes * way.seconds(size, passes=2)
        if not self.head_cut_by_vocabulary(strategy) and not self.job.inference:
            # AutoTP gathers the logits (GatherFromTensorParallelRegion, deepspeed/module_inject/layers.py);
            # Transformers does so, too (colwise_gather_output)
            seconds += way.seconds(settings.parameter_bytes * tokens * self.shape.vocab)
        return seconds, way.kind

    def _pipeline(self, strategy: Strategy, work: Work, parts: dict[str, float], per_micro: float) -> None:
        """Fill and drain, (p − 1) micro-batches long, and the sends between stages. ``work`` holds the layers
        of one stage and the whole head; only the last stage has the head."""
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
        power = 1.0 if self.cluster.on_cpu else self.constants.launch_join
        share = min(1.0, work.gpu_seconds / work.seconds) if work.seconds else 1.0
        return math.pow(share, power - 1)

    # ---------------------------------------------------------------- the step itself

    @cached_property
    def _copying(self) -> tuple[float, float]:
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


_FORWARD_SHARE = {"none": 1 / 2, "selective": 1 / 2, "full": 1 / 3}
"""Of the activations that cross links, those of the forward pass, by checkpointing: a recomputed forward
pass sends them a second time within backward."""


class _Phase(NamedTuple):
    """Part of a micro-batch: seconds that the host takes to issue it, seconds of its kernels, and in how many
    equal layers."""

    host: float
    gpu: float
    layers: float


_LEAD_WHERE_IT_WAITS = 2.0
"""Layers: ZeRO-3's host waits for a gather two behind the one it issues, and a layer is about a gather."""
_UNTIL_STEADY = 3
"""Micro-batches after which the host's lead no longer changes what one takes."""


def _played(phases: Sequence[_Phase], micro_batches: int, lead: float, power: float) -> list[float]:
    """Seconds that pass in each phase, on average over a step's micro-batches.

    The host issues layer after layer and runs ahead of the GPU, into the next phase and the next micro-batch
    too; the GPU runs a layer once it is issued and the one before it is done.

    Args:
        lead: so many layers ahead at most.
        power: of the smooth maximum of host and GPU, since layers are not all alike: near equality each waits
            for the other now and then.
    """
    seconds = [0.0] * len(phases)
    issued = done = 0.0
    for micro in range(1, min(micro_batches, _UNTIL_STEADY) + 1):
        like_it = micro_batches - _UNTIL_STEADY + 1 if micro == _UNTIL_STEADY else 1
        for at, (host, gpu, layers) in enumerate(phases):
            if not layers:
                continue
            start, first = max(issued, done), max(done, issued + host / layers)
            issued += host
            end = start + _join(first + gpu - start, issued + gpu / layers - start, power)
            seconds[at] += like_it * (end - done)
            done, issued = end, max(issued, end - lead * gpu / layers)
    return [entry / micro_batches for entry in seconds]


def _join(one: float, other: float, power: float) -> float:
    """The longer of two times, smoothly; the first alone where the other is past."""
    longer = max(one, other)
    if other <= 0 or longer <= 0:
        return one
    return longer * float((1 + (min(one, other) / longer) ** power) ** (1 / power))


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
            settings.gradient_accumulation,
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
        # pairs pass through a reference model too, forward alone
        forwards = 2.0 if self.job.defaults.reference and not self.job.inference else 1.0
        forward, head_forward = forwards * forward, forwards * head_forward
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
        host_forward, host_backward = forwards * count * launch, passes * count * launch_backward + hooks
        slowest = self._slowest_rank(strategy, host_forward + host_backward)
        phases = [
            _Phase(slowest * host_forward, forward + part * crossing, count),
            _Phase(forwards * c.launch_seconds, head_forward, 1),
            _Phase(passes * c.launch_seconds, head_backward, passes),
            _Phase(slowest * host_backward, backward + (1 - part) * crossing, passes * count),
        ]
        if self.cluster.on_cpu:  # ranks launch on the cores that compute: one after the other
            seconds = [phase.host + phase.gpu for phase in phases]
        else:
            engine = self.traffic.engine(strategy)
            lead = _LEAD_WHERE_IT_WAITS if engine.waits(strategy) else math.inf
            apart = engine.waits_for_each_micro_batch(strategy)
            seconds = _played(
                phases, 1 if apart else strategy.settings.gradient_accumulation, lead, c.launch_join
            )
        factor = self.calibration.layer_factor(
            self.shape.hidden, strategy.tensor_parallel, self.kernels.tokens(self.shape.stacks[0], strategy)
        )
        return Work(
            forward_seconds=seconds[0] * factor + seconds[1],
            backward_seconds=seconds[3] * factor + seconds[2],
            gpu_seconds=(forward + backward) * factor + head_forward + head_backward,
            exchange_seconds={kind: spent * factor for kind, spent in exchange.items()},
            head_seconds=seconds[1] + seconds[2],
        )

    def _slowest_rank(self, strategy: Strategy, host_seconds: float) -> float:
        """How many times a host's seconds of a micro-batch pass until the slowest rank is there. Ranks wait
        for each other where the engine makes them, and at the end of a step."""
        if self.cluster.on_cpu:
            return 1.0
        waits = self.traffic.engine(strategy).waits(strategy)
        known = self.calibration
        factor = known.host_factor or USUAL
        interval = host_seconds / waits if waits else None
        return of_slowest_usually(factor, strategy.world_size, interval, high=known.host_factor_high) / factor

    def _layer_launch(self, strategy: Strategy) -> tuple[float, float]:
        """Host time to launch one layer's kernels, forward and backward."""
        c = self.constants
        adapted = 0.0 if self.job.method == "full" else self.shape.adapted_share(self.job.adapters.targets)
        times = self._layer_kernels / c.launch_kernels if c.launch_kernels else 1.0
        seconds = c.launch_seconds * (times + (c.adapter_launch - 1.0) * adapted)
        if self.job.method == "qlora":
            seconds += c.packed_seconds * self.shape.packable_modules
        # what each pass over a layer costs besides
        more = c.tensor_launch_seconds * (strategy.tensor_parallel - 1)
        forward, backward, recompute = self.traffic.engine(strategy).layer_launch(strategy)
        backward += c.backward_launch * seconds + more
        if strategy.checkpointing == "full":
            forward += c.checkpoint_seconds
            backward += c.recompute_launch * seconds + more + recompute
        return seconds + more + forward, backward
