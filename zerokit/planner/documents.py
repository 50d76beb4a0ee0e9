"""A strategy and its prediction: typed, as the JSON that is published (``zerokit.estimate/1``), and in short
sentences, which the terminal, the page and a notebook share. Arguments are marked (:mod:`zerokit.fields`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, is_dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from zerokit.domain.hardware import Cluster
from zerokit.domain.job import Job
from zerokit.domain.strategy import Candidate, MemoryEstimate, RankEstimate, Saving, Strategy, TimeEstimate
from zerokit.emit.accelerate import parallelism_environment
from zerokit.emit.files import emitter_of
from zerokit.fields import as_options, plain
from zerokit.memory.card import around_peak
from zerokit.memory.components import HostComponent, label
from zerokit.notes import Note
from zerokit.planner import answer
from zerokit.search.explain import (
    cluster_words,
    headroom_bytes,
    headroom_words,
    host_lack_words,
    is_sure,
    remark,
    strategy_words,
)
from zerokit.timing.ranges import LONGEST_WITHOUT_ENGINE, NVME_RATES, SURE
from zerokit.units import counted, format_gib, format_seconds, format_seconds_range, shown_unit
from zerokit.values import frozen_dataclass

if TYPE_CHECKING:
    from zerokit.domain.script_profile import ScriptProfile
    from zerokit.trainer_files.reading import TrainerFile

STRATEGY_FIELDS = (
    "engine", "zero_stage", "offload_optimizer", "offload_param", "data_parallel", "tensor_parallel",
    "pipeline_parallel", "sequence_parallel", "context_parallel", "micro_batch", "gradient_accumulation",
    "activation_checkpointing", "precision",
)  # fmt: skip
_ALL_RANKS_UP_TO = 64
_MOST_PARTS = 4
T = TypeVar("T")


class Read(Generic[T]):
    """A property that stands elsewhere: read along a path, ``candidate.strategy.checkpointing``; ``without``:
    its value where a step of the path is None."""

    def __init__(self, path: str, doc: str, without: T | None = None) -> None:
        """Note where it stands."""
        self._steps, self._without, self.__doc__ = path.split("."), without, doc

    def __get__(self, instance: object, owner: type | None = None) -> T:
        """The value; the property itself, of a class."""
        return self if instance is None else self.read(instance)  # type: ignore[return-value]

    def read(self, value: Any, skip: int = 0) -> T:
        """The value, from what so many steps of the path lead to."""
        for step in self._steps[skip:]:
            if value is None:
                return self._without  # type: ignore[return-value]
            value = getattr(value, step)
        return value  # type: ignore[no-any-return]


class Sentence(Read[T]):
    """A note, or several: plain text for Python, with the command line's options in JSON."""

    def read(self, value: Any, skip: int = 0, said: Callable[[str], str] = plain) -> T:
        """The text, with the arguments that it names as ``said`` writes them."""
        text: Any = super().read(value, skip)
        return said(text) if isinstance(text, str) else tuple(map(said, text))  # type: ignore[return-value]


class Document:
    """What has a form in JSON: the values of its ``PUBLISHED`` attributes by name, below its ``SCHEMA``."""

    __slots__ = ()
    SCHEMA: ClassVar[str] = ""
    PUBLISHED: ClassVar[tuple[str, ...]] = ()

    def to_dict(self) -> dict[str, Any]:
        """What ``--json`` prints of it."""
        kind = type(self)
        body: dict[str, Any] = {"schema": self.SCHEMA} if self.SCHEMA else {}
        for name in self.PUBLISHED:
            own = getattr(kind, name, None)
            body[name] = own.read(self, said=as_options) if isinstance(own, Sentence) else getattr(self, name)
        return {name: as_json(value) for name, value in body.items()} | self._more()

    def _more(self) -> dict[str, Any]:
        """What it has only at times, or under another name."""
        return {}


def as_json(value: Any) -> Any:
    """What JSON has of a value: dictionaries and lists, of dataclasses too."""
    if hasattr(value, "to_dict"):
        return value.to_dict()
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    if isinstance(value, Mapping):
        return {name: as_json(one) for name, one in value.items()}
    return list(map(as_json, value)) if isinstance(value, list | tuple) else value


@frozen_dataclass
class RankPrediction(Document):
    """The prediction for one rank, or for a row of ranks that are alike.

    Attributes:
        rank: its number, or the first one's.
        last: the last one's, where the entry stands for several.
        peak_allocated_bytes: its ``torch.cuda.max_memory_allocated``.
        peak_phase: ``init``, ``forward``, ``backward``, ``step`` or, of an evaluation, ``eval``.
        phases: peak bytes in each phase.
        components: bytes live at the peak, by what they are; they sum to the peak.
    """

    rank: int
    peak_allocated_bytes: int
    peak_phase: str
    phases: Mapping[str, int]
    components: Mapping[str, int]
    last: int | None = None

    PUBLISHED = ("rank", "peak_allocated_bytes", "peak_phase", "phases", "components")

    def _more(self) -> dict[str, Any]:
        return {} if self.last is None else {"ranks": [self.rank, self.last]}


def per_rank(ranks: tuple[RankEstimate, ...], world_size: int) -> Iterator[RankPrediction]:
    """One entry a GPU up to 64 of them; above that, or with ``world_size=0``, one for ranks alike."""
    single = 0 < world_size <= _ALL_RANKS_UP_TO
    for rank in ranks:
        for number in range(rank.first, rank.last + 1) if single else (rank.first,):
            alike = {name: getattr(rank, name) for name in RankPrediction.PUBLISHED[1:]}
            yield RankPrediction(rank=number, last=None if single else rank.last, **alike)


@frozen_dataclass
class PlannedStrategy(Document):
    """One strategy with its prediction.

    Attributes:
        candidate: the strategy and what the models say of it.
        notes: what was assumed, with arguments marked (:mod:`zerokit.fields`).
        fits: whether the GPUs hold the figures; None where no memory was named.
        parameters: the model's, where they are said beside the strategy.
        script: the one that was planned for; None: a plain loop of the model.
        not_modelled: keys of its DeepSpeed file with which the figures may be others.
    """

    candidate: Candidate
    job: Job
    cluster: Cluster
    notes: tuple[Note, ...] = ()
    fits: bool | None = True
    parameters: int | None = None
    script: ScriptProfile | None = None
    not_modelled: tuple[str, ...] = ()

    def __repr__(self) -> str:
        """``<ZeRO-1, micro-batch 4: 97.8 GiB required per GPU, 5.6 s a step>``."""
        seconds = format_seconds(self.candidate.time.step_seconds)
        step = "" if self.cluster.on_cpu else f", {seconds} a step"
        required = format_gib(self.candidate.memory.min_vram_bytes, 1)
        return f"<{strategy_words(self.strategy)}: {required} required per GPU{step}>"

    @property
    def device(self) -> str:
        """What a rank computes on, in words."""
        return "CPU rank" if self.cluster.on_cpu else "GPU"

    @property
    def is_sure(self) -> bool:
        """Whether no more is left open than the headroom holds: the margin of a closed form, keys that are
        not modelled."""
        return not self.not_modelled and is_sure(self.candidate.memory, self.cluster.gpu)

    strategy = Read[Strategy]("candidate.strategy", "The strategy itself.")
    engine = Read[str]("strategy.engine", "``deepspeed``, ``fsdp2`` or ``ddp``.")
    zero_stage = Read[int | None](
        "strategy.settings.zero_stage", "ZeRO stage, 0 to 3; None of another engine than DeepSpeed."
    )
    offload_optimizer = Read[str](
        "strategy.settings.optimizer_device",
        "Where the optimizer states live: ``none`` (the GPU), ``cpu`` or ``nvme``.",
    )
    offload_param = Read[str](
        "strategy.settings.weights_device",
        "Where ZeRO-3's weights live: ``none`` (the GPU), ``cpu`` or ``nvme``.",
    )
    data_parallel = Read[int]("strategy.data_parallel", "Data parallel degree.")
    tensor_parallel = Read[int]("strategy.tensor_parallel", "Tensor parallel degree.")
    pipeline_parallel = Read[int]("strategy.pipeline_parallel", "Pipeline stages.")
    sequence_parallel = Read[int]("strategy.ulysses", "Sequence parallel (Ulysses) degree.")
    context_parallel = Read[int]("strategy.context_parallel", "Context parallel (ring attention) degree.")
    micro_batch = Read[int]("strategy.settings.micro_batch", "Sequences per GPU and forward pass.")
    gradient_accumulation = Read[int](
        "strategy.settings.gradient_accumulation", "Micro-batches per optimizer step."
    )
    activation_checkpointing = Read[str]("strategy.checkpointing", "``none``, ``full`` or ``selective``.")
    precision = Read[str]("strategy.settings.precision", "``bf16``, ``fp16`` or ``fp32``.")

    @property
    def environment(self) -> dict[str, str]:
        """Variables that the prediction counts on."""
        return environment(self.cluster, self.strategy, self.job.attention)

    @property
    def _config(self) -> dict[str, Any]:
        return emitter_of(self.strategy).config(self.strategy, self.job, self.cluster.nodes)

    @property
    def deepspeed_config(self) -> dict[str, Any] | None:
        """The content of ``ds_config.json``; None of another engine than DeepSpeed."""
        return self._config["deepspeed_config"]  # type: ignore[no-any-return]

    @property
    def estimate(self) -> Estimate:
        """Memory and step time."""
        return Estimate(planned=self)

    @property
    def _rehearsed(self) -> dict[str, Any] | None:
        """Which command was rehearsed with this strategy; None: none was."""
        if self.script is None or (rehearsed := self.script.of(self.strategy)) is None:
            return None
        is_same = rehearsed.strategy == self.strategy
        by_factor = rehearsed.step_seconds_by_host_factor if is_same else ()
        return {
            "script": self.script.name, "command": self.script.command,
            "step_seconds_range": as_json(rehearsed.step_seconds_range),
            "step_seconds_by_host_factor": as_json(by_factor),
        }  # fmt: skip

    why = Sentence[str]("candidate.why", "In a sentence, why it was chosen, or what it lacks.")

    PUBLISHED = (*STRATEGY_FIELDS, "environment", "deepspeed_config", "estimate", "why")

    def _more(self) -> dict[str, Any]:
        strategy = self.strategy
        job = {**strategy.settings.published(strategy.zero_ranks), **self._config}
        del job["deepspeed_config"]
        if self.parameters is not None:  # what a launch is to know of the job beside the strategy
            job |= {"parameters": self.parameters, "seq_len": self.job.seq_len}
            job |= {} if self.script is None else self.script.facts
        return job if self._rehearsed is None else {**job, "rehearsed": self._rehearsed}


@frozen_dataclass
class Estimate(Document):
    """Memory and step time of one strategy. Bytes, seconds.

    Attributes:
        planned: the strategy, with what the models say of it.
        model_name: the model's.
        file_config: the DeepSpeed file that decided the strategy, as it stands; None: there was none.
        trainer_file: what was estimated, where it is a trainer's file.
        nearest: looks for as few changes as make it fit, in sentences; called where they are shown.
    """

    planned: PlannedStrategy
    model_name: str = ""
    file_config: Mapping[str, Any] | None = None
    trainer_file: TrainerFile | None = None
    nearest: Callable[[], Sequence[str]] = tuple

    def __repr__(self) -> str:
        """What a Python prompt shows: strategy, memory and time in a line."""
        return f"<Estimate of {self.model_name or 'a model'}: {self.planned!r}>"

    @property
    def fits(self) -> bool | None:
        """Whether the GPUs hold it; None where no memory was named, and where it only may fit: the limit is
        within ``unsure_bytes``, or keys are ``not_modelled``."""
        return None if self.planned.fits and not self.planned.is_sure else self.planned.fits

    unsure_bytes = Read[int](
        "_memory.unsure_bytes",
        "How far ``min_vram_bytes`` may be off where it is of a closed form; 0: traced or rehearsed.",
    )
    peak_allocated_bytes = Read[int](
        "_memory.worst.peak_allocated_bytes", "The worst rank's ``torch.cuda.max_memory_allocated``."
    )
    min_vram_bytes = Read[int](
        "_memory.min_vram_bytes",
        "The smallest GPU memory, as nvidia-smi counts it, on which the run succeeds.",
    )
    host_components = Read[Mapping[str, int]](
        "_memory.host_components", "What takes host memory, by what it is."
    )
    nvme_bytes_per_node = Read[int]("_memory.nvme_bytes_per_node", "Disk that a node needs for offload.")
    not_modelled = Read[tuple[str, ...]](
        "planned.not_modelled", "Keys of its DeepSpeed file with which the figures may be others."
    )
    basis = Read[str](
        "_memory.basis", "Where the memory figures come from: ``traced`` or ``analytic`` (the closed form)."
    )
    saving = Read[Saving | None](
        "planned.candidate.saving",
        "What saving the model and writing a checkpoint take; None where nothing is trained, or not by "
        "DeepSpeed.",
    )
    step_seconds = Read[float | None](
        "_time.step_seconds", "Time of an optimizer step; None where none is predicted."
    )
    step_seconds_range = Read[tuple[float, float] | None](
        "_time.step_seconds_range",
        "The same as fast and as slow as host and network, where nobody measured them, may make it.",
    )
    measured_on_no_machine = Read[tuple[str, ...]](
        "_time.measured_on_no_machine",
        "Of the hardware, what no step time was ever compared on: the GPU's name, ``several nodes``.",
        without=(),
    )
    time_parts = Read[Mapping[str, float]](
        "_time.parts",
        "Seconds of a step by what they are spent on; empty where no time is predicted.",
        without={},
    )
    bound_by = Read[str | None](
        "_time.bound_by", "What a step waits for most; None where no time is predicted."
    )

    _memory = Read[MemoryEstimate]("planned.candidate.memory", "What the models say of its memory.")

    @property
    def _time(self) -> TimeEstimate | None:
        return None if self.planned.cluster.on_cpu else self.planned.candidate.time

    @property
    def around_peak(self) -> dict[str, int]:
        """What a GPU must have beside the peak, by what it is; empty for CPU ranks."""
        if self.planned.cluster.on_cpu:
            return {}
        return around_peak(
            self.planned.cluster.gpu, self.planned.strategy, self.peak_allocated_bytes, self.min_vram_bytes,
            self.planned.job.defaults,
        )  # fmt: skip

    @property
    def host_bytes_per_node(self) -> int:
        """Host memory that a node needs."""
        of_all_ranks = self.min_vram_bytes * self.planned.strategy.world_size
        return of_all_ranks if self.planned.cluster.on_cpu else self._memory.host_bytes_per_node

    @property
    def components_by_phase(self) -> dict[str, dict[str, int]]:
        """Bytes live at the peak of each phase of the worst rank, by what they are; may be empty."""
        worst = self._memory.worst
        return {phase: dict(parts) for phase, parts in worst.phase_components.items()}

    @property
    def tokens_per_second_per_gpu(self) -> float | None:
        """Throughput of a GPU, of all sequences of a row (both of a pair); None where none is predicted."""
        script, time = self.planned.script, self.planned.candidate.time
        sequences = script.sequences_per_row if script is not None else 1
        return time.tokens_per_second_per_gpu * sequences if not self.planned.cluster.on_cpu else None

    @property
    def per_rank(self) -> tuple[RankPrediction, ...]:
        """One entry a GPU up to 64 of them; above that, one for ranks that are alike."""
        return tuple(per_rank(self._memory.ranks, self.planned.strategy.world_size))

    @property
    def worst_rank(self) -> RankPrediction:
        """The entry of ``per_rank`` with the highest peak."""
        return max(self.per_rank, key=lambda rank: rank.peak_allocated_bytes)

    assumptions = Sentence[tuple[str, ...]]("notes", "What was assumed, in sentences.")

    @property
    def notes(self) -> tuple[Note, ...]:
        """What was assumed, with arguments marked (:mod:`zerokit.fields`)."""
        return tuple(dict.fromkeys((*self.planned.notes, *self._memory.assumptions)))

    def _repr_html_(self) -> str:
        return html_facts(self.planned, self.model_name)

    SCHEMA = "zerokit.estimate/1"
    PUBLISHED = (
        "fits", "peak_allocated_bytes", "min_vram_bytes", "unsure_bytes", "not_modelled",
        "host_bytes_per_node", "host_components", "nvme_bytes_per_node", "step_seconds",
        "step_seconds_range", "measured_on_no_machine", "tokens_per_second_per_gpu", "time_parts", "bound_by",
        "basis", "saving", "per_rank", "components_by_phase", "assumptions", "notes",
    )  # fmt: skip

    def _more(self) -> dict[str, Any]:
        return {} if self.trainer_file is None else {"trainer_file": self.trainer_file.to_dict()}


def environment(cluster: Cluster, chosen: Strategy, attention: str) -> dict[str, str]:
    """Variables that the prediction counts on, and the degrees that no DeepSpeed JSON can say."""
    stages = chosen.pipeline_parallel
    expands = not cluster.on_cpu and cluster.gpu.expandable_segments
    return {
        **({"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"} if expands else {}),
        **({"ZEROKIT_PIPELINE_STAGES": str(stages)} if stages > 1 else {}),
        **parallelism_environment(chosen, attention),
    }


def degrees(strategy: Strategy) -> dict[str, Any]:
    """STRATEGY without its configuration and prediction."""
    return {name: PlannedStrategy.__dict__[name].read(strategy, skip=1) for name in STRATEGY_FIELDS}


def fits(planned: PlannedStrategy) -> str:
    """``Fits: 22.3 GiB required of 24.0 GiB per GPU, 1.7 GiB headroom``; that it barely does, what the host
    lacks, too."""
    memory, cluster = planned.candidate.memory, planned.cluster
    required, available = memory.min_vram_bytes, cluster.gpu.driver_vram_bytes
    device = planned.device
    if planned.fits is None:
        return f"{format_gib(required, 1)} required per {device} (not compared with the assumed one)"
    room = headroom_bytes(memory, cluster.gpu)
    unmodelled = answer.not_modelled(planned.not_modelled)
    amounts = f"{format_gib(required, 1)} required of {format_gib(available, 1)} per {device}"
    host = host_lack_words(memory, cluster)
    host = f", and {host}" if host else ""
    if not planned.fits:
        too_much = f", {format_gib(-room, 1)} too much" if room < 0 else ""
        too_much += f", without {unmodelled}" if unmodelled else ""
        return f"Does NOT fit: {amounts}{too_much}{host}"
    if host:
        host += " (⟨host_ram⟩ not given)" if cluster.host_ram_bytes is None else ""
        amounts = f" the {device}, but maybe not the host: {amounts}"
    else:
        amounts = f": {amounts}"
    headroom = headroom_words(memory, cluster.gpu)
    if unmodelled:
        amounts = f": {unmodelled}; without {'it' if len(planned.not_modelled) == 1 else 'them'}{amounts}"
    if not planned.is_sure:
        return f"May fit{amounts}, {headroom}{host}"
    return f"Fits{amounts}, {remark(planned.candidate, cluster.gpu) or headroom}{host}"


def pace(planned: PlannedStrategy) -> str:
    """``Step: 15.0 s, 2,187 tokens/s per GPU, 5.3 d per 1e9 tokens``."""
    estimate = planned.estimate
    seconds, rate = estimate.step_seconds, estimate.tokens_per_second_per_gpu
    if seconds is None or not rate:
        return "Step time: not predicted for CPU ranks"
    per_billion = 1e9 / (rate * planned.strategy.world_size)
    step = "Step, estimated" if _untimed(planned) else "Step"
    between = estimate.step_seconds_range  # said where host or network may make so much of a difference
    tells = between is not None and between[1] >= (1 + SURE) * between[0]
    limits = f" ({format_seconds_range(*between)})" if between is not None and tells else ""
    return (
        f"{step}: {format_seconds(seconds)}{limits}, {rate:,.0f} tokens/s per GPU, "
        f"{format_seconds(per_billion)} per 1e9 tokens"
    )


LONGER_WITHOUT_ENGINE = (
    f"steps without an engine took up to {LONGEST_WITHOUT_ENGINE:.0%} longer than predicted"
)


def pace_notes(planned: PlannedStrategy) -> tuple[str, ...]:
    """What qualifies the step time, in sentences: that no rehearsal timed it, or at which host's speed, that
    it was never measured on such hardware."""
    untimed = _untimed(planned)
    rehearsed = planned.script.of(planned.strategy) if planned.script is not None else None
    factor = rehearsed.host_factor if rehearsed is not None else None
    notes: tuple[str, ...] = ()
    if untimed:
        notes = (f"The rehearsal has no step time: {untimed}",)
    elif factor is not None:
        notes = (f"The step is rehearsed at the host speed kept on this machine, {factor:.2f}",)
    if planned.engine == "ddp" and not planned.cluster.on_cpu:
        notes = (*notes, f"Measured {LONGER_WITHOUT_ENGINE}")
    parts = planned.estimate.measured_on_no_machine
    gpu = planned.cluster.gpu
    name = f"{gpu.name} (its speeds are assumed)" if gpu.stands_in else gpu.name
    if parts == ("several nodes",):  # of other GPUs they were
        parts = (f"several nodes with {name}",)
    parts = tuple(name if part == gpu.name else part for part in parts)
    return (*notes, answer.never_measured(parts)) if parts else notes


def _untimed(planned: PlannedStrategy) -> str:
    """Why the step time of a plan for a script rests on no rehearsal; empty: it does, or there is none."""
    script = None if planned.cluster.on_cpu else planned.script
    return "" if script is None else script.untimed(planned.strategy)


def batch(planned: PlannedStrategy) -> str:
    """``2 per GPU × 4 accumulation × 8 GPUs = 64 × 4,096 tokens``; of pairs ``64 pairs × 2 × 4,096``."""
    chosen, job, script = planned.strategy, planned.job, planned.script
    device = "rank" if planned.cluster.on_cpu else "GPU"
    settings, ranks = chosen.settings, chosen.data_parallel
    is_all = chosen.world_size == ranks
    devices = counted(ranks, device) if is_all else f"{ranks} data parallel"
    rows = f"{chosen.global_batch}"
    if script is not None and script.sequences_per_row > 1:
        rows = f"{script.rows(chosen.global_batch)} × {script.sequences_per_row}"
    return (
        f"{settings.micro_batch} per {device} × {settings.gradient_accumulation} accumulation × {devices} = "
        f"{rows} × {job.seq_len:,} tokens"
    )


def memory(planned: PlannedStrategy) -> str:
    """``peak 20.2 GiB in backward: activations 11.3, frozen parameters 5.3, loss 2.9, others 0.7 GiB``."""
    worst = planned.candidate.memory.worst
    parts = sorted(worst.components.items(), key=lambda item: -item[1])
    largest = [(label(name), size) for name, size in parts[:_MOST_PARTS]]
    rest = sum(size for _, size in parts[_MOST_PARTS:])
    largest += [("others", rest)] if rest else []
    unit, unit_name = shown_unit(worst.peak_allocated_bytes / 10)  # the parts are smaller
    words = ", ".join(f"{name} {size / unit:.1f}" for name, size in largest if size >= unit / 20)
    peak = f"{worst.peak_allocated_bytes / unit:,.1f} {unit_name}"
    return f"peak {peak} in {worst.peak_phase}: {words} {unit_name}"


def host_parts(planned: PlannedStrategy) -> list[tuple[str, int]]:
    """What the ranks of one node hold of its memory, by what it is, largest first; empty for CPU ranks."""
    estimate = planned.estimate
    if planned.cluster.on_cpu:
        return []
    sizes = {label(key): size for key, size in estimate.host_components.items()}
    rest = estimate.host_bytes_per_node - sum(sizes.values())
    if sizes and rest > 0:  # the closed form adds it alone
        name = HostComponent.MODEL_BEFORE_IT_MOVES.label
        sizes[name] = sizes.get(name, 0) + rest
    return sorted(sizes.items(), key=lambda item: -item[1])


def host_memory(planned: PlannedStrategy) -> str:
    """``130.6 GiB per node: model before it moves 119.7, process 10.9 GiB``; with offload also what a node
    is assumed to have, where nobody said it."""
    total = planned.estimate.host_bytes_per_node
    text = f"{format_gib(total, 1)} per node"
    limit = planned.cluster.host_limit_bytes
    offloads = {planned.offload_optimizer, planned.offload_param} != {"none"}
    if offloads and planned.cluster.host_ram_bytes is None and limit:
        text += f" of {format_gib(limit, 0)} assumed"
    parts = host_parts(planned)
    if not parts:
        return text
    unit, unit_name = shown_unit(total / 10)
    words = [f"{name} {size / unit:.1f}" for name, size in parts[:2] if size >= unit / 20]
    others = sum(size for _, size in parts[2:])
    words += [f"others {others / unit:.1f}"] if others >= unit / 20 else []
    return f"{text}: {', '.join(words)} {unit_name}"


def nvme(planned: PlannedStrategy) -> str:
    """``119.7 GiB per node; 3 GB/s assumed (1 to 7 are usual)``; empty: nothing is kept there."""
    total, cluster = planned.estimate.nvme_bytes_per_node, planned.cluster
    if not total:
        return ""
    slow, fast = (rate / 1e9 for rate in NVME_RATES)
    return (
        f"{format_gib(total, 1)} per node; {cluster.nvme_bytes_per_second / 1e9:g} GB/s assumed "
        f"({slow:g} to {fast:g} are usual; `zerokit tune` measures the step)"
    )


def facts(planned: PlannedStrategy) -> list[tuple[str, str]]:
    """The strategy in rows, by name: what is trained, how it is divided, the batch, the memory."""
    disk = nvme(planned)
    return [
        ("trains", answer.trains(planned.job)),
        ("strategy", answer.strategy(planned.strategy)),
        ("batch", batch(planned)),
        ("tensors" if planned.cluster.on_cpu else "GPU memory", memory(planned)),
        ("host memory", host_memory(planned)),
        *([("NVMe disk", disk)] if disk else []),
    ]


def html_facts(planned: PlannedStrategy, model_name: str) -> str:
    """What a notebook shows: whether it fits, how fast it is, the strategy, what the script must do."""
    rows = [
        ("fits", plain(fits(planned))),
        *(("pace", text) for text in (pace(planned), *pace_notes(planned))),
        *facts(planned),
        *(("the script must", line) for line in answer.script_must(planned.strategy, planned.job)),
        *(("assumed", plain(note)) for note in answer.worth_a_look(planned.notes)),
    ]
    return html_table(f"{model_name} on {cluster_words(planned.cluster)}", rows)


def html_table(caption: str, rows: Sequence[Sequence[str]], *, titles: Sequence[str] = ()) -> str:
    """A small table for a notebook; the first text of a row is its head. ``titles``: of the columns."""
    from html import escape

    def cell(kind: str, text: str, more: str = "") -> str:
        return f'<{kind} style="text-align:left"{more}>{escape(text)}</{kind}>'

    head = "".join(cell("th", title, ' scope="col"') for title in titles)
    body = "".join(
        f"<tr>{cell('th', row[0])}{''.join(cell('td', text) for text in row[1:])}</tr>" for row in rows
    )
    return f"<table><caption>{escape(caption)}</caption>{f'<tr>{head}</tr>' if head else ''}{body}</table>"
