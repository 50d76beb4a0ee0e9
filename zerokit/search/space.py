"""What is wanted and what is searched for it: degrees, stages, offload, knobs, and the strategy of a point.

Which points are legal, the rules say.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import field
from functools import lru_cache

from zerokit.domain.client_optimizers import client_optimizer
from zerokit.domain.deepspeed_settings import DEFAULT_ZERO, DeepSpeedSettings, Offload, ZeroSettings
from zerokit.domain.hardware import Cluster
from zerokit.domain.job import Job
from zerokit.domain.model_shape import ModelShape
from zerokit.domain.strategy import MemoryEstimate, Strategy
from zerokit.errors import InputError
from zerokit.notes import Note
from zerokit.rules import Setup, Violation, layout_violations
from zerokit.timing.constants import HUGGING_FACE, Calibration, Constants
from zerokit.timing.step_time import TimeModel
from zerokit.values import frozen_dataclass, replace

_NO_SETTINGS = DeepSpeedSettings()


@frozen_dataclass
class Pins:
    """What the user fixed; ``None``: searched, but for parallelism that the script must cooperate with.

    An unmodified script runs under any data-parallel plan. Tensor parallel peers must be fed the same batch
    (DeepSpeed stops at the first that differs, runtime/engine.py:994), sequence parallel batches must carry
    position_ids (accelerate's Ulysses loader refuses others), pipelines are built by the script. So these
    degrees are 1 unless fixed, or searched because the user says that the script does its part.

    Attributes:
        search_tensor, search_sequence: the script does what the degree needs of it.
        pipeline_module: it builds a PipelineModule; pipelines and tensor parallel are searched.
        second_copy: whether hpZ may keep one inside each node.
        settings: values of what is not searched, with DeepSpeed's defaults.
    """

    zero_stage: int | None = None
    offload_optimizer: str | None = None
    offload_param: str | None = None
    tensor_parallel: int | None = None
    pipeline_parallel: int | None = None
    sequence_parallel: int | None = None
    micro_batch: int | None = None
    gradient_accumulation: int | None = None
    checkpointing: str | None = None
    reduce_bucket_size: int | None = None
    prefetch_bucket_size: int | None = None
    persistence_threshold: int | None = None
    sub_group_size: int | None = None
    overlap_comm: bool | None = None
    pipeline_module: bool = False
    search_tensor: bool = False
    search_sequence: bool = False
    second_copy: bool = True
    settings: DeepSpeedSettings = DeepSpeedSettings()

    def sizes(self) -> dict[str, int]:
        """The fixed sizes, by the names of :class:`Knobs`."""
        names = ("reduce_bucket_size", "prefetch_bucket_size", "persistence_threshold", "sub_group_size")
        return {name: value for name in names if (value := getattr(self, name)) is not None}


@frozen_dataclass
class Layout:
    """How ranks are divided."""

    data: int
    tensor: int
    pipeline: int
    sequence: int

    @property
    def degrees(self) -> dict[str, int]:
        """The degrees by their names in a strategy."""
        names = ("data", "tensor", "pipeline", "sequence")
        return {f"{name}_parallel": getattr(self, name) for name in names}


def layout_violation(
    layout: Layout, shape: ModelShape, job: Job, cluster: Cluster, pins: Pins
) -> Violation | None:
    """The first rule that forbids this layout, or that makes it one not to be searched unless it is fixed."""
    setup = Setup(
        settings=_NO_SETTINGS,
        world_size=cluster.gpus,
        tensor_parallel=layout.tensor,
        pipeline_parallel=layout.pipeline,
        sequence_parallel=layout.sequence,
        gpus_per_node=cluster.gpus_per_node,
        key_value_heads=shape.kv_heads,
        model=shape,
        job=job,
    )
    fixed = pins.tensor_parallel is not None
    violations = (v for v in layout_violations(setup) if v.rule.severity == "error" or not fixed)
    return next(violations, None)


def divisors(number: int) -> list[int]:
    """All divisors, ascending."""
    small = [d for d in range(1, int(number**0.5) + 1) if number % d == 0]
    return small + [number // d for d in reversed(small) if d * d != number]


def layouts(cluster: Cluster, pins: Pins) -> Iterator[Layout]:
    """Every division of the GPUs into degrees that the pins allow."""
    gpus = divisors(cluster.gpus)

    def choices(pinned: int | None, searched: bool) -> list[int]:
        if pinned is not None:
            return [pinned]
        return gpus if searched else [1]

    for tensor in choices(pins.tensor_parallel, pins.search_tensor or pins.pipeline_module):
        for pipeline in choices(pins.pipeline_parallel, pins.pipeline_module):
            for sequence in choices(pins.sequence_parallel, pins.search_sequence):
                used = tensor * pipeline * sequence
                data, rest = divmod(cluster.gpus, used)
                if not rest:
                    yield Layout(data=data, tensor=tensor, pipeline=pipeline, sequence=sequence)


@frozen_dataclass
class OffloadChoice:
    """A ZeRO stage with what is offloaded."""

    stage: int
    optimizer: str = "none"
    parameters: str = "none"


def refuse_placement(job: Job, stage: int | None, offload: str | None) -> None:
    """Refuse what DeepSpeed refuses of an optimizer that the script makes; ``None``: not fixed.

    Raises:
        InputError: names the option.
    """
    optimizer = None if job.inference else client_optimizer(job.optimizer)
    if optimizer is not None and offload not in (None, "none"):
        raise InputError(
            f"⟨offload_optimizer⟩ {offload}: DeepSpeed does not offload an optimizer that the script "
            f"makes, as {job.optimizer} is (deepspeed/runtime/engine.py:2343); use ⟨optimizer⟩ AdamW, or no "
            "offload"
        )
    if optimizer is not None and stage == 0 and not optimizer.steps_in_init:
        raise InputError(
            f"⟨zero⟩ 0: DeepSpeed steps the optimizer once before training (deepspeed/runtime/fp16/"
            f"unfused_optimizer.py, initialize_optimizer_states), where {job.optimizer} stops; "
            "use ⟨zero⟩ 1, 2 or 3"
        )


def unmodelled_with_loss(job: Job, shape: ModelShape, cluster: Cluster, pins: Pins) -> str | None:
    """What of a request its loss is not modelled with; ``None``: nothing. The model's own is with all."""
    if job.loss == "standard":
        return None
    if shape.head != "causal":
        return f"a model whose head is {shape.head!r}"
    if cluster.gpu.name == "cpu":
        return "CPU ranks, where these libraries compute otherwise"
    asked = {
        "tp": pins.search_tensor or (pins.tensor_parallel or 1) > 1,
        "pp": (pins.pipeline_parallel or 1) > 1,
        "pipeline_module": pins.pipeline_module,
        "images": job.images is not None,
        "offload_activations": job.offload_activations,
    }
    return next((f"⟨{option}⟩" for option, is_asked in asked.items() if is_asked), None)


def placements(pins: Pins, job: Job, has_nvme: bool) -> list[OffloadChoice]:
    """ZeRO stages × offload devices, cheapest first; the pointless ones are the rules' to refuse.

    Weights quantised to 4 bits leave the GPU only when that is fixed: bitsandbytes keeps their quantisation
    state beside them, which DeepSpeed does not move.
    """
    devices = ["none", "cpu", *(["nvme"] if has_nvme else [])]
    result = []
    client = None if job.inference else client_optimizer(job.optimizer)
    for stage in [pins.zero_stage] if pins.zero_stage is not None else [0, 1, 2, 3]:
        for optimizer in [pins.offload_optimizer] if pins.offload_optimizer else devices:
            for parameters in [pins.offload_param] if pins.offload_param else devices:
                if job.inference and (stage not in (0, 3) or optimizer != "none"):
                    continue  # without an optimizer stages 1 and 2 are stage 0
                if client is not None and (optimizer != "none" or (stage == 0 and not client.steps_in_init)):
                    continue  # ``refuse_placement``
                if stage == 3 and job.packed_base_bytes is not None and job.method == "lora":
                    continue  # int8: the scales beside the weights are not divided
                if job.method == "qlora" and parameters != "none" and pins.offload_param is None:
                    continue
                result.append(OffloadChoice(stage=stage, optimizer=optimizer, parameters=parameters))
    return result


@frozen_dataclass
class Knobs:
    """Sizes in elements, DeepSpeed's defaults."""

    reduce_bucket_size: int = DEFAULT_ZERO.reduce_bucket_size
    overlap_comm: bool | None = None
    sub_group_size: int = DEFAULT_ZERO.sub_group_size
    prefetch_bucket_size: int = DEFAULT_ZERO.prefetch_bucket_size
    persistence_threshold: int = DEFAULT_ZERO.param_persistence_threshold
    reuse_distance: int = DEFAULT_ZERO.max_reuse_distance
    hpz_partition_size: int = 1
    round_robin: bool = False


_BUCKETS = (DEFAULT_ZERO.reduce_bucket_size, 200_000_000, 50_000_000, 10_000_000)
_BUCKET_GRAIN = 1_000_000
_SMALL_PREFETCH = 5_000_000  # beside the smallest bucket: elsewhere it saves little of what is live
_SUB_GROUPS = (DEFAULT_ZERO.sub_group_size, 100_000_000)
_REUSE = (DEFAULT_ZERO.max_reuse_distance, 100_000_000, 0)


def _buckets(pins: Pins, trainable: int) -> tuple[int, ...]:
    """Sizes of the gradients' bucket. One larger than all gradients together has room that nothing fills."""
    if pins.reduce_bucket_size:
        return (pins.reduce_bucket_size,)
    rounded = max(1, -(-trainable // _BUCKET_GRAIN)) * _BUCKET_GRAIN
    return tuple(dict.fromkeys(min(size, rounded) for size in _BUCKETS))


def second_copies(pins: Pins, cluster: Cluster) -> tuple[int, ...]:
    """Sizes of the groups that may keep a second copy of ZeRO-3's weights (hpZ, arXiv 2306.10209): nodes.

    Numerics stay: reports of losses and gradients of 0 (DeepSpeed's issues 4851 and 5059, LLaMA-Factory's
    6372) are of versions whose copy could be gathered before it was whole. In 0.19.8 each rank copies its
    slice up to the end of the weight, waits for it (zero/partition_parameters.py:1932-1951), and gathers
    weights with and without a copy apart (zero/partitioned_param_coordinator.py:594); every step drops it
    (zero/stage3.py:2846). On four CPU ranks losses and gradient norms are those without it
    (tests/deepspeed/test_hpz.py).
    """
    per_node = cluster.gpus_per_node
    if not pins.second_copy or cluster.nodes == 1 or per_node == 1:
        return (1,)
    return (per_node, 1)


def knobs(
    placement: OffloadChoice, pins: Pins, trainable: int, copies: tuple[int, ...] = (1,)
) -> tuple[Knobs, ...]:
    """Every setting of the memory-relevant sizes: first the fastest, last the most frugal.

    ``trainable``: elements of the weights that get gradients. ``copies``: of :func:`second_copies`.

    ``round_robin_gradients`` changes which weights a rank owns, and no time: beside an offloaded optimizer
    and the smallest bucket a GPU holds up to 3 % less with it, or up to 1 % more.

    Time never grows towards the first in any knob, and memory never towards the last: larger
    buckets send fewer messages, overlap hides them, a longer reuse distance saves gathers.
    """
    stage = placement.stage
    if stage == 0:
        return (Knobs(),)
    buckets = _buckets(pins, trainable)
    if stage < 3:
        overlaps = (pins.overlap_comm,) if pins.overlap_comm is not None else (True, False)
        in_turns = ((buckets[-1], True),) if placement.optimizer != "none" else ()
        return tuple(
            Knobs(reduce_bucket_size=b, overlap_comm=o, round_robin=r)
            for o in overlaps for b, r in (*((b, False) for b in buckets), *in_turns)
        )  # fmt: skip
    groups = (pins.sub_group_size,) if pins.sub_group_size else _SUB_GROUPS
    prefetch = pins.prefetch_bucket_size or Knobs().prefetch_bucket_size
    overlap = True if pins.overlap_comm is None else pins.overlap_comm
    persistence = Knobs().persistence_threshold
    if pins.persistence_threshold is not None:
        persistence = pins.persistence_threshold
    pairs = [(bucket, prefetch) for bucket in buckets]
    if pins.prefetch_bucket_size is None:
        pairs.append((buckets[-1], _SMALL_PREFETCH))
    return tuple(
        Knobs(reduce_bucket_size=b, overlap_comm=overlap, sub_group_size=g, prefetch_bucket_size=p,
              persistence_threshold=persistence, reuse_distance=r, hpz_partition_size=h)
        for h in copies for r in _REUSE for b, p in pairs for g in groups
    )  # fmt: skip


MemoryModel = Callable[[Job, Strategy, Cluster], MemoryEstimate]
LeastVram = Callable[[Job, Strategy, Cluster], int]
"""A bound from below on what the memory model will say, at a fraction of its cost."""
HostBytes = Callable[[Job, Strategy, Cluster], int | None]
"""Exactly what the memory model will say of the host, at a fraction of its cost; ``None``: ask the model."""


@frozen_dataclass
class Request:
    """What a plan is wanted for. ``precision`` is ``auto`` or one of the job's.

    Attributes:
        memory: the memory model, bound to the model's profile or shape.
        least_vram: a cheap bound from below on its ``min_vram_bytes``.
        host_bytes: its ``host_bytes_per_node``, without the rest.
        without_traces: the request with memory models that trace nothing more.
        exact_memory: the same for every rank, not only the worst: for the plan that is shown.
        all_gpus: use them all, even where fewer are faster.
        timed: whether step times may be shown (they are not, for CPU ranks).
    """

    shape: ModelShape
    job: Job
    cluster: Cluster
    memory: MemoryModel
    least_vram: LeastVram | None = None
    host_bytes: HostBytes | None = None
    exact_memory: MemoryModel | None = None
    without_traces: Callable[[Request], Request] | None = None
    pins: Pins = field(default_factory=Pins)
    precision: str = "auto"
    constants: Constants = HUGGING_FACE
    calibration: Calibration | None = None
    all_gpus: bool = False
    timed: bool = True
    on_cpu: bool = False
    assumptions: tuple[Note, ...] = ()

    def for_remarks(self) -> Request:
        """The request as it is searched for remarks: none of them is worth the minute of a trace."""
        return self if self.without_traces is None else self.without_traces(self)


@frozen_dataclass
class Space:
    """What is searched, and with which models."""

    shape: ModelShape
    job: Job
    cluster: Cluster
    pins: Pins
    precision: str
    global_batch: int
    memory: MemoryModel
    timing: TimeModel
    least_vram: LeastVram | None = None
    host_bytes: HostBytes | None = None
    torch_adam: bool = False


def build_strategy(
    space: Space, layout: Layout, placement: OffloadChoice, checkpointing: str, micro_batch: int,
    accumulation: int, chosen: Knobs,
) -> Strategy:  # fmt: skip
    """The strategy of one point of the space."""
    fixed = space.pins.settings
    zero = _zero_settings(
        fixed.zero, placement, chosen, nvme_path=space.cluster.nvme_path,
        saves_16_bit=placement.stage == 3 and not space.job.inference,
        largest_parameter=space.shape.largest_parameter if placement.parameters == "nvme" else 0,
    )  # fmt: skip
    by_script = not space.job.inference and client_optimizer(space.job.optimizer) is not None
    settings = replace(
        fixed,
        precision=space.precision,
        micro_batch=micro_batch,
        gradient_accumulation=accumulation,
        gradient_clipping=0.0 if space.job.inference else 1.0,
        optimizer=None if space.job.inference or by_script else space.job.optimizer,
        client_optimizer=space.job.optimizer if by_script else None,
        torch_adam=space.torch_adam,
        autotp_size=layout.tensor,
        zero=zero,
    )
    return Strategy(settings=settings, checkpointing=checkpointing, **layout.degrees)


@lru_cache(maxsize=4096)
def _zero_settings(
    fixed: ZeroSettings, placement: OffloadChoice, chosen: Knobs, *, nvme_path: str | None,
    saves_16_bit: bool, largest_parameter: int,
) -> ZeroSettings:  # fmt: skip
    """ZeRO's part of a strategy; the same for every layout and batch."""

    def offload(device: str) -> Offload:
        return Offload(device=device, nvme_path=nvme_path if device == "nvme" else None)

    largest_buffer = max(100_000_000, largest_parameter)  # one NVMe buffer must hold the largest parameter
    weights = replace(offload(placement.parameters), buffer_count=5, buffer_size=largest_buffer)
    return replace(
        fixed,
        stage=placement.stage,
        overlap_comm=chosen.overlap_comm,
        reduce_bucket_size=chosen.reduce_bucket_size,
        allgather_bucket_size=chosen.reduce_bucket_size,
        sub_group_size=chosen.sub_group_size,
        prefetch_bucket_size=chosen.prefetch_bucket_size,
        param_persistence_threshold=chosen.persistence_threshold,
        max_reuse_distance=chosen.reuse_distance,
        zero_hpz_partition_size=chosen.hpz_partition_size,
        round_robin_gradients=chosen.round_robin or fixed.round_robin_gradients,
        gather_16bit_weights_on_model_save=saves_16_bit,
        offload_optimizer=offload(placement.optimizer),
        offload_param=weights,
    )


def batches(space: Space, layout: Layout) -> Iterator[tuple[int, int]]:
    """(micro-batch, accumulation) pairs that meet the global batch exactly, largest micro-batch first."""
    per_rank, rest = divmod(space.global_batch, layout.data)
    if rest or not per_rank:
        return
    pinned, steps = space.pins.micro_batch, space.pins.gradient_accumulation
    for micro in reversed(divisors(per_rank)):
        if (pinned is None or micro == pinned) and (steps is None or micro * steps == per_rank):
            yield micro, per_rank // micro


def checkpointings(space: Space) -> tuple[str, ...]:
    """Selective checkpointing recomputes attention scores: pointless where none are kept."""
    if space.job.inference:
        return ("none",)
    if space.pins.checkpointing is not None:
        return (space.pins.checkpointing,)
    return ("none", "selective", "full") if space.job.attention == "eager" else ("none", "full")
