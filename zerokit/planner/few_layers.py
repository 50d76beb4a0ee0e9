"""From a rehearsal of a few layers to all of them: what the others take is the replay's to say.

A script's rehearsal is above the replay by what the script and its libraries hold beside the model, which the
number of layers does not change: full training of Llama-3.1-8B by TRL under ZeRO-3 and ZeRO-2 is above it by
the same at 3 and at 32 layers, within 3 MiB of 34 GiB. That a layer of this script takes what the replay says
is seen at two depths before it is counted on.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from zerokit.domain.phases import BY_NAME
from zerokit.memory.components import Component
from zerokit.planner.memory_source import Model, lessened
from zerokit.search.plan import make_space, time_model

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Mapping

    from zerokit.domain.job import Job
    from zerokit.domain.script_profile import RehearsedStrategy
    from zerokit.domain.strategy import MemoryEstimate, Strategy
    from zerokit.search.space import Request

FEW = 3
"""Layers that a model is rehearsed with: the first, one that stands for all others, and the last."""
_WITH_LOSS = "forward", "backward"
_HELD_AS = {
    Component.PARAMETERS.value: "load",
    Component.MASTER_WEIGHTS.value: "init",
    Component.GRADIENT_PARTITION.value: "backward",
    Component.GRADIENT_NORM.value: "step",
    Component.FLAT_GRADIENT.value: "step",
    Component.FP32_GRADIENT.value: "step",
    Component.OPTIMIZER_TEMPORARIES.value: "step",
}
"""In which phase a rehearsal sees parts of the replay come that have other names there."""
FURTHER = 3
"""So many more are rehearsed once, which tells what a layer of this script takes."""
_BLOCKS = 3 << 20
"""Bytes by which a rehearsal and the replay differ at one depth and not at another, however many layers
lie between: a block of the allocator here and there."""
_MOST_UNLIKE = 0.0005
"""By how much, as a share, a layer may take something else than the replay says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Depth:
    """What a script's layers take beside those that were rehearsed.

    Attributes:
        layers: that are rehearsed, and ``of`` how many.
        time_factor: rehearsed over predicted seconds of one layer; None: steps are not timed.
        beside: what a layer takes by phase beside what the replay says. Bytes.
        at_loss: phases that a few layers have highest at a loss that holds more or less than the replay's.
        loss: of the replay.
    """

    layers: int
    of: int
    time_factor: float | None
    beside: Mapping[str, float] = field(default_factory=dict)
    at_loss: frozenset[str] = frozenset()
    loss: str = "standard"

    @classmethod
    def seen(
        cls, request: Request, fewer: RehearsedStrategy, more: RehearsedStrategy, layers: int, of: int
    ) -> Depth | None:
        """:meth:`_seen` with the job's loss, or with that of TRL's trainers in chunks, of which nothing but
        their bytes may tell."""
        for loss in dict.fromkeys((request.job.loss, "chunked")):
            found = cls._seen(_with_loss(request, loss), fewer, more, layers, of)
            if found is not None:
                return replace(found, loss=loss)
        return None

    @classmethod
    def of_two(
        cls, request: Request, fewer: RehearsedStrategy, more: RehearsedStrategy, layers: int, of: int
    ) -> RehearsedStrategy | None:
        """What the strategy of two rehearsals takes with all layers; as :meth:`_seen`. None: they do not
        tell."""
        depth = cls.seen(request, fewer, more, layers, of)
        return replace(depth, layers=layers + FURTHER).whole(request, more) if depth is not None else None

    @classmethod
    def _seen(
        cls, request: Request, fewer: RehearsedStrategy, more: RehearsedStrategy, layers: int, of: int
    ) -> Depth | None:
        """What two rehearsals of one strategy show that differ by :data:`FURTHER` layers; None: that its
        layers take something else than the replay says, or that there is no replay of a part of the model.
        ``fewer``: with ``layers`` of the layers; ``more``: with so many more."""
        low, high = (_Replayed.of(request, fewer.strategy, count) for count in (layers, layers + FURTHER))
        if low is None or high is None or of != request.shape.layers:
            return None
        at_loss, beside = set(_WITH_LOSS), dict[str, float]()
        for phase in _estimated(fewer.phases):
            most_unlike = _BLOCKS + _MOST_UNLIKE * (high.peak(phase) - low.peak(phase))
            for _ in range(2):
                told = _peak(phase, fewer.phases, low, high, at_loss)
                if told is not None and abs(unlike := more.phases.get(phase, 0) - told) <= most_unlike:
                    beside[phase] = unlike / FURTHER
                    break
                at_loss.discard(phase)
            else:
                return None
        factor = None
        if fewer.step_seconds is not None and more.step_seconds is not None:
            low_seconds, high_seconds = (
                _seconds(request, fewer.strategy, count) for count in (layers, layers + FURTHER)
            )
            factor = (more.step_seconds - fewer.step_seconds) / (high_seconds - low_seconds)
        return cls(layers=layers, of=of, time_factor=factor, beside=beside, at_loss=frozenset(at_loss))

    def whole(self, request: Request, few: RehearsedStrategy) -> RehearsedStrategy | None:
        """What a strategy takes with all layers, in the phases that a replay has: whatever the others hold
        of a layer, forward and backward hold, too. None: a few layers do not tell."""
        request, strategy = _with_loss(request, self.loss), few.strategy
        of_few, of_all = (_Replayed.of(request, strategy, count) for count in (self.layers, None))
        if of_few is None or of_all is None:
            return None
        if not BY_NAME[max(few.phases, key=few.phases.__getitem__)].is_estimated:
            return None
        phases: dict[str, int] = {}
        for phase in _estimated(few.phases):
            beside = round(self.beside.get(phase, 0.0) * (self.of - self.layers))
            as_replayed, with_beside = (
                _peak(phase, {**few.phases, phase: size}, of_few, of_all, self.at_loss)
                for size in (few.phases[phase], few.phases[phase] + beside)
            )
            if as_replayed is None or with_beside is None:
                return None
            # the engine makes its own of adapters; else blocks are larger than what is in them
            is_made = phase == "init" and request.job.lora is not None
            phases[phase] = with_beside if is_made else as_replayed
            keeps_many = phase in _WITH_LOSS and strategy.checkpointing == "none"
            if keeps_many and abs(with_beside - as_replayed) > _MOST_UNLIKE * as_replayed:
                return None
        if strategy.settings.zero_stage in (1, 2) and max(phases, key=phases.__getitem__) == "init":
            return None  # a smaller card joins weights on the host (stage_1_and_2.py:446)
        more = max(phases.values()) - few.peak_allocated_bytes
        seconds, ratio = few.step_seconds, 1.0
        if seconds is not None:
            if self.time_factor is None:
                return None
            added = _seconds(request, strategy, None) - _seconds(request, strategy, self.layers)
            seconds += self.time_factor * added
            ratio = seconds / few.step_seconds if few.step_seconds else 1.0
        between = few.step_seconds_range
        return replace(
            few,
            phases=phases,
            min_vram_bytes=few.min_vram_bytes + more,
            components=_parts(few, of_few.estimate, of_all.estimate, more),
            step_seconds=seconds,
            step_seconds_range=None if between is None else (between[0] * ratio, between[1] * ratio),
            step_seconds_by_host_factor=tuple(
                (factor, at * ratio) for factor, at in few.step_seconds_by_host_factor
            ),
            layers=(self.layers, self.of),
        )


@dataclass(frozen=True, slots=True)
class _Replayed:
    """The replay of a strategy, and ``lossless`` with a loss that makes no logits."""

    estimate: MemoryEstimate
    lossless: MemoryEstimate

    @classmethod
    def of(cls, request: Request, strategy: Strategy, layers: int | None) -> _Replayed | None:
        """With so many layers, or all; None: there is none, or layers are not alike."""
        model, job = request.memory, _job(request, strategy)
        if strategy.pipeline_parallel > 1 or not isinstance(model, Model):
            return None
        jobs = job, replace(job, loss="cut")
        if layers is None:
            return cls(*(model(one, strategy, request.cluster) for one in jobs))
        estimate, lossless = (model.of_layers(one, strategy, request.cluster, layers) for one in jobs)
        return None if estimate is None or lossless is None else cls(estimate, lossless)

    def peak(self, phase: str) -> int:
        """What rank 0 takes, which is rehearsed. Bytes."""
        return self.estimate.ranks[0].phases[BY_NAME[phase].replay]

    def peak_of_layers(self, phase: str) -> int:
        """The same without logits."""
        return self.lossless.ranks[0].phases[BY_NAME[phase].replay]


def _with_loss(request: Request, loss: str) -> Request:
    return replace(request, job=replace(request.job, loss=loss))


def _estimated(phases: Iterable[str]) -> list[str]:
    return [phase for phase in phases if BY_NAME[phase].is_estimated]


def _peak(
    phase: str, few: Mapping[str, int], of_few: _Replayed, of_all: _Replayed, at_loss: Container[str]
) -> int | None:
    """A phase's peak with all layers; None: few of them do not tell.

    With few layers forward and backward may be highest at the loss, of which a trainer may hold more or less
    than the replay, and which grows as forward does; with all, what layers keep may be higher, beside which
    a script holds what it does in the step at most, and no more than was live with few layers beside theirs.
    """
    size = few[phase]
    told = size + of_all.peak(phase) - of_few.peak(phase)
    if phase not in _WITH_LOSS:
        return told
    above_layers = size - of_few.peak_of_layers(phase)
    beside_layers = min(few.get("step", of_few.peak("step")) - of_few.peak("step"), above_layers)
    of_layers = of_all.peak_of_layers(phase)
    elsewhere = of_layers + beside_layers
    if phase in at_loss and above_layers - beside_layers > _BLOCKS:
        told = size + of_all.peak("forward") - of_few.peak("forward")
    elif of_all.peak(phase) <= of_layers and told - elsewhere > _MOST_UNLIKE * elsewhere:
        return None
    is_open = elsewhere - max(told, of_layers) > _MOST_UNLIKE * elsewhere
    return None if is_open else max(told, elsewhere)


def _parts(
    few: RehearsedStrategy, of_few: MemoryEstimate, of_all: MemoryEstimate, more: int
) -> dict[str, int]:
    """What is live at the peak, by what it is, with ``more`` bytes of further layers in it."""
    parts, low = Counter(few.components), of_few.ranks[0].components
    added: Counter[str] = Counter()
    for name, size in of_all.ranks[0].components.items():
        phase = _HELD_AS.get(name)
        added[BY_NAME[phase].holds.replace(" ", "_") if phase else name] += size - low.get(name, 0)
    added[Component.ACTIVATIONS.value] += more - added.total()
    result = parts + added  # without what would be below nothing: the peak may be in another phase
    return lessened(result, result.total() - few.peak_allocated_bytes - more)


def _job(request: Request, strategy: Strategy) -> Job:
    return replace(make_space(request)[0].job, global_batch=strategy.global_batch)


def _seconds(request: Request, strategy: Strategy, layers: int | None) -> float:
    """A step's predicted seconds; ``layers``: with so many."""
    shape = request.shape
    if layers is not None:
        (stack,) = shape.stacks
        without = (stack.layers - layers) * stack.layer_parameters
        shape = replace(shape, stacks=(replace(stack, layers=layers),), parameters=shape.parameters - without)
    timing = time_model(replace(request, shape=shape), _job(request, strategy))
    return timing.estimate(strategy).step_seconds
