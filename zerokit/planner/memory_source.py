"""Which memory model a request gets: a trace of the model where there is one, closed forms otherwise."""

from __future__ import annotations

import copy
import importlib.util
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zerokit.commands import command_text
from zerokit.domain.hardware import Cluster
from zerokit.domain.job import Job, Lora
from zerokit.domain.model_shape import ALL_LINEAR, ModelShape
from zerokit.domain.phases import BY_NAME
from zerokit.domain.profile import ModelProfile, Variant, variants_of
from zerokit.domain.settings import sharing_option
from zerokit.domain.strategy import REHEARSED, MemoryEstimate, RankEstimate, Strategy
from zerokit.errors import INSTALL_TRAINING, InputError, MemoryUnknown
from zerokit.fields import Say as Say
from zerokit.fields import silent as silent
from zerokit.memory.closed_form import estimate_analytic
from zerokit.memory.components import Component, LazyMapping
from zerokit.memory.estimate import (
    UNPADDED,
    covers,
    estimate_traced,
    host_bytes_per_node,
    least_vram_bytes,
    not_replayed,
    replayed,
)
from zerokit.memory.quantised_load import not_packed_note
from zerokit.notes import Note, Topic
from zerokit.search.space import MemoryModel
from zerokit.units import format_gib, format_seconds
from zerokit.values import frozen_dataclass, replace

if TYPE_CHECKING:
    from zerokit.domain.script_profile import RehearsedStrategy, ScriptProfile

_WITH_THESE_OPTIONS = "`zerokit estimate` with these options"
ITS_BUCKETS = "with DeepSpeed's default buckets"
"""What its figures may differ by from those of a plan, which chooses its buckets."""


def note_on_trace(id: str, template: str, topic: Topic = "assumed") -> Note:
    """A note that names the command that traces a model, ``{command}``, before its strategy is chosen."""
    return Note(id, template.format(command=_WITH_THESE_OPTIONS), topic, template=template)


TO_TRACE = note_on_trace("trace-model", f"to trace the model: {{command}} ({ITS_BUCKETS}); then plan again")
_OF_THE_SEARCH = ("top", "recipe", "out")


def trace_command(request: Mapping[str, object], strategy: Strategy) -> str:
    """``zerokit estimate`` for the chosen strategy: what was given, its batch and what decides its trace.
    ``request``: the arguments that were given, by option without dashes in front."""
    chosen = {
        "tp": strategy.tensor_parallel,
        "pp": strategy.pipeline_parallel,
        sharing_option(strategy.engine): strategy.sequence_parallel,
    }
    options = {**request, **{name: str(degree) for name, degree in chosen.items() if degree > 1}}
    if stage := strategy.settings.zero_stage:
        options["zero"] = str(stage)
    if strategy.checkpointing != "none":
        options["checkpointing"] = strategy.checkpointing
    micro, steps = strategy.settings.micro_batch, strategy.settings.gradient_accumulation
    if micro > 1:
        options.setdefault("micro-batch", str(micro))
    if steps > 1 and "global-batch" not in options:
        options.setdefault("gradient-accumulation", str(steps))
    return command_text("estimate", options={k: v for k, v in options.items() if k not in _OF_THE_SEARCH})


_MOST_TRACED_IN_A_SEARCH = 4


@dataclass(slots=True, kw_only=True)
class Source:
    """A model's profile as far as it is known, and what may be traced to complete it.

    Attributes:
        profile: the catalogue's or the cache's; ``None``: nothing yet.
        hf_config: to trace from; ``None``: never trace (a scaled stand-in has no config of its own).
        trace: ``always`` what is missing (``estimate``), ``some`` (a search over a user's own config)
            or ``never`` (a search over the catalogue's, which takes what was traced before).
        closed_form: whether the shape read out of the configuration is the model's; else it must be traced.
        other_version: the catalogue's profile, of another Transformers than the installed one: for what that
            one cannot trace, and in a search for what it has not traced.
        of_other_version: what to say of an estimate from it, in a search.
        catalogued: the profile is the catalogue's, traced for the usual adapters' rank only.
        say: hears of a model that is traced now.
    """

    shape: ModelShape
    name: str
    head: str | None = None
    profile: ModelProfile | None = None
    hf_config: Mapping[str, Any] | None = None
    trace: str = "never"
    catalogued: bool = False
    closed_form: bool = True
    other_version: ModelProfile | None = None
    of_other_version: Note | None = None
    say: Say = silent
    stored: int = 0  # traces of the catalogue's profile
    looked: bool = False  # into the cache
    trace_seconds: float | None = None  # of the last trace; None: none was made yet
    given_up: set[str] = field(default_factory=set)
    notes: dict[str, Note] = field(default_factory=dict)

    def check_targets(self, job: Job) -> None:
        """Refuse adapters on modules that the model does not have, each by itself.

        Where its parameters are known, that is told for certain. In closed form only the modules of its
        layers are, beside which there are heads and tables: refused is what one of them is misspelt as. A
        stand-in's modules are another model's, and nothing is refused.

        Raises:
            InputError: names the module and those that there are.
        """
        if job.lora is None or job.lora.targets == (ALL_LINEAR,):
            return
        from zerokit.suggest import misspelt

        profile = self.profile or self.other_version
        if profile is not None:
            modules = [p.name.rpartition(".")[0] for p in profile.parameters if len(p.shape) == 2]
        elif self.hf_config is not None:
            modules = [module.path for module in self.shape.linear_modules]
        else:
            return
        names = list(dict.fromkeys(module.rpartition(".")[2] for module in modules))
        for target in job.lora.targets:
            if any(f".{module}".endswith(f".{target}") for module in modules):
                continue
            leaf = target.rpartition(".")[2]
            if profile is not None or (leaf not in names and misspelt(leaf, names)):
                raise InputError(
                    f"⟨lora_targets⟩ {target}: {self.name} has no such module; use some of "
                    f"{', '.join(names)}, or {ALL_LINEAR}"
                )

    def covering(self, job: Job, strategy: Strategy) -> ModelProfile | None:
        """A profile that covers the strategy, traced now where that is allowed."""
        if self.profile is not None and self._knows(self.profile, job, strategy):
            return self.profile
        other = self.other_version if self.of_other_version is not None else None
        stored = other is not None and covers(other, job, strategy)
        # of which the catalogue has no traces
        always = job.offload_activations or strategy.engine == "ddp" or strategy.is_loaded_in_parts
        if stored or (self.trace == "never" and not (always and self.hf_config is not None)):
            self._look_into_cache()
        elif self._may_trace(job, strategy):
            self._trace(job, strategy)
        for profile in (self.profile, self.other_version):
            if profile is not None and covers(profile, job, strategy):
                return profile
        return None

    def _look_into_cache(self) -> None:
        """Take what was traced before, once; traces depend on what is installed."""
        if self.looked or self.hf_config is None:
            return
        self.looked = True
        if importlib.util.find_spec("torch") is None or importlib.util.find_spec("transformers") is None:
            return
        from zerokit.trace import store
        from zerokit.trace.on_demand import cached

        cached_profile = cached(self.hf_config, self.head, self.say)
        if cached_profile is not None:
            self.profile = (
                cached_profile if self.profile is None else store.merged([self.profile, cached_profile])
            )
        self.notes["estimate"] = TO_TRACE

    def _knows(self, profile: ModelProfile, job: Job, strategy: Strategy) -> bool:
        """Whether a trace is at hand: for a user's own model exactly the one that is needed."""
        is_covered = covers(profile, job, strategy)
        return is_covered and (self.catalogued or profile.has_all(job, strategy))

    def _may_trace(self, job: Job, strategy: Strategy) -> bool:
        key = variants_of(job, strategy, self.head)[0].key
        if self.hf_config is None or key in self.given_up or not _can_be_traced(job, strategy):
            return False
        of_autotp = strategy.tensor_parallel > 1 and not strategy.is_loaded_in_parts
        is_enough = of_autotp or self._traced() >= _MOST_TRACED_IN_A_SEARCH
        if self.trace == "some" and not job.offload_activations and is_enough:
            return False
        if importlib.util.find_spec("torch") is None or importlib.util.find_spec("transformers") is None:
            self.given_up.add(key)
            self.notes["torch"] = _not_traced(
                f"torch and transformers are not installed here ({INSTALL_TRAINING})"
            )
            return False
        return True

    def _traced(self) -> int:
        """How many traces there are beside those of the catalogue."""
        return 0 if self.profile is None else len(self.profile.traces) - self.stored

    def _trace(self, job: Job, strategy: Strategy) -> None:
        from zerokit.errors import ZerokitError
        from zerokit.trace.on_demand import cached, complete

        variant = variants_of(job, strategy, self.head)[0]
        key = variant.key
        assert self.hf_config is not None
        cached_profile = cached(self.hf_config, self.head, self.say)
        if cached_profile is None or not cached_profile.has_all(job, strategy):
            path = Path(self.name)
            name = self.name
            if path.is_absolute():
                name = path.parent.name if path.name == "config.json" else path.stem
            count = f", {self._traced() + 1} of at most {_MOST_TRACED_IN_A_SEARCH}" * (self.trace == "some")
            takes = (
                "which takes seconds for a small model and minutes for a large one; later runs use this trace"
                if self.trace_seconds is None
                else f"the last took {format_seconds(self.trace_seconds)}"
            )
            self.say(f"tracing {name} ({variant.words}){count}, {takes}")
        begun = time.monotonic()
        try:
            self.profile = complete(
                self.profile, self.hf_config, job, strategy, name=self.name, head=self.head
            )
        except ZerokitError as error:
            self.given_up.add(key)
            self.notes[key] = _not_traced(error.marked)
        self.trace_seconds = time.monotonic() - begun
        if self.profile is None or not covers(self.profile, job, strategy):
            self.given_up.add(key)


def _not_traced(why: str) -> Note:
    return Note("not-traced", f"memory in closed form, not traced: {why}", short=why)


def _can_be_traced(job: Job, strategy: Strategy) -> bool:
    """Whether a trace would serve an estimate of the strategy; no plan for QLoRA under ZeRO-3 has one."""
    if not job.inference:
        return replayed(job, strategy)
    from zerokit.memory.inference import traceable

    return traceable(job, strategy)


@frozen_dataclass
class Model(MemoryModel):
    """Memory by a model's traces, or by its shape."""

    source: Source
    every_rank: bool = False

    def __call__(self, job: Job, strategy: Strategy, cluster: Cluster) -> MemoryEstimate:
        estimate = self._estimate(job, strategy, cluster)
        if strategy.recomputed(job.attention) != strategy.checkpointing:
            text = (
                f"no selective checkpointing: {job.attention} attention keeps no scores to compute again, "
                "eager does; leave zerokit.selective_checkpointing out of the script"
            )
            note = Note("no-selective-checkpointing", text)
            estimate = replace(estimate, assumptions=(*estimate.assumptions, note))
        notes = not_packed_note(self.source.shape, job)
        if self.every_rank and job.lora is not None and job.lora.dropout:
            notes = (*notes, self._of_dropout(estimate, job.lora, job, strategy, cluster))
        return replace(estimate, assumptions=(*estimate.assumptions, *notes)) if notes else estimate

    def of_layers(self, job: Job, strategy: Strategy, cluster: Cluster, layers: int) -> MemoryEstimate | None:
        """The estimate for a model with so many of the layers; None: they are not alike, or not traced."""
        from zerokit.domain.depth import at_depth

        profile = self.source.covering(job, strategy)
        few = None if profile is None else at_depth(profile, layers)
        if few is None or not covers(few, job, strategy):
            return None
        return estimate_traced(few, job, strategy, cluster)

    def _of_dropout(
        self, estimate: MemoryEstimate, lora: Lora, job: Job, strategy: Strategy, cluster: Cluster
    ) -> Note:
        """What the adapters' dropout costs here."""
        given = f"⟨lora_dropout⟩ {lora.dropout:g}"
        why = "adapters keep what it leaves of their inputs, and masks"
        if Variant.of(job, strategy).dropout:
            return Note("lora-dropout", f"{given}: {why}, traced with it")
        if strategy.settings.autocasts:
            return Note("lora-dropout", f"{given}: {why}, which under torch_autocast are not counted")
        without = self._estimate(replace(job, lora=replace(lora, dropout=0.0)), strategy, cluster)
        saved_bytes = estimate.min_vram_bytes - without.min_vram_bytes
        words = f"{format_gib(saved_bytes, 1)} less" if saved_bytes > 0 else "as much"
        short = f"{given}, where 0 would require {words}"
        return Note("lora-dropout", f"{short}: {why}", short=short)

    def _estimate(self, job: Job, strategy: Strategy, cluster: Cluster) -> MemoryEstimate:
        profile = self.source.covering(job, strategy)
        if profile is not None:
            traced = estimate_traced(profile, job, strategy, cluster, every_rank=self.every_rank)
            note = self.source.of_other_version
            if note is None or profile is not self.source.other_version:
                return traced
            return replace(traced, assumptions=(*traced.assumptions, note))
        if job.offload_activations:
            why = next(iter(self.source.notes.values()), "its layers could not be traced")
            raise MemoryUnknown(
                f"⟨offload_activations⟩: {self.source.name}: {why}; `zerokit rehearse` runs the script"
            )
        if strategy.engine != "deepspeed":
            unknown, missing = not_replayed(job, strategy), self.source.notes.get("torch")
            memory = f"⟨model⟩ {self.source.name}: memory under ⟨engine⟩ {strategy.engine} is"
            if missing is not None and not unknown:
                raise MemoryUnknown(f"{memory} traced, and {missing.short}")
            unknown = unknown or "this model, or it could not be traced"
            raise MemoryUnknown(f"{memory} not modelled for {unknown}; `zerokit rehearse` runs the script")
        if not self.source.closed_form:
            is_searched = self.source.trace == "some" and strategy.tensor_parallel > 1
            default = (
                "a search traces no tensor-parallel shards (`zerokit estimate` does)"
                if is_searched
                else "it could not be traced for these options"
            )
            why = next((note.short or note for note in self.source.notes.values()), default)
            raise MemoryUnknown(
                f"⟨model⟩ {self.source.name}: {why}, and no closed form is known for "
                f"model_type {self.source.shape.family!r}; `zerokit rehearse` runs the script"
            )
        estimate = estimate_analytic(self.source.shape, job, strategy, cluster)
        useless = () if _can_be_traced(job, strategy) else (TO_TRACE,)
        notes = tuple(note for note in dict.fromkeys(self.source.notes.values()) if note not in useless)
        notes += (UNPADDED,) * job.attention_mask_given
        return replace(estimate, assumptions=(*estimate.assumptions, *notes)) if notes else estimate

    def least_vram_bytes(self, job: Job, strategy: Strategy, cluster: Cluster) -> int:
        """A bound from below on the estimate's ``min_vram_bytes``; 0 where none is known."""
        profile = self.source.covering(job, strategy)
        return 0 if profile is None else least_vram_bytes(profile, job, strategy, cluster)

    def host_bytes(self, job: Job, strategy: Strategy, cluster: Cluster) -> int | None:
        """The estimate's ``host_bytes_per_node``; ``None`` where only the estimate says."""
        profile = self.source.covering(job, strategy)
        return None if profile is None else host_bytes_per_node(profile, job, strategy, cluster)

    def known(self) -> Model:
        """The same, but without a closed form what was not traced yet is unknown."""
        return self if self.source.closed_form else self.untraced()

    def untraced(self) -> Model:
        """The same, but nothing more is traced."""
        source = copy.copy(self.source)
        source._look_into_cache()
        source.trace, source.hf_config = "never", None
        return Model(source=source, every_rank=self.every_rank)

    def detailed(self) -> Model:
        """The same, with every rank up to 64 GPUs."""
        return Model(source=self.source, every_rank=True)


@dataclass(slots=True)
class ScriptMemory(MemoryModel):
    """Memory of one script. ``model``: the replay of the model that the script trains. ``script``: its
    rehearsals."""

    model: MemoryModel
    script: ScriptProfile
    _replays: dict[tuple[Job, Strategy], MemoryEstimate] = field(default_factory=dict)

    def __call__(self, job: Job, strategy: Strategy, cluster: Cluster) -> MemoryEstimate:
        replayed = self._replay(job, strategy, cluster)
        rehearsed = self.script.of(strategy)
        if rehearsed is not None:
            return _rehearsed(rehearsed, replayed, self.script.name)
        extra = self._extra(job, strategy, cluster)
        return replayed if extra is None else _with_extra(replayed, extra, self.script.name)

    def least_vram_bytes(self, job: Job, strategy: Strategy, cluster: Cluster) -> int:
        """A bound from below: the replay's, less what the script is known not to take."""
        rehearsed = self.script.of(strategy)
        if rehearsed is not None:
            return rehearsed.min_vram_bytes
        least = self.model.least_vram_bytes(job, strategy, cluster)
        extra = self._extra(job, strategy, cluster) or {}
        return max(0, least + min(0, *extra.values(), 0))

    def detailed(self) -> ScriptMemory:
        """The same, with every rank."""
        return ScriptMemory(self.model.detailed(), self.script)

    def _replay(self, job: Job, strategy: Strategy, cluster: Cluster) -> MemoryEstimate:
        key = job, strategy
        if key not in self._replays:
            self._replays[key] = self.model(job, strategy, cluster)
        return self._replays[key]

    # ---------------------------------------------------------------- beside the replay

    def _extra(self, job: Job, strategy: Strategy, cluster: Cluster) -> dict[str, int] | None:
        """Bytes by the script's phases that a strategy takes above the replay; None: not known."""
        nearest = self._nearest(strategy)
        if nearest is None:
            return None
        start = self._observed(job, nearest, cluster)
        slope = self._per_sequence(job, nearest, cluster)
        more = strategy.settings.micro_batch - nearest.strategy.settings.micro_batch
        return {phase: round(size + more * slope.get(phase, 0.0)) for phase, size in start.items()}

    def _nearest(self, strategy: Strategy) -> RehearsedStrategy | None:
        """The rehearsal that is most like a strategy; of those alike the one with the nearest batch."""
        settings = strategy.settings

        def unlike(rehearsed: RehearsedStrategy) -> tuple[object, ...]:
            own = rehearsed.strategy
            return (
                own.checkpointing != strategy.checkpointing,
                own.tensor_parallel != strategy.tensor_parallel,
                own.settings.divides_weights != settings.divides_weights,
                own.settings.title != settings.title,
                own.settings.optimizer_device != settings.optimizer_device,
                abs(own.settings.micro_batch - settings.micro_batch),
            )

        return min(self.script.rehearsed, key=unlike, default=None)

    def _per_sequence(self, job: Job, nearest: RehearsedStrategy, cluster: Cluster) -> dict[str, float]:
        """Bytes by phase for one more sequence, of two rehearsals that differ in nothing else."""
        for same_checkpointing in (True, False):
            for one in reversed(self.script.rehearsed):
                if same_checkpointing and one.strategy.checkpointing != nearest.strategy.checkpointing:
                    continue
                for rehearsed in self.script.rehearsed:
                    more = one.strategy.settings.micro_batch - rehearsed.strategy.settings.micro_batch
                    if more > 0 and _but_batch(one.strategy) == _but_batch(rehearsed.strategy):
                        high, low = self._observed(job, one, cluster), self._observed(job, rehearsed, cluster)
                        return {name: (high[name] - low[name]) / more for name in high if name in low}
        return {}

    def _observed(self, job: Job, rehearsed: RehearsedStrategy, cluster: Cluster) -> dict[str, int]:
        replayed = self._replay(job, rehearsed.strategy, cluster)
        first = replayed.ranks[0].phases
        return {phase: size - first[BY_NAME[phase].replay] for phase, size in rehearsed.phases.items()}


def _but_batch(strategy: Strategy) -> Strategy:
    return replace(strategy, settings=replace(strategy.settings, micro_batch=1, gradient_accumulation=1))


def _rehearsed(rehearsed: RehearsedStrategy, replayed: MemoryEstimate, name: str) -> MemoryEstimate:
    """Rank 0 as rehearsed; the others differ from it as they do in the replay."""
    first = replayed.ranks[0]
    ranks = []
    for rank in replayed.ranks:
        phases = {
            phase: size + rank.phases[BY_NAME[phase].replay] - first.phases[BY_NAME[phase].replay]
            for phase, size in rehearsed.phases.items()
        }
        worst = max(phases, key=phases.__getitem__)
        parts = dict(rehearsed.components)
        rest = phases[worst] - rehearsed.peak_allocated_bytes
        if rest > 0:
            parts["other_ranks_share"] = rest
        elif rest < 0:
            parts = lessened(parts, -rest)
        ranks.append(_rank(rank, phases, parts))
    worst_rank = max(rank.peak_allocated_bytes for rank in ranks)
    more = max(0, worst_rank - rehearsed.peak_allocated_bytes)
    text = f"memory rehearsed: {name} ran with this very strategy on a simulated GPU, as rank 0"
    if rehearsed.not_modelled:
        text += f"; it takes at least this: {', '.join(rehearsed.not_modelled)} is not modelled"
    return replace(
        replayed,
        ranks=tuple(ranks),
        min_vram_bytes=rehearsed.min_vram_bytes + more,
        basis=REHEARSED,
        assumptions=(Note("rehearsed", text),),
    )


def lessened(parts: Mapping[str, int], size: int) -> dict[str, int]:
    """The parts with so many bytes fewer, taken from the largest first."""
    remaining = dict(parts)
    for key in sorted(remaining, key=remaining.__getitem__, reverse=True):
        removed = min(size, remaining[key])
        remaining[key] -= removed
        size -= removed
    return {key: value for key, value in remaining.items() if value}


def _with_extra(replayed: MemoryEstimate, extra: Mapping[str, int], name: str) -> MemoryEstimate:
    ranks = []
    for rank in replayed.ranks:
        phases = {phase: max(0, rank.phases[BY_NAME[phase].replay] + more) for phase, more in extra.items()}
        phases = {phase: phases.get(phase, rank.phases.get(phase, 0)) for phase in (*phases, *rank.phases)}
        more = max(phases.values()) - rank.peak_allocated_bytes
        parts = LazyMapping(partial(_with_script, rank.components, more))  # a search looks into few
        ranks.append(_rank(rank, phases, parts))
    more = max(r.peak_allocated_bytes for r in ranks) - replayed.worst.peak_allocated_bytes
    note = Note(
        "rehearsed-otherwise",
        f"what {name} holds beside the model is taken from rehearsals of other strategies",
    )
    return replace(
        replayed,
        ranks=tuple(ranks),
        min_vram_bytes=replayed.min_vram_bytes + more,
        assumptions=(*replayed.assumptions, note),
    )


def _with_script(parts: Mapping[str, int], more: int) -> dict[str, int]:
    """The parts of a peak with so many bytes more, which a script holds, or fewer."""
    if more <= 0:
        return lessened(parts, -more)
    return {**parts, Component.SCRIPT.value: more}


def _rank(rank: RankEstimate, phases: Mapping[str, int], parts: Mapping[str, int]) -> RankEstimate:
    worst = max(phases, key=phases.__getitem__)
    peak = {"peak_phase": worst, "peak_allocated_bytes": phases[worst]}
    return replace(rank, phases=phases, components=parts, phase_components={}, **peak)
