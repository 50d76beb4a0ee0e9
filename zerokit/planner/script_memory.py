"""The memory of a script: its rehearsals where there is one of the strategy, else the model's replay with
what rehearsals of other strategies showed beside it.

The replay knows one model in a plain loop. A script holds more, or less: a reference model, logits that it
keeps, a fused loss. What a rehearsal shows above the replay of the same strategy is taken to be the
script's own: a constant and a part for each sequence of the micro-batch, by phase.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from zerokit.domain.hardware import Cluster
from zerokit.domain.job import Job
from zerokit.domain.script_profile import RehearsedStrategy, ScriptProfile
from zerokit.domain.strategy import REHEARSED, MemoryEstimate, RankEstimate, Strategy
from zerokit.memory.components import Component
from zerokit.search.request import LeastVram, MemoryModel
from zerokit.values import replace

_REPLAYED = {
    "load": "init", "init": "init", "forward": "forward", "backward": "backward", "step": "step",
    "eval": "forward", "generate": "forward", "other": "step", "save": "step",
}  # fmt: skip
"""The phase of the replay that holds the same states as a phase of a script."""


@dataclass(slots=True)
class ScriptMemory:
    """A memory model (``zerokit.search.request.MemoryModel``) of one script.

    Attributes:
        model: the replay of the model that the script trains.
        script: its rehearsals.
    """

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

    def least(self, bound: LeastVram) -> LeastVram:
        """A bound from below, given one for the replay."""

        def least_vram(job: Job, strategy: Strategy, cluster: Cluster) -> int:
            rehearsed = self.script.of(strategy)
            if rehearsed is not None:
                return rehearsed.min_vram_bytes
            least = bound(job, strategy, cluster)
            extra = self._extra(job, strategy, cluster) or {}
            return max(0, least + min(0, *extra.values(), 0))

        return least_vram

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
        stage, micro = strategy.settings.zero.stage, strategy.settings.micro_batch
        offload = strategy.settings.zero.offload_optimizer.device

        def unlike(rehearsed: RehearsedStrategy) -> tuple[object, ...]:
            own = rehearsed.strategy
            zero = own.settings.zero
            return (
                own.checkpointing != strategy.checkpointing,
                own.tensor_parallel != strategy.tensor_parallel,
                (zero.stage == 3) != (stage == 3),
                zero.stage != stage,
                zero.offload_optimizer.device != offload,
                abs(own.settings.micro_batch - micro),
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
        return {phase: size - first[_REPLAYED[phase]] for phase, size in rehearsed.phases.items()}


def _but_batch(strategy: Strategy) -> Strategy:
    return replace(strategy, settings=replace(strategy.settings, micro_batch=1, gradient_accumulation=1))


def _rehearsed(rehearsed: RehearsedStrategy, replayed: MemoryEstimate, name: str) -> MemoryEstimate:
    """Rank 0 as rehearsed; the others differ from it as they do in the replay."""
    first = replayed.ranks[0]
    ranks = []
    for rank in replayed.ranks:
        phases = {
            phase: size + rank.phases[_REPLAYED[phase]] - first.phases[_REPLAYED[phase]]
            for phase, size in rehearsed.phases.items()
        }
        worst = max(phases, key=phases.__getitem__)
        parts = dict(rehearsed.components)
        rest = phases[worst] - rehearsed.peak_allocated_bytes
        if rest > 0:
            parts["other_ranks_share"] = rest
        elif rest < 0:
            parts = _less(parts, -rest)
        ranks.append(_rank(rank, phases, parts))
    worst_rank = max(rank.peak_allocated_bytes for rank in ranks)
    more = max(0, worst_rank - rehearsed.peak_allocated_bytes)
    note = f"memory rehearsed: {name} ran with this very strategy on a simulated GPU, as rank 0"
    if rehearsed.not_modelled:
        note += f"; it takes at least this: {', '.join(rehearsed.not_modelled)} is not modelled"
    return replace(
        replayed,
        ranks=tuple(ranks),
        min_vram_bytes=rehearsed.min_vram_bytes + more,
        basis=REHEARSED,
        assumptions=(note,),
    )


def _less(parts: Mapping[str, int], size: int) -> dict[str, int]:
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
        phases = {phase: max(0, rank.phases[_REPLAYED[phase]] + more) for phase, more in extra.items()}
        phases = {phase: phases.get(phase, rank.phases.get(phase, 0)) for phase in (*phases, *rank.phases)}
        more = max(phases.values()) - rank.peak_allocated_bytes
        parts = dict(rank.components)
        if more > 0:
            parts[Component.SCRIPT.value] = more
        elif more < 0:
            parts = _less(parts, -more)
        ranks.append(_rank(rank, phases, parts))
    more = max(r.peak_allocated_bytes for r in ranks) - replayed.worst.peak_allocated_bytes
    note = f"what {name} holds beside the model is taken from rehearsals of other strategies"
    return replace(
        replayed,
        ranks=tuple(ranks),
        min_vram_bytes=replayed.min_vram_bytes + more,
        assumptions=(*replayed.assumptions, note),
    )


def _rank(rank: RankEstimate, phases: Mapping[str, int], parts: Mapping[str, int]) -> RankEstimate:
    worst = max(phases, key=phases.__getitem__)
    return replace(
        rank,
        phases=phases,
        peak_phase=worst,
        peak_allocated_bytes=phases[worst],
        components=parts,
        phase_components={},
    )
