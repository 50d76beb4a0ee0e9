"""What a rehearsal tells: the schema ``zerokit.rehearsal/1``."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, field
from typing import Any

from zerokit.domain.phases import PHASES
from zerokit.errors import ExitCode
from zerokit.timing.recorded_step import StepTime
from zerokit.units import counted, format_gib, format_seconds
from zerokit.values import restored

_FAR_BELOW = 0.5
"""Of the length at which a script cuts its sequences, below which the longest row is worth a warning."""
_NO_TRAINING_DATA = 1 / 32
"""Below which the rows are hardly those of the run: what made them (a tokenizer, a template) is another."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fed:
    """The largest batch of a forward that trains.

    Attributes:
        rows: None: not known.
        tokens: of its rows; None: it holds no tokens. ``shortest``: of the shortest batch's rows.
        padding: share of all tokens that the attention masks leave out; None: there were no masks.
        precision: of most products of the forwards; None: there were none.
        attention: as Transformers names the implementation; None: the model is not theirs.
        batches: backward passes in an optimizer step.
        limit: tokens at which the script cuts a sequence, and what says so; None: not known.
    """

    rows: int | None
    tokens: int | None
    shortest: int | None
    padding: float | None
    precision: str | None
    attention: str | None
    batches: int
    limit: tuple[int, str] | None

    @classmethod
    def read(cls, value: dict[str, Any] | None, limit: tuple[int, str] | None) -> Fed | None:
        """Of a rehearsed process's report; ``limit``: as the script's arguments say, before its own."""
        if value is None:
            return None
        own = value.pop("limit", None)
        return cls(**value, limit=limit or (tuple(own) if own else None))

    @property
    def text(self) -> str:
        """``4 rows × 2,048 tokens a batch, 12 % padding; bf16, sdpa; 2 batches an optimizer step``."""
        shape = counted(self.rows, "row") if self.rows is not None else "a batch of unknown size"
        if self.tokens is not None:
            shape += f" × {counted(self.tokens, 'token')}"
        if self.shortest != self.tokens:
            shape += f" (the shortest: {self.shortest:,})"
        padding = f", {self.padding:.0%} padding" if self.padding else ", no padding"
        if self.padding is None:
            padding = ""
        how = ", ".join(filter(None, (self.precision, self.attention)))
        step = f"{counted(self.batches, 'batch', 'batches')} an optimizer step" if self.batches else ""
        return "; ".join(filter(None, (f"{shape} a batch{padding}", how, step)))

    @property
    def is_unlikely(self) -> bool:
        """Whether the rows are so short that the run's are hardly these."""
        return self.tokens == 1 or self._share < _NO_TRAINING_DATA

    @property
    def warnings(self) -> tuple[str, ...]:
        """What to say of rows far below the length at which the script cuts them."""
        if self._share >= _FAR_BELOW and not self.is_unlikely:
            return ()
        rows = f"the longest row that was fed has {counted(self.tokens or 0, 'token')}"
        if self.limit is not None:
            rows += f", and the script cuts rows at {self.limit[0]:,} ({self.limit[1]})"
        if self.is_unlikely:
            ends = "these are not the figures of its training: look at its tokenizer, chat template and data"
        else:
            ends = "a run with longer rows takes more memory and time"
        return (f"{rows}: {ends}",)

    @property
    def _share(self) -> float:
        """Of the longest row in the limit; 1 where one of them is not known."""
        return self.tokens / self.limit[0] if self.tokens and self.limit and self.limit[0] else 1.0


SCHEMA = "zerokit.rehearsal/1"
WEIGHTS, FROZEN, QUANTISED = "model", "frozen parameters", "quantised parameters"
"""What weights are called among what is live: those that are loaded or trained, those that are not, and those
in 4 or 8 bits."""
GATHERED = "gathered parameters"
"""Whole weights that ranks gather of each other's shards (FSDP, ZeRO-3), and the buffers for that."""
GRADIENTS, BACKWARD = "gradients", "backward temporaries"
"""What backward allocates: gradients that stay for the optimizer's step, as those of parameters do, and what
is freed before backward ends, above all gradients of activations."""
ACTIVATIONS = "activations"
LOSS = "loss"
"""What a cross-entropy's own kernels hold."""
MANAGED = (
    "of that, CUDA managed memory (paged optimizer states): on the GPU as far as it has room, beside what "
    "PyTorch counts there"
)
"""What ``managed_bytes`` are, in words."""
WHOLE = "whole"
_LEAST_SHOWN_SHARE = 0.001
_ALL_RANKS = 4  # of more only some are proposed: each takes as long as the first


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldAtPeak:
    """A part of what was live when most was allocated."""

    what: str
    module: str
    location: str
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GrownPart(HeldAtPeak):
    """A part of what is live at a peak; ``bytes``: by how many it is larger than it was."""

    @property
    def text(self) -> str:
        """What it is, where, and its bytes."""
        place = " ".join(filter(None, (self.module, self.location)))
        return f"+{format_gib(self.bytes)} {self.what}{f' ({place})' if place else ''}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """A figure that is larger than a baseline's by more than it may be. ``measure``: ``peak`` of a phase,
    ``reserved``, ``host`` memory (bytes), or ``step`` (seconds). ``parts``: of a peak: what grew, most
    first."""

    measure: str
    before: float
    now: float
    phase: str = ""
    rank: int = 0
    parts: tuple[GrownPart, ...] = ()

    @property
    def title(self) -> str:
        """What grew, and by how much, in words."""
        name = {
            "peak": f"peak of {self.phase}, rank {self.rank}",
            "reserved": f"reserved memory, rank {self.rank}",
            "host": f"host memory, rank {self.rank}",
            "step": "step time",
        }[self.measure]
        shown = format_seconds if self.measure == "step" else format_gib
        share = f", +{self.now / self.before - 1:.1%}" if self.before else ""
        return f"{name}: {shown(self.before)} → {shown(self.now)}{share}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SinceBaseline:
    """A rehearsal beside its baseline.

    Attributes:
        max_growth: by how much a figure may grow, as a share.
        written: there was no baseline, and this rehearsal is one now.
        compared: figures of both.
        versions: packages of another version than the baseline's, with both.
    """

    path: str
    max_growth: float
    written: bool = False
    compared: int = 0
    grown: tuple[Growth, ...] = ()
    versions: dict[str, tuple[str | None, str]] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """How they compare, in a sentence."""
        if self.written:
            return f"baseline written to {self.path}"
        allowed = f"{self.max_growth:.4%}".rstrip("0%").rstrip(".")
        beside = f"the baseline in {self.path}"
        if self.grown:
            return f"grew by more than {allowed}% over {beside}"
        return f"none of {counted(self.compared, 'figure')} grew by more than {allowed}% over {beside}"


@dataclass(frozen=True, slots=True, kw_only=True)
class GuessedValue:
    """A value that a line asked for and nobody can know without arithmetic; ``decides_sizes``: whether the
    figures depend on it (a number of elements, not a loss)."""

    location: str
    what: str
    value: bool | float | str
    times: int
    decides_sizes: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """Where and why a rehearsal could not go on. ``operator``: empty where it was not an operator. ``cause``:
    ``script``: an error raised in the script's own file; ``argument``: one that the script does not take; a
    run ends with both. ``rehearsal``: anything else."""

    location: str
    operator: str
    reason: str
    cause: str = "rehearsal"


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """Something that would lower the peak, by at most so many bytes."""

    what: str
    saves_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RankMemory:
    """What one rank reached. Bytes.

    Attributes:
        peak_reserved_bytes: of an allocator that is never short of memory.
        smallest_reserved_bytes: with which it still serves the run, after giving back what it caches.
        host_bytes: tensors in host memory at their most: weights before they move, offloaded states, pinned
            buffers; without the Python process and its libraries. ``host_phases``: in each phase that made
            some.
        managed_bytes: of ``host_bytes``, CUDA managed memory (paged optimizer states): the driver keeps it
            on the GPU as far as there is room, beside what PyTorch's allocator counts.
        written_bytes: tensors that the script saved.
        phases: peak allocated by phase; those that occurred.
        at_peaks: what was live at each phase's peak; ``at_peak``: at the largest.
        freed: by how much the peak would be lower with what ``checkpointing`` frees, and with half of what
            the ``batch`` takes, everything else as it was.
        lower_bounds: phases that take at least their figure, each with what is not modelled in it.
        expandable_segments: whether the run's allocator has them.
    """

    rank: int
    peak_allocated_bytes: int = 0
    peak_phase: str = ""
    peak_reserved_bytes: int = 0
    smallest_reserved_bytes: int = 0
    host_bytes: int = 0
    host_phases: dict[str, int] = field(default_factory=dict)
    written_bytes: int = 0
    phases: dict[str, int] = field(default_factory=dict)
    at_peak: tuple[HeldAtPeak, ...] = ()
    at_peaks: dict[str, tuple[HeldAtPeak, ...]] = field(default_factory=dict)
    lower_bounds: dict[str, tuple[str, ...]] = field(default_factory=dict)
    managed_bytes: int = 0
    freed: dict[str, int] = field(default_factory=dict)
    expandable_segments: bool = False

    @property
    def fragmented_bytes(self) -> int:
        """Reserved and not allocated at the peak, even on the smallest card that serves the run."""
        return max(0, self.smallest_reserved_bytes - self.peak_allocated_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rehearsal:
    """A script's memory, before there is a GPU.

    Attributes:
        fed: what its training forwards were given; None: there were none.
        complete: whether it went to the end.
        fits: on the card that was named; None where it is not known: no card was named, the rehearsal
            stopped, a phase is a lower bound (``lower_bound``), or the script did not train (``untrained``).
        vram_bytes: of the card, as nvidia-smi counts its memory; None: neither a card nor a size was named.
            ``own_vram``: whether ``gpu`` comes with it; else only the size was given.
        min_vram_bytes: the smallest card, as nvidia-smi counts its memory, on which it runs; where
            ``lower_bound`` holds, at least this.
        repeats: whether the peaks of two optimizer steps agreed to the byte, so that training was ended.
        last_steps_differ_by: the largest difference between a phase's peaks in the last two optimizer steps,
            as a share of the larger one; None: there were not two.
        sandboxed: whether the script ran on a file system that forgets.
        step_seconds: of an optimizer step in its steady state; None: not known.
        step_seconds_range: on the fastest and the slowest host measured; where the speed of the run's host
            is known, as its probe spread.
        step: where the time goes.
        changes: what would lower the peak, most first.
        engine: what the engine that trains ran with, DeepSpeed's or FSDP2, as a launch's report has it;
            None: there was none. ``model``: which model it trains, and how (``config``, ``method``,
            adapters).
        asked: what the script's own code gave Accelerate that a plan decides too: ``setting``, ``code``,
            ``call`` and ``location``, and the engine's value beside it.
        untimed: why this rank's step was not timed; empty: it was, or nobody asked.
        untrained: why a script that trains where an option says so neither trained, evaluated nor generated;
            None: it did.
        bf16: whether tensors on the GPU were in bf16, which older GPUs do not compute in.
        kept_at: when it was made, in seconds since 1970, where it was kept from then; None: it is new.
        baseline: how it compares with an earlier one; None: it was not asked for, or this one is incomplete.
        config_files: DeepSpeed configurations that were read. ``data_parallel``: whether PyTorch's DDP wraps
            a model; ``fully_sharded``: whether its FSDP shards the one that is trained.
        depth: of a decoder: the ``layers`` that were built, in each of several rehearsals, and ``of`` how
            many; :data:`WHOLE`: all of them.
    """

    fed: Fed | None = None
    complete: bool
    fits: bool | None
    min_vram_bytes: int | None
    gpu: str
    gpus: int
    steps: int = 0
    repeats: bool = False
    ranks: tuple[RankMemory, ...]
    guesses: tuple[GuessedValue, ...] = ()
    stubbed: tuple[str, ...] = ()
    stopped: Stop | None = None
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    versions: dict[str, str] = field(default_factory=dict)
    sandboxed: bool = True
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    step_seconds: float | None = None
    step_seconds_range: tuple[float, float] | None = None
    step: StepTime | None = None
    engine: dict[str, Any] | None = None
    model: dict[str, Any] | None = None
    asked: tuple[dict[str, Any], ...] = ()
    untimed: str = ""
    untrained: str | None = None
    bf16: bool = False
    config_files: tuple[str, ...] = ()
    data_parallel: bool = False
    fully_sharded: bool = False
    changes: tuple[Change, ...] = ()
    last_steps_differ_by: float | None = None
    vram_bytes: int | None = None
    own_vram: bool = True
    unlike_plan: tuple[str, ...] = ()
    baseline: SinceBaseline | None = None
    kept_at: float | None = None
    depth: dict[str, Any] | str = WHOLE

    @property
    def few_layers(self) -> dict[str, Any] | None:
        """With how many layers it was rehearsed; None: with all."""
        return self.depth if isinstance(self.depth, dict) else None

    @property
    def when_kept(self) -> str:
        """When a kept answer was made, by the clock here; empty: it is new."""
        if self.kept_at is None:
            return ""
        return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self.kept_at))

    @property
    def of_feed(self) -> tuple[str, ...]:
        """Warnings of what was fed, which come before all others."""
        return (*self.unlike_plan, *(self.fed.warnings if self.fed is not None else ()))

    @property
    def step_of_run(self) -> StepTime | None:
        """The run's own step; None: not known, or only that of one stage of a pipeline."""
        return self.step if self.step is not None and not self.step.missing else None

    @property
    def lower_bound(self) -> bool:
        """Whether a phase takes more than its figure by an amount that is not modelled."""
        return any(rank.lower_bounds for rank in self.ranks)

    @property
    def exit_code(self) -> int:
        """What the command ends with."""
        if self.fits is False:
            return ExitCode.NOTHING_FITS
        if not self.complete or self.untrained:
            return ExitCode.INCOMPLETE_REHEARSAL
        return ExitCode.GREW if self.baseline is not None and self.baseline.grown else ExitCode.DONE

    @property
    def verdict(self) -> str:
        """Whether it fits, or why that is not known, in words."""
        if self.stopped is not None:
            location = f" at {self.stopped.location}" if self.stopped.location else ""
            operator = f" ({self.stopped.operator})" if self.stopped.operator else ""
            return f"incomplete: stopped{location}{operator}: {self.stopped.reason}"
        if self.untrained and self.fits is not False:
            return f"not known whether it fits on {self.gpu}: nothing was trained: {self.untrained}"
        if self.min_vram_bytes is None:
            return "nothing was allocated on the GPU"
        required = format_gib(self.min_vram_bytes)
        if self.lower_bound:
            required = f"at least {required}"
            if self.fits is None:
                return f"not known whether it fits on {self.gpu}: {required} is required (see the phases)"
        if self.fits is None:
            return f"a GPU of {required} is required, as counted on {self.gpu}, which was assumed"
        to_spare = (self.vram_bytes or 0) - self.min_vram_bytes
        if self.fits and self.vram_bytes is not None and to_spare < self.unlike_bytes:
            ranks = ", ".join(str(rank.rank) for rank in self.ranks)
            return (
                f"rank {ranks} fits: {required} required{self._of_card}; other ranks may not: they may take "
                f"up to about {format_gib(self.unlike_bytes, 1)} more"
            )
        fits = "fits" if self.fits else "does not fit"
        if self.fits and self.fed is not None and self.fed.is_unlikely:
            fits = f"fits with rows of {counted(self.fed.tokens or 0, 'token')}, hardly the run's"
        return f"{fits}: {required} required{self._of_card}"

    @property
    def unlike_bytes(self) -> int:
        """About how much more another rank may take than those that were rehearsed; 0: all were, or they
        are alike. Under ZeRO-2 a rank keeps the gradients of its own partition, which backward reaches at
        another time than those of the others (deepspeed/runtime/zero/stage_1_and_2.py, 0.19.8)."""
        engine = self.engine
        if engine is None or engine.get("zero_stage") != 2 or len(self.ranks) >= self.gpus:
            return 0
        copies = max(1, self.gpus // (engine.get("tensor_parallel") or 1))
        width = 4 if engine.get("dtype") == "float32" else 2
        return (engine.get("trainable_parameters") or 0) * width // copies

    @property
    def unlike_ranks(self) -> tuple[str, ...]:
        """What to say of ranks that were not rehearsed and may take more."""
        if not self.unlike_bytes or not self.steps:
            return ()
        rehearsed = ", ".join(str(rank.rank) for rank in self.ranks)
        to_rehearse = ",".join(map(str, range(self.gpus))) if self.gpus <= _ALL_RANKS else "0,1,last"
        return (
            f"only rank {rehearsed} of {self.gpus} was rehearsed: under ZeRO-2 ranks hold unlike gradients "
            f"at the peak, and another may take up to about {format_gib(self.unlike_bytes, 1)} more "
            f"(--ranks {to_rehearse} rehearses others)",
        )

    @property
    def _of_card(self) -> str:
        if self.vram_bytes is None or self.min_vram_bytes is None:
            return f" on {self.gpu}"
        rest, size = self.vram_bytes - self.min_vram_bytes, format_gib(self.vram_bytes)
        left = f"{format_gib(rest)} to spare" if rest >= 0 else f"{format_gib(-rest)} too much"
        return f" of the {size} of {self.gpu}, {left}" if self.own_vram else f" of {size}, {left}"

    @property
    def trained_by(self) -> str:
        """Whether DeepSpeed trains, at which stage and from which file, in words; empty: nothing trained."""
        if self.engine is None or self.fully_sharded:
            wraps = "DDP" if self.data_parallel else "FSDP" if self.fully_sharded else ""
            trained = f"no DeepSpeed: PyTorch's {wraps}" if wraps else "no DeepSpeed"
            return trained if self.steps else ""
        files = ", ".join(self.config_files) or "a configuration made in code"
        return f"DeepSpeed ZeRO-{self.engine['zero_stage']}, from {files}"

    @property
    def training(self) -> str:
        """How many optimizer steps, and how far the peaks of the last two are from each other, in words."""
        steps = counted(self.steps, "optimizer step") if self.steps else "no optimizer steps"
        if (few := self.few_layers) is not None:
            steps += f", with {' and '.join(map(str, few['layers']))} of {few['of']} layers, which are alike"
        share = self.last_steps_differ_by
        if self.repeats or not self.steps or share == 0:
            return steps
        if share is None:
            return f"{steps} (more would tell whether the peaks repeat)"
        least = _LEAST_SHOWN_SHARE
        differ = f"{share:.1%}" if share >= least else f"less than {least:.1%}"
        return f"{steps} (the peaks of the last two differ by {differ})"

    def to_dict(self) -> dict[str, Any]:
        """As ``--json`` prints it."""
        return {"schema": SCHEMA, **asdict(self), "lower_bound": self.lower_bound}


def waiting(step: StepTime) -> str:
    """How much of a step each of the ranks that were played together waits, in words; empty: one alone."""
    ranks = ", ".join(
        f"rank {one.rank} {format_seconds(one.waiting_seconds)} ({one.waiting_seconds / step.seconds:.0%})"
        for one in step.together
    )
    return f"waiting for other ranks: {ranks}" if ranks else ""


def of_process(report: dict[str, Any], rank: int) -> RankMemory:
    """A rank's part of what the rehearsed process wrote."""
    sizes = report.get("phases", {})
    phases = {name: sizes[name] for name in PHASES if name in sizes}
    memory: RankMemory = restored(RankMemory, {**report, "rank": rank, "phases": phases})
    return memory
