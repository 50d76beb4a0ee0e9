"""From a rehearsal of a few layers to all of them: what the others take is the replay's to say.

A script's rehearsal is above the replay by what the script and its libraries hold beside the model, which the
number of layers does not change: full training of Llama-3.1-8B by TRL under ZeRO-3 and ZeRO-2 is above it by
the same at 3 and at 32 layers, within 3 MiB of 34 GiB. That a layer of this script takes what the replay says
is seen at two depths before it is counted on.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from zerokit.domain.phases import BY_NAME
from zerokit.memory.components import Component
from zerokit.planner.memory_source import Model, lessened
from zerokit.search.plan import make_space, time_model

if TYPE_CHECKING:
    from collections.abc import Mapping

    from zerokit.domain.job import Job
    from zerokit.domain.script_profile import RehearsedStrategy
    from zerokit.domain.strategy import MemoryEstimate, Strategy
    from zerokit.search.space import Request

FEW = 3
"""Layers that a model is rehearsed with: the first, one that stands for all others, and the last."""
_HELD_AS = {
    Component.PARAMETERS.value: "load",
    Component.MASTER_WEIGHTS.value: "init",
    Component.GRADIENT_PARTITION.value: "backward",
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
        init_bytes: what a layer takes in ``init`` beside what the replay says: adapters, as the engine makes
            its own of them.
    """

    layers: int
    of: int
    time_factor: float | None
    init_bytes: float = 0.0

    @classmethod
    def seen(
        cls, request: Request, fewer: RehearsedStrategy, more: RehearsedStrategy, layers: int, of: int
    ) -> Depth | None:
        """What two rehearsals of one strategy show that differ by :data:`FURTHER` layers; None: that its
        layers take something else than the replay says, or that there is no replay of a part of the model.

        Args:
            fewer: with ``layers`` of the layers; more: with so many more.
        """
        low, high = (_replay(request, fewer.strategy, count) for count in (layers, layers + FURTHER))
        if low is None or high is None or of != request.shape.layers:
            return None
        beside = dict.fromkeys(fewer.phases, 0)
        for phase, size in fewer.phases.items():
            row = BY_NAME[phase]
            if row.is_estimated:
                told = _phase(high, row.replay) - _phase(low, row.replay)
                beside[phase] = more.phases.get(phase, 0) - size - told
                if abs(beside[phase]) > _BLOCKS + _MOST_UNLIKE * told:
                    return None
        factor = None
        if fewer.step_seconds is not None and more.step_seconds is not None:
            low_seconds, high_seconds = (
                _seconds(request, fewer.strategy, count) for count in (layers, layers + FURTHER)
            )
            factor = (more.step_seconds - fewer.step_seconds) / (high_seconds - low_seconds)
        return cls(
            layers=layers, of=of, time_factor=factor, init_bytes=beside.get("init", 0) / FURTHER
        )  # fmt: skip

    def whole(self, request: Request, few: RehearsedStrategy) -> RehearsedStrategy | None:
        """What a strategy takes with all layers, in the phases that a replay has: whatever the others hold
        of a layer, forward and backward hold, too. None: a few layers do not tell."""
        strategy = few.strategy
        of_few = _replay(request, strategy, self.layers)
        if of_few is None:
            return None
        highest = max(few.phases, key=few.phases.__getitem__)
        if not BY_NAME[highest].is_estimated:
            return None
        job = _job(request, strategy)
        of_all = request.memory(job, strategy, request.cluster)
        few_lossless = _replay(request, strategy, self.layers, loss="cut")
        lossless = request.memory(replace(job, loss="cut"), strategy, request.cluster)
        if few_lossless is None:
            return None
        phases = _phases(few.phases, of_few, of_all, few_lossless, lossless)
        if phases is None:
            return None
        if "init" in phases:
            phases["init"] += round(self.init_bytes * (self.of - self.layers))
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
            components=_parts(few, of_few, of_all, more),
            step_seconds=seconds,
            step_seconds_range=None if between is None else (between[0] * ratio, between[1] * ratio),
            step_seconds_by_host_factor=tuple(
                (factor, at * ratio) for factor, at in few.step_seconds_by_host_factor
            ),
            layers=(self.layers, self.of),
        )


def _phases(
    few: Mapping[str, int],
    of_few: MemoryEstimate,
    of_all: MemoryEstimate,
    few_lossless: MemoryEstimate,
    lossless: MemoryEstimate,
) -> dict[str, int] | None:
    """The peaks with all layers; None: few of them do not tell.

    With few layers forward and backward may be highest at the loss, of which a trainer may hold more or less
    than the replay; with all, what layers keep may be higher, beside which a script holds what it does in
    the step, and no more than was live with few layers beside theirs.

    Args:
        few_lossless, lossless: of few and of all layers, with a loss that makes no logits.
    """
    beside = {
        phase: size - _phase(of_few, phase) for phase, size in few.items() if BY_NAME[phase].is_estimated
    }
    result = {phase: _phase(of_all, phase) + size for phase, size in beside.items()}
    for phase in result.keys() & {"forward", "backward"}:
        beside_layers = min(beside.get("step", 0), few[phase] - _phase(few_lossless, phase))
        elsewhere = _phase(lossless, phase) + beside_layers
        is_at_loss = _phase(of_all, phase) > _phase(lossless, phase)
        if not is_at_loss and result[phase] - elsewhere > _MOST_UNLIKE * elsewhere:
            return None
        result[phase] = max(result[phase], elsewhere)
    return result


def _phase(estimate: MemoryEstimate, phase: str) -> int:
    """Return what rank 0 takes, which is rehearsed. Bytes."""
    return estimate.ranks[0].phases[phase]


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


def _replay(
    request: Request, strategy: Strategy, layers: int, loss: str | None = None
) -> MemoryEstimate | None:
    """The replay of a model with so many layers; None: there is none, or layers are not alike.

    Args:
        loss: another than the job's.
    """
    if strategy.pipeline_parallel > 1 or not isinstance(request.memory, Model):
        return None
    job = _job(request, strategy)
    job = job if loss is None else replace(job, loss=loss)
    return request.memory.of_layers(job, strategy, request.cluster, layers)


def _seconds(request: Request, strategy: Strategy, layers: int | None) -> float:
    """A step's predicted seconds; ``layers``: with so many."""
    shape = request.shape
    if layers is not None:
        (stack,) = shape.stacks
        without = (stack.layers - layers) * stack.layer_parameters
        shape = replace(shape, stacks=(replace(stack, layers=layers),), parameters=shape.parameters - without)
    timing = time_model(replace(request, shape=shape), _job(request, strategy))
    return timing.estimate(strategy).step_seconds
