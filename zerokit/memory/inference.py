"""Memory of inference from a model's traces: the prompt, then one token at a time over a growing cache.

Weights and what DeepSpeed gathers of them (stage 3, the model under ``DeepSpeedZeRoOffload``), laid over the
traced passes of ``generate``: the prompt in one pass, and the step at which the key-value cache is longest. A
``DynamicCache`` grows by concatenation: each layer's old tensor lives until its longer copy is made.
"""

from __future__ import annotations

from functools import lru_cache

from zerokit.domain.activations import ActivationTrace, Pass
from zerokit.domain.deepspeed_settings import DeepSpeedSettings, deepspeed
from zerokit.domain.hardware import HOPPER_CUBLAS_WORKSPACE_BYTES, Cluster
from zerokit.domain.job import Job
from zerokit.domain.profile import ModelProfile, Variant, inference_phases
from zerokit.domain.strategy import MemoryEstimate, RankEstimate, Strategy
from zerokit.memory import card
from zerokit.memory.components import Component, LazyMapping, Ledger, by_key, in_ram, on_nvme
from zerokit.memory.host import host_components
from zerokit.memory.rank_model import Overlay, RankModel, highest, rank_model, where
from zerokit.memory.replay.model_states import most_while_building, partition, share_bytes
from zerokit.memory.replay.zero_3_parameters import Parameters
from zerokit.notes import Note
from zerokit.units import format_gib
from zerokit.values import frozen_dataclass

QUANTIZED = {
    "int8": "weights of linear layers in 8 bits (bitsandbytes, LLM.int8; few outliers), the head in 16",
    "int4": "weights of linear layers in NF4 (bitsandbytes, no double quantisation), the head in 16 bits",
}


def traceable(job: Job, strategy: Strategy) -> bool:
    """Whether this way of serving is one that DeepSpeed and bitsandbytes have."""
    settings = strategy.settings
    if settings.divides_states != settings.divides_weights or settings.optimizer_device != "none":
        return False
    if settings.autocasts:
        return False
    if strategy.pipeline_parallel > 1 or strategy.sequence_parallel > 1:
        return False
    return job.quantization == "none" or (not settings.divides_weights and strategy.tensor_parallel == 1)


def serving_traces(
    profile: ModelProfile, job: Job, strategy: Strategy
) -> dict[str, tuple[Variant, ActivationTrace]] | None:
    """Phase -> (variant, trace) of all that an estimate needs; ``None``: something is missing."""
    if not traceable(job, strategy):
        return None
    traces = {}
    for phase, length in zip(("prefill", "decode"), job.serving_tokens, strict=True):
        if phase not in inference_phases(profile.head):
            continue
        variant = Variant.of(job, strategy, phase)
        trace = profile.trace(variant, length, strategy.settings.micro_batch)
        if trace is None:
            return None
        traces[phase] = (variant, trace)
    return traces


@frozen_dataclass(slots=False, eq=False)
class _Phase:
    """One kind of pass: what is live at its marks beside weights, of it the cache, and the weights."""

    name: str
    model: RankModel
    above: Pass
    cached: tuple[float, ...]
    weights: Overlay
    ranks: int
    settings: DeepSpeedSettings

    @property
    def peak(self) -> int:
        return round(highest(self.above, self.weights))

    def components(self) -> dict[Component, int]:
        """What is live at the peak; sums to it."""
        position, between = where(self.above, self.weights)
        held_components = _held(self.model, self.settings, self.ranks, (position, between))
        rest = self.peak - sum(held_components.values())
        cache = min(rest, round(self.cached[position])) if self.cached else 0
        return held_components | {Component.KV_CACHE: cache, Component.ACTIVATIONS: rest - cache}


def _passes(
    profile: ModelProfile,
    job: Job,
    strategy: Strategy,
    cublas_bytes: int = HOPPER_CUBLAS_WORKSPACE_BYTES,
) -> list[_Phase]:
    traces = serving_traces(profile, job, strategy)
    if traces is None:
        raise KeyError(Variant.of(job, strategy, "prefill").key)
    prompt, longest = job.serving_tokens
    return [
        _phase(
            rank_model(profile, variant, trace, cublas_bytes=cublas_bytes),
            variant,
            strategy,
            prompt if phase == "prefill" else longest,
        )
        for phase, (variant, trace) in traces.items()
    ]


def phase_peaks(profile: ModelProfile, job: Job, strategy: Strategy) -> dict[str, int]:
    """Peak bytes of the pass over the prompt (``prefill``), and of the longest step (``decode``). Raises
    KeyError: the profile has no such trace."""
    return {one.name: one.peak for one in _passes(profile, job, strategy)}


def estimate_serving(profile: ModelProfile, job: Job, strategy: Strategy, cluster: Cluster) -> MemoryEstimate:
    """Predicted memory of serving; every rank is alike. Bytes. Raises KeyError: the profile has no such trace
    (ask ``estimate.covers`` first)."""
    settings = deepspeed(strategy.settings)
    passes = _passes(profile, job, strategy, cluster.gpu.cublas_workspace_bytes)
    model = passes[0].model
    worst = max(passes, key=lambda one: one.peak)
    resident = _resident(model, settings, strategy.data_parallel)
    level = sum(resident.values())
    init = _init(model, job, strategy)
    peaks = {"init": init, "forward": worst.peak, "backward": level, "step": level}
    peak = max(peaks.values())
    live = worst.components if init <= worst.peak else lambda: {Component.INITIALISATION: init}
    rank = RankEstimate(
        first=0,
        last=strategy.world_size - 1,
        peak_allocated_bytes=peak,
        peak_phase=max(peaks, key=peaks.__getitem__),
        phases=peaks,
        components=LazyMapping(lambda: by_key(live())),
    )
    ranks = strategy.data_parallel
    parts = host_components(model, settings, partition(model, 0, ranks), ranks, strategy.world_size)
    per_node = max(1, strategy.world_size // cluster.nodes)
    host = in_ram(parts, per_node)
    return MemoryEstimate(
        ranks=(rank,),
        min_vram_bytes=card.min_vram_bytes(cluster.gpu, strategy, peak),
        host_bytes_per_node=sum(host.values()),
        host_components=host,
        nvme_bytes_per_node=on_nvme(parts, per_node),
        assumptions=_assumptions(profile, job, strategy, passes),
        basis=profile.basis,
    )


def _phase(model: RankModel, variant: Variant, strategy: Strategy, length: int) -> _Phase:
    batch, trace = strategy.settings.micro_batch, model.trace
    above = trace.timeline(batch, length).forward
    levels = trace.cached(batch, length).levels
    if variant.phase == "decode":
        before = model.profile.trace(variant, max(1, length - 1), batch) or trace
        cache_level = before.cached(batch, max(1, length - 1)).levels[-1]
        above = Pass(
            peaks=tuple(value + cache_level for value in above.peaks),
            levels=tuple(value + cache_level for value in above.levels),
            afters=tuple(value + cache_level for value in above.afters),
        )
        levels = (levels[-1],) * len(levels)  # old and new together are never less
    ranks, settings = strategy.data_parallel, deepspeed(strategy.settings)
    return _Phase(
        name=variant.phase,
        model=model,
        above=above,
        cached=levels,
        weights=_overlay(model, settings, ranks),
        ranks=ranks,
        settings=settings,
    )


def _resident(model: RankModel, settings: DeepSpeedSettings, ranks: int) -> dict[Component, int]:
    """What stays allocated, gathered weights left out."""
    element_bytes = settings.parameter_bytes
    components = {
        Component.CUBLAS_WORKSPACE: model.cublas_bytes,
        Component.BUFFERS: model.profile.buffer_bytes,
    }
    if not settings.divides_weights:
        components[Component.PARAMETERS] = model.trainable_numel * element_bytes + model.frozen_bytes(
            element_bytes
        )
    elif settings.weights_device == "none":
        components[Component.PARAMETERS] = share_bytes(model, ranks, element_bytes)
    return {name: size for name, size in components.items() if size}


class _Gathering:
    """The weights over forward passes; under stage 3 from the second on, when what follows is known."""

    def __init__(self, model: RankModel, settings: DeepSpeedSettings, ranks: int) -> None:
        self.marks = model.trace.marks_forward
        self.ledger = Ledger()
        for name, size in _resident(model, settings, ranks).items():
            self.ledger.set(name, size)
        self.stage3 = Parameters(model, settings, ranks, self.ledger) if settings.divides_weights else None

    def event(self, kind: str, name: str) -> None:
        """A module begins or ends."""
        if self.stage3 is not None:
            self.stage3.in_forward(kind, name)

    def once(self) -> None:
        """A whole forward pass."""
        if self.stage3 is None:
            return
        self.stage3.start_of_forward()
        for mark in self.marks:
            self.event(*mark)

    def again(self) -> None:
        """Start the pass that counts."""
        for _ in range(2):
            self.once()
        if self.stage3 is not None:
            self.stage3.start_of_forward()


@lru_cache(maxsize=256)
def _overlay(model: RankModel, settings: DeepSpeedSettings, ranks: int) -> Overlay:
    replay = _Gathering(model, settings, ranks)
    replay.again()
    start = replay.ledger.total
    during, after = [], []
    for mark in replay.marks:
        replay.ledger.mark()
        replay.event(*mark)
        during.append(replay.ledger.peak)
        after.append(replay.ledger.total)
    return Overlay(start=start, during=tuple(during), after=tuple(after))


def _held(
    model: RankModel, settings: DeepSpeedSettings, ranks: int, at: tuple[int, bool]
) -> dict[Component, int]:
    """The components of the overlay at a mark, or on the way to it."""
    position, between = at
    replay = _Gathering(model, settings, ranks)
    replay.again()
    for index, mark in enumerate(replay.marks):
        if index == position and between:
            break
        replay.ledger.watching = index == position
        replay.ledger.mark()
        replay.event(*mark)
        if index == position:
            return replay.ledger.composition()
    return {name: size for name, size in replay.ledger.amounts.items() if size}


_WEIGHTS_EACH = {"int8": 1, "int4": 2}
"""Weights in an element of a quantised parameter."""


def _init(model: RankModel, job: Job, strategy: Strategy) -> int:
    """The most while the model is loaded: with quantised weights one at a time in 16 bits too."""
    settings, ranks = deepspeed(strategy.settings), strategy.data_parallel
    if settings.divides_weights:
        on_gpu = settings.weights_device == "none"
        return most_while_building(model, ranks, on_gpu) * settings.parameter_bytes
    resident = _resident(model, settings, ranks)
    quantised = (p.numel for p in model.parameters if p.stored_bytes)
    widest = max(quantised, default=0) * _WEIGHTS_EACH.get(job.quantization, 0) * settings.parameter_bytes
    return resident[Component.PARAMETERS] + resident.get(Component.BUFFERS, 0) + widest


def _assumptions(
    profile: ModelProfile, job: Job, strategy: Strategy, passes: list[_Phase]
) -> tuple[Note, ...]:
    batch = strategy.settings.micro_batch
    versions = profile.versions_note()
    if profile.head not in ("", "causal"):
        text = f"one pass over {batch} × {job.seq_len:,} tokens, traced from the model itself ({versions})"
        return (Note("traced-pass", text),)
    prompt, longest = job.serving_tokens
    peaks = {one.name: format_gib(one.peak) for one in passes}
    generated = (
        f"generation as Transformers' generate does it, greedy, with its DynamicCache, traced from the model "
        f"itself ({versions}): {peaks['prefill']} over prompts of {batch} × {prompt:,} tokens in one pass, "
        f"{peaks['decode']} when the cache of {batch} × {longest:,} tokens grows by one"
    )
    notes = [Note("traced-generation", generated)]
    if job.new_tokens is None:
        text = "prompts as long as the whole context: ⟨new_tokens⟩ N says how many tokens are generated"
        notes.append(Note("longest-prompts", text))
    if job.quantization != "none":
        notes.append(Note("quantised-weights", QUANTIZED[job.quantization]))
    return tuple(notes)
