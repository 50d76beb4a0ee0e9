"""A strategy and its prediction: typed, and as the JSON that is published (``zerokit.estimate/1``)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from zerokit.domain.hardware import Cluster
from zerokit.domain.job import Job
from zerokit.domain.script_profile import ScriptProfile
from zerokit.domain.strategy import Candidate, RankEstimate, Saving, Strategy
from zerokit.emit.accelerate import parallelism_environment
from zerokit.emit.deepspeed import emit_deepspeed
from zerokit.fields import all_as_options, as_options, plain
from zerokit.memory.card import around_peak
from zerokit.search.close_calls import is_sure
from zerokit.search.explain import strategy_words
from zerokit.units import format_gib, format_seconds
from zerokit.values import frozen_dataclass

_ALL_RANKS_UP_TO = 64


@frozen_dataclass
class RankPrediction:
    """The prediction for one rank, or for a row of ranks that are alike.

    Attributes:
        rank: its number, or the first one's.
        last: the last one's, where the entry stands for several.
        peak_allocated_bytes: its ``torch.cuda.max_memory_allocated``.
        peak_phase: ``init``, ``forward``, ``backward`` or ``step``.
        phases: peak bytes in each phase.
        components: bytes live at the peak, by what they are; they sum to the peak.
    """

    rank: int
    peak_allocated_bytes: int
    peak_phase: str
    phases: Mapping[str, int]
    components: Mapping[str, int]
    last: int | None = None

    def to_dict(self) -> dict[str, Any]:
        """An entry of ``per_rank``."""
        body: dict[str, Any] = {
            "rank": self.rank,
            "peak_allocated_bytes": self.peak_allocated_bytes,
            "peak_phase": self.peak_phase,
            "phases": dict(self.phases),
            "components": dict(self.components),
        }
        return body if self.last is None else {**body, "ranks": [self.rank, self.last]}


def per_rank(ranks: tuple[RankEstimate, ...], world_size: int) -> Iterator[RankPrediction]:
    """One entry a GPU up to 64 of them; above that, or with ``world_size=0``, one for ranks alike."""
    single = 0 < world_size <= _ALL_RANKS_UP_TO
    for rank in ranks:
        for number in range(rank.first, rank.last + 1) if single else (rank.first,):
            yield RankPrediction(
                rank=number,
                last=None if single else rank.last,
                peak_allocated_bytes=rank.peak_allocated_bytes,
                peak_phase=rank.peak_phase,
                phases=rank.phases,
                components=rank.components,
            )


ESTIMATE_SCHEMA = "zerokit.estimate/1"


@frozen_dataclass
class PlannedStrategy:
    """One strategy with its prediction.

    Attributes:
        candidate: the strategy and what the models say of it.
        notes: what was assumed, with arguments marked (:mod:`zerokit.fields`).
        fits: whether the GPUs hold the figures; None where no memory was named.
        timed: whether a step time is predicted (it is not for CPU ranks).
        parameters: the model's, where they are said beside the strategy.
        script: the one that was planned for; None: a plain loop of the model.
        not_modelled: keys of its DeepSpeed file with which the figures may be others.
    """

    candidate: Candidate
    job: Job
    cluster: Cluster
    notes: tuple[str, ...] = ()
    fits: bool | None = True
    timed: bool = True
    on_cpu: bool = False
    parameters: int | None = None
    script: ScriptProfile | None = None
    not_modelled: tuple[str, ...] = ()

    def __repr__(self) -> str:
        """``<ZeRO-1, micro-batch 4: 97.8 GiB required per GPU, 5.6 s a step>``."""
        step = f", {format_seconds(self.candidate.time.step_seconds)} a step" if self.timed else ""
        required = format_gib(self.candidate.memory.min_vram_bytes, 1)
        return f"<{strategy_words(self.strategy)}: {required} required per GPU{step}>"

    @property
    def is_sure(self) -> bool:
        """Whether no more is left open than the headroom holds: the margin of a closed form, keys that are
        not modelled."""
        return not self.not_modelled and is_sure(self.candidate.memory, self.cluster.gpu)

    @property
    def strategy(self) -> Strategy:
        """The strategy itself."""
        return self.candidate.strategy

    @property
    def zero_stage(self) -> int:
        """ZeRO stage, 0 to 3."""
        return self.strategy.settings.zero.stage

    @property
    def offload_optimizer(self) -> str:
        """Where the optimizer states live: ``none`` (the GPU), ``cpu`` or ``nvme``."""
        return self.strategy.settings.zero.offload_optimizer.device

    @property
    def offload_param(self) -> str:
        """Where ZeRO-3's weights live: ``none`` (the GPU), ``cpu`` or ``nvme``."""
        return self.strategy.settings.zero.offload_param.device

    @property
    def data_parallel(self) -> int:
        """Data parallel degree."""
        return self.strategy.data_parallel

    @property
    def tensor_parallel(self) -> int:
        """Tensor parallel degree."""
        return self.strategy.tensor_parallel

    @property
    def pipeline_parallel(self) -> int:
        """Pipeline stages."""
        return self.strategy.pipeline_parallel

    @property
    def sequence_parallel(self) -> int:
        """Sequence parallel degree."""
        return self.strategy.sequence_parallel

    @property
    def micro_batch(self) -> int:
        """Sequences per GPU and forward pass."""
        return self.strategy.settings.micro_batch

    @property
    def gradient_accumulation(self) -> int:
        """Micro-batches per optimizer step."""
        return self.strategy.settings.gradient_accumulation

    @property
    def activation_checkpointing(self) -> str:
        """``none``, ``full`` or ``selective``."""
        return self.strategy.checkpointing

    @property
    def precision(self) -> str:
        """``bf16``, ``fp16`` or ``fp32``."""
        return self.strategy.settings.precision

    @property
    def environment(self) -> dict[str, str]:
        """Variables that the prediction counts on."""
        return environment(self.cluster, self.strategy, self.job.attention)

    @property
    def deepspeed_config(self) -> dict[str, Any]:
        """The content of ``ds_config.json``."""
        return emit_deepspeed(self.strategy, self.job).config

    @property
    def estimate(self) -> Estimate:
        """Memory and step time."""
        return Estimate(planned=self)

    @property
    def _rehearsed(self) -> dict[str, Any] | None:
        """Which command was rehearsed with this strategy; None: none was."""
        if self.script is None or (rehearsed := self.script.of(self.strategy)) is None:
            return None
        between = rehearsed.step_seconds_range
        return {
            "script": self.script.name,
            "command": self.script.command,
            "step_seconds_range": None if between is None else list(between),
            "step_seconds_by_host_factor": [list(pair) for pair in rehearsed.step_seconds_by_host_factor]
            if rehearsed.strategy == self.strategy
            else [],
        }

    def _of_job(self, parameters: int) -> dict[str, Any]:
        """What a launch is to know of the job beside the strategy."""
        job = {"parameters": parameters, "seq_len": self.job.seq_len}
        return job if self.script is None else {**job, **self.script.facts}

    @property
    def why(self) -> str:
        """In a sentence, why it was chosen, or what it lacks."""
        return plain(self.candidate.why)

    def to_dict(self, *, by_phase: bool = True) -> dict[str, Any]:
        """STRATEGY of ``plan --json``; ``by_phase``: with the components at the peak of every phase."""
        return {
            **degrees(self.strategy),
            "environment": self.environment,
            "deepspeed_config": self.deepspeed_config,
            "estimate": self.estimate.to_dict(by_phase=by_phase),
            "why": as_options(self.candidate.why),
            **({} if self.parameters is None else self._of_job(self.parameters)),
            **({} if self._rehearsed is None else {"rehearsed": self._rehearsed}),
        }


@frozen_dataclass
class Estimate:
    """Memory and step time of one strategy. Bytes, seconds.

    Attributes:
        planned: the strategy, with what the models say of it.
        model_name: the model's.
        file_config: the DeepSpeed file that decided the strategy, as it stands; None: there was none.
        nearest: looks for as few changes as make it fit, in sentences; called where they are shown.
    """

    planned: PlannedStrategy
    model_name: str = ""
    file_config: Mapping[str, Any] | None = None
    nearest: Callable[[], Sequence[str]] = tuple

    def __repr__(self) -> str:
        """What a Python prompt shows: strategy, memory and time in a line."""
        return f"<Estimate of {self.model_name or 'a model'}: {self.planned!r}>"

    @property
    def fits(self) -> bool | None:
        """Whether the GPUs hold it; None where no memory was named, and where it only may fit: the limit is
        within ``unsure_bytes``, or keys are ``not_modelled``."""
        return None if self.planned.fits and not self.planned.is_sure else self.planned.fits

    @property
    def unsure_bytes(self) -> int:
        """How far ``min_vram_bytes`` may be off where it is of a closed form; 0: traced or rehearsed."""
        return self.planned.candidate.memory.unsure_bytes

    @property
    def peak_allocated_bytes(self) -> int:
        """The worst rank's ``torch.cuda.max_memory_allocated``."""
        return self.planned.candidate.memory.worst.peak_allocated_bytes

    @property
    def min_vram_bytes(self) -> int:
        """The smallest GPU memory, as nvidia-smi counts it, on which the run succeeds."""
        return self.planned.candidate.memory.min_vram_bytes

    @property
    def around_peak(self) -> dict[str, int]:
        """What a GPU must have beside the peak, by what it is; empty for CPU ranks."""
        if self.planned.on_cpu:
            return {}
        return around_peak(
            self.planned.cluster.gpu, self.planned.strategy, self.peak_allocated_bytes, self.min_vram_bytes,
            self.planned.job.defaults,
        )  # fmt: skip

    @property
    def host_bytes_per_node(self) -> int:
        """Host memory that a node needs."""
        planned = self.planned
        if planned.on_cpu:
            return self.min_vram_bytes * planned.strategy.world_size
        return planned.candidate.memory.host_bytes_per_node

    @property
    def host_components(self) -> dict[str, int]:
        """What takes host memory, by what it is."""
        return dict(self.planned.candidate.memory.host_components)

    @property
    def components_by_phase(self) -> dict[str, dict[str, int]]:
        """Bytes live at the peak of each phase of the worst rank, by what they are; may be empty."""
        worst = self.planned.candidate.memory.worst
        return {phase: dict(parts) for phase, parts in worst.phase_components.items()}

    @property
    def nvme_bytes_per_node(self) -> int:
        """Disk that a node needs for offload."""
        return self.planned.candidate.memory.nvme_bytes_per_node

    @property
    def step_seconds(self) -> float | None:
        """Time of an optimizer step; None where none is predicted."""
        return self.planned.candidate.time.step_seconds if self.planned.timed else None

    @property
    def step_seconds_range(self) -> tuple[float, float] | None:
        """The same as fast and as slow as host and network, where nobody measured them, may make it."""
        return self.planned.candidate.time.step_seconds_range if self.planned.timed else None

    @property
    def measured_on_no_machine(self) -> tuple[str, ...]:
        """Of the hardware, what no step time was ever compared on: the GPU's name, ``several nodes``."""
        return self.planned.candidate.time.measured_on_no_machine if self.planned.timed else ()

    @property
    def tokens_per_second_per_gpu(self) -> float | None:
        """Throughput of a GPU, of all sequences of a row (both of a pair); None where none is predicted."""
        script, time = self.planned.script, self.planned.candidate.time
        sequences = script.sequences_per_row if script is not None else 1
        return time.tokens_per_second_per_gpu * sequences if self.planned.timed else None

    @property
    def time_parts(self) -> dict[str, float]:
        """Seconds of a step by what they are spent on; empty where no time is predicted."""
        return dict(self.planned.candidate.time.parts) if self.planned.timed else {}

    @property
    def bound_by(self) -> str | None:
        """What a step waits for most; None where no time is predicted."""
        return self.planned.candidate.time.bound_by if self.planned.timed else None

    @property
    def basis(self) -> str:
        """Where the memory figures come from: ``traced`` or ``analytic`` (the closed form)."""
        return self.planned.candidate.memory.basis

    @property
    def saving(self) -> Saving | None:
        """What saving the model and writing a checkpoint take; None where nothing is trained."""
        return self.planned.candidate.saving

    @property
    def per_rank(self) -> tuple[RankPrediction, ...]:
        """One entry a GPU up to 64 of them; above that, one for ranks that are alike."""
        return tuple(per_rank(self.planned.candidate.memory.ranks, self.planned.strategy.world_size))

    @property
    def worst_rank(self) -> RankPrediction:
        """The entry of ``per_rank`` with the highest peak."""
        return max(self.per_rank, key=lambda rank: rank.peak_allocated_bytes)

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What was assumed, in sentences."""
        return tuple(plain(note) for note in self._notes)

    @property
    def _notes(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((*self.planned.notes, *self.planned.candidate.memory.assumptions)))

    def _repr_html_(self) -> str:
        """What a notebook shows of it."""
        from zerokit.planner.notebook import table

        return table(self.planned, self.model_name)

    def to_dict(self, *, by_phase: bool = True) -> dict[str, Any]:
        """ESTIMATE: what ``estimate --json`` prints."""
        return {
            "schema": ESTIMATE_SCHEMA,
            "fits": self.fits,
            "peak_allocated_bytes": self.peak_allocated_bytes,
            "min_vram_bytes": self.min_vram_bytes,
            "unsure_bytes": self.unsure_bytes,
            "not_modelled": list(self.planned.not_modelled),
            "host_bytes_per_node": self.host_bytes_per_node,
            "host_components": self.host_components,
            "nvme_bytes_per_node": self.nvme_bytes_per_node,
            "step_seconds": self.step_seconds,
            "step_seconds_range": None if self.step_seconds_range is None else list(self.step_seconds_range),
            "measured_on_no_machine": list(self.measured_on_no_machine),
            "tokens_per_second_per_gpu": self.tokens_per_second_per_gpu,
            "time_parts": self.time_parts,
            "bound_by": self.bound_by,
            "basis": self.basis,
            "saving": None if self.saving is None else asdict(self.saving),
            "per_rank": [rank.to_dict() for rank in self.per_rank],
            **({"components_by_phase": self.components_by_phase} if by_phase else {}),
            "assumptions": list(all_as_options(self._notes)),
        }


def environment(cluster: Cluster, chosen: Strategy, attention: str) -> dict[str, str]:
    """Variables that the prediction counts on, and the degrees that no DeepSpeed JSON can say."""
    stages = chosen.pipeline_parallel
    return {
        **_allocator(cluster),
        **({"ZEROKIT_PIPELINE_STAGES": str(stages)} if stages > 1 else {}),
        **parallelism_environment(chosen, attention),
    }


def _allocator(cluster: Cluster) -> dict[str, str]:
    if cluster.gpu.name == "cpu" or not cluster.gpu.expandable_segments:
        return {}
    return {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}


def degrees(strategy: Strategy) -> dict[str, Any]:
    """STRATEGY without its configuration and prediction."""
    zero, settings = strategy.settings.zero, strategy.settings
    return {
        "zero_stage": zero.stage,
        "offload_optimizer": zero.offload_optimizer.device,
        "offload_param": zero.offload_param.device,
        "data_parallel": strategy.data_parallel,
        "tensor_parallel": strategy.tensor_parallel,
        "pipeline_parallel": strategy.pipeline_parallel,
        "sequence_parallel": strategy.sequence_parallel,
        "micro_batch": settings.micro_batch,
        "gradient_accumulation": settings.gradient_accumulation,
        "activation_checkpointing": strategy.checkpointing,
        "precision": settings.precision,
    }
