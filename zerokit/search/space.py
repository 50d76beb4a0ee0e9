"""What is wanted and what is searched for it: degrees, stages, offload, knobs, and the strategy of a point.

Which points are legal, the rules say.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import field
from typing import Any

from zerokit.domain.deepspeed_settings import DeepSpeedSettings
from zerokit.domain.hardware import Cluster
from zerokit.domain.job import Job
from zerokit.domain.model_shape import ModelShape
from zerokit.domain.settings import sharing_option
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
        engine: which one trains.
        load_dtype: precision of the weights as the script loads them; without an engine alone.
        search_tensor, search_sequence: the script does what the degree needs of it.
        shared_by: the option that asks for ranks that share a sequence; empty: none does.
        pipeline_module: it builds a PipelineModule; pipelines and tensor parallel are searched.
        second_copy: whether hpZ may keep one inside each node.
        settings: values of what is not searched, with DeepSpeed's defaults.
    """

    engine: str = "deepspeed"
    load_dtype: str | None = None
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
    shared_by: str = ""
    second_copy: bool = True
    settings: DeepSpeedSettings = DeepSpeedSettings()

    def sizes(self) -> dict[str, int]:
        """The fixed sizes, by the names of :class:`Knobs`."""
        names = ("reduce_bucket_size", "prefetch_bucket_size", "persistence_threshold", "sub_group_size")
        return {name: value for name in names if (value := getattr(self, name)) is not None}

    @property
    def sharing_option(self) -> str:
        """The engine's option of ranks that share a sequence."""
        return sharing_option(self.engine)

    def refuse_sharing(self) -> None:
        """Refuse another engine's option of ranks that share a sequence. Raises InputError: names it."""
        asked = self.shared_by
        if asked and asked != self.sharing_option:
            raise InputError(
                f"⟨{asked}⟩ {self.sequence_parallel or 'auto'}: not planned with ⟨engine⟩ {self.engine}; "
                f"{_OTHER_WAY[asked]}"
            )


_OTHER_WAY = {
    "sp": "use ⟨engine⟩ deepspeed, or ⟨engine⟩ fsdp2 with ⟨cp⟩",
    "cp": "use ⟨engine⟩ fsdp2, or ⟨engine⟩ deepspeed with ⟨sp⟩",
}


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


def layout_violation(layout: Layout, of: Request | Space) -> Violation | None:
    """The first rule that forbids this layout, or that makes it one not to be searched unless it is fixed."""
    is_fsdp2 = of.pins.engine == "fsdp2"
    setup = Setup(
        settings=_NO_SETTINGS,
        world_size=of.cluster.gpus,
        tensor_parallel=1 if is_fsdp2 else layout.tensor,
        pipeline_parallel=layout.pipeline,
        sequence_parallel=1 if is_fsdp2 else layout.sequence,
        context_parallel=layout.sequence if is_fsdp2 else 1,
        planned_parts=layout.tensor if is_fsdp2 else 1,
        gpus_per_node=of.cluster.gpus_per_node,
        key_value_heads=of.shape.kv_heads,
        model=of.shape,
        job=of.job,
    )
    fixed = of.pins.tensor_parallel is not None
    violations = (v for v in layout_violations(setup) if v.rule.severity == "error" or not fixed)
    return next(violations, None)


class LayoutRefused(InputError):
    """A division of the GPUs that a rule forbids."""

    def __init__(self, broken: Violation, where: str) -> None:
        self.broken = broken
        super().__init__(f"{where}{broken.message}; {broken.fix}")


def refuse_layout(layout: Layout, of: Request | Space, where: str = "") -> None:
    """Refuse what a rule forbids; ``where``: begins the message. Raises LayoutRefused: names the fix."""
    if (broken := layout_violation(layout, of)) is not None:
        raise LayoutRefused(broken, where)


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


def unmodelled_with_loss(job: Job, shape: ModelShape, cluster: Cluster, pins: Pins) -> str | None:
    """What of a request its loss is not modelled with; ``None``: nothing. The model's own is with all."""
    if job.loss == "standard":
        return None
    if shape.head != "causal":
        return f"a model whose head is {shape.head!r}"
    if cluster.on_cpu:
        return "CPU ranks, where these libraries compute otherwise"
    asked = {
        "tp": pins.search_tensor or (pins.tensor_parallel or 1) > 1,
        "pp": (pins.pipeline_parallel or 1) > 1,
        "pipeline_module": pins.pipeline_module,
        "images": job.images is not None,
        "offload_activations": job.offload_activations,
    }
    return next((f"⟨{option}⟩" for option, is_asked in asked.items() if is_asked), None)


class MemoryModel(ABC):
    """What strategies take, of one model."""

    __slots__ = ()

    @abstractmethod
    def __call__(self, job: Job, strategy: Strategy, cluster: Cluster) -> MemoryEstimate:
        """Bytes of the worst rank and of the host."""

    def least_vram_bytes(self, job: Job, strategy: Strategy, cluster: Cluster) -> int:
        """A bound from below on ``min_vram_bytes``, at a fraction of the cost; 0: none is known."""
        return 0

    def host_bytes(self, job: Job, strategy: Strategy, cluster: Cluster) -> int | None:
        """``host_bytes_per_node`` exactly, at a fraction of the cost; None: only the estimate says."""
        return None

    def known(self) -> MemoryModel:
        """The same, but nothing more is traced: no remark is worth the minute of a trace."""
        return self

    def untraced(self) -> MemoryModel:
        """The same, but nothing more is traced, whatever that leaves unknown."""
        return self

    def detailed(self) -> MemoryModel:
        """The same, with every rank: for the plan that is shown."""
        return self


@frozen_dataclass
class Request:
    """What a plan is wanted for. ``precision`` is ``auto`` or one of the job's.

    Attributes:
        memory: the memory model, bound to the model's profile or shape.
        as_it_is: pins of what the user runs today, which is as good as what is not faster than it; so is
            ``own_engine``, where any may be taken.
        all_gpus: use them all, even where fewer are faster.
    """

    shape: ModelShape
    job: Job
    cluster: Cluster
    memory: MemoryModel
    pins: Pins = field(default_factory=Pins)
    as_it_is: Mapping[str, Any] = field(default_factory=dict)
    own_engine: str = ""
    precision: str = "auto"
    constants: Constants = HUGGING_FACE
    calibration: Calibration | None = None
    all_gpus: bool = False
    assumptions: tuple[Note, ...] = ()

    @property
    def timed(self) -> bool:
        """Whether steps are told apart by their time: not those of CPU ranks, and not of serving."""
        return not (self.cluster.on_cpu or self.job.inference)

    @property
    def not_shared(self) -> tuple[Note, ...]:
        """Why no ranks share a sequence though the script lets them: what refuses the first degree."""
        degrees = [one for one in layouts(self.cluster, self.pins) if one.sequence > 1]
        refused = [broken.message for one in degrees if (broken := layout_violation(one, self))]
        if not degrees or len(refused) < len(degrees):
            return ()
        text = f"⟨{self.pins.sharing_option}⟩ auto leaves sequences whole: {refused[0]}"
        return (Note("not-shared", text),)

    def for_remarks(self) -> Request:
        """The request as it is searched for remarks."""
        return replace(self, memory=self.memory.known())


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


def batches(space: Space, layout: Layout) -> Iterator[tuple[int, int]]:
    """(micro-batch, accumulation) pairs that meet the global batch exactly, largest micro-batch first."""
    per_rank, rest = divmod(space.global_batch, layout.data)
    if rest or not per_rank:
        return
    pinned, steps = space.pins.micro_batch, space.pins.gradient_accumulation
    for micro in reversed(divisors(per_rank)):
        if micro < space.job.defaults.least_rows:
            return
        if (pinned is None or micro == pinned) and (steps is None or micro * steps == per_rank):
            yield micro, per_rank // micro


def checkpointings(space: Space) -> tuple[str, ...]:
    """Selective checkpointing recomputes attention scores: pointless where none are kept."""
    if space.job.inference:
        return ("none",)
    if space.pins.checkpointing is not None:
        return (space.pins.checkpointing,)
    return ("none", "selective", "full") if space.job.attention == "eager" else ("none", "full")
