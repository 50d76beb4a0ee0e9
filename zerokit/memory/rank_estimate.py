"""One rank's estimate: the peaks of its phases, and what is live at them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import NamedTuple

from zerokit.domain.activations import Pass, Timeline
from zerokit.domain.hardware import Cluster
from zerokit.domain.strategy import RankEstimate, Strategy
from zerokit.domain.training_settings import TrainingSettings
from zerokit.memory import card
from zerokit.memory.components import Component, LazyMapping, by_key
from zerokit.memory.engines import engine_of
from zerokit.memory.fused_loss import loss_bytes
from zerokit.memory.rank_model import RankModel, highest, where
from zerokit.memory.replay.step import Instant, MicroStep, RankBytes
from zerokit.values import frozen_dataclass


@frozen_dataclass
class Degrees:
    """How many of what: what DeepSpeed's own bytes depend on beside the settings; ``room``: what a card has
    for tensors during init, where that decides (``flattening_bytes``); else 0."""

    ranks: int  # that ZeRO divides the states over
    peers: int  # tensor-parallel ranks of each, alike
    sequence_parallel: int
    per_node: int
    room: int = 0

    @staticmethod
    def of(strategy: Strategy, cluster: Cluster) -> Degrees:
        """Of a strategy on a cluster."""
        ranks = strategy.zero_ranks
        per_node = max(1, strategy.world_size // cluster.nodes)
        flattens = strategy.settings.divides_states and not strategy.settings.divides_weights
        return Degrees(
            ranks=ranks,
            peers=strategy.tensor_parallel,
            sequence_parallel=strategy.sequence_parallel,
            per_node=per_node,
            room=card.room_in_init(cluster.gpu, strategy) if flattens else 0,
        )

    @property
    def world_size(self) -> int:
        """All ranks of one pipeline stage."""
        return self.ranks * self.peers


class _Replayed(NamedTuple):
    """A rank of ``ranks`` as :func:`rank_estimate` is given it."""

    model: RankModel
    settings: TrainingSettings
    ranks: int
    timeline: Timeline
    rank: int
    own: RankBytes


def rank_estimate(
    model: RankModel,
    settings: TrainingSettings,
    ranks: int,
    timeline: Timeline,
    rank: int,
    own: RankBytes,
    flattens_on_gpu: bool,
) -> RankEstimate:
    """Of one rank of ``ranks``; what is live at its peaks is worked out when somebody looks.

    Args:
        timeline: the activations of a micro-batch.
        own: what DeepSpeed holds beside them.
        flattens_on_gpu: the card has room for ``own.flattening``.
    """
    phases, kinds = _phases(own, timeline, has_copy=model.has_copy)
    if flattens_on_gpu:
        phases["init"] = max(phases["init"], own.flattening)
    phases["init"] = max(phases["init"], model.prepared_bytes)
    worst = max(phases, key=phases.__getitem__)
    replayed = _Replayed(model, settings, ranks, timeline, rank, own)
    by_phase = LazyMapping(partial(_components, replayed, phases, kinds))
    return RankEstimate(
        first=rank,
        last=rank,
        peak_allocated_bytes=phases[worst],
        peak_phase=worst,
        phases=phases,
        components=LazyMapping(lambda: by_phase[worst]),
        phase_components=by_phase,
    )


_GENERATED = (Component.KV_CACHE, Component.GATHERED_PARAMETERS)
"""What a generation holds beside activations."""


def _components(
    replayed: _Replayed, phases: Mapping[str, int], kinds: Mapping[str, int]
) -> dict[str, dict[str, int]]:
    """What is live at the peak of each phase; sums to it."""
    model, settings = replayed.model, replayed.settings
    instants, losses = _instants(replayed, kinds)
    wanted = {**instants, "step": None}
    composed = engine_of(settings).compose(model, settings, replayed.ranks, replayed.rank, wanted)
    evaluation, generation = replayed.timeline.evaluation, replayed.timeline.generation
    between = {"generate": (0, 0, True)} if generation else dict[str, Instant]()
    if evaluation is not None:
        between["eval"] = _evaluation(replayed.own.micro_steps[0], evaluation)[0]
    for phase, at in between.items():
        wanted = {"forward": at, "backward": None, "step": None}
        inside = engine_of(settings).compose(model, settings, replayed.ranks, replayed.rank, wanted)
        composed[phase] = inside["forward"]
        if phase == "generate":
            composed[phase] |= {part: round(generation[part.value]) for part in _GENERATED}
    frozen = model.frozen_bytes(settings.parameter_bytes)
    for phase, parts in composed.items():
        if not settings.divides_weights and frozen and Component.PARAMETERS in parts:
            parts[Component.FROZEN_PARAMETERS] = frozen
            parts[Component.PARAMETERS] -= frozen
        rest = phases[phase] - sum(parts.values())
        parts[Component.LOSS] = min(losses.get(phase, 0), max(0, rest))
        parts[Component.ACTIVATIONS] = rest - parts[Component.LOSS]
    composed["init"] = {Component.INITIALISATION: phases["init"]}
    return {phase: by_key(composed[phase]) for phase in phases}


def _instants(replayed: _Replayed, kinds: Mapping[str, int]) -> tuple[dict[str, Instant], dict[str, int]]:
    """When forward and backward are at their peaks, and the bytes of the loss that are live then."""
    model, timeline, own = replayed.model, replayed.timeline, replayed.own
    gathers = replayed.settings.divides_weights
    first, back = own.micro_steps[kinds["forward"]], own.micro_steps[kinds["backward"]]
    forward = where(timeline.forward, first.forward) if first.forward else None
    last = forward or (0, True)
    losses = {"forward": loss_bytes(model, timeline, "forward", forward and forward[0], last[1])}
    activations = timeline.backward if gathers else timeline.gradients
    backward = (len(back.backward.after), False)
    if highest(activations, back.backward) >= back.at_end(activations):
        backward = where(activations, back.backward)
        if gathers or backward == (0, True):
            position = backward[0] if gathers else None
            losses["backward"] = loss_bytes(model, timeline, "backward", position, backward[1])
    return {"forward": (kinds["forward"], *last), "backward": (kinds["backward"], *backward)}, losses


def _phases(own: RankBytes, timeline: Timeline, *, has_copy: bool) -> tuple[dict[str, int], dict[str, int]]:
    """Peak bytes of each phase, and the kind of micro-step that each is reached in; ``has_copy``: of the
    weights, as a reference model."""
    forward, backward, ahead_at, back_at = 0.0, 0.0, 0, 0
    for number, micro in enumerate(own.micro_steps):
        reference = timeline.reference
        if micro.forward is None:
            forward_bytes, activations = timeline.forward_peak + micro.start, timeline.gradients
            if reference is not None:
                forward_bytes = max(forward_bytes, max(reference.peaks) + micro.start)
        else:
            forward_bytes, activations = highest(timeline.forward, micro.forward), timeline.backward
            if reference is not None:  # a copy gathers its own weights, beside what the policy leaves
                left = micro.forward.after[-1] - micro.forward.start if has_copy else 0
                forward_bytes = max(forward_bytes, highest(reference, micro.base or micro.forward) + left)
        back = max(highest(activations, micro.backward), micro.at_end(activations))
        if forward_bytes > forward:
            forward, ahead_at = forward_bytes, number
        if back > backward:
            backward, back_at = back, number
    phases = {
        "init": own.init_peak,
        "forward": round(forward),
        "backward": round(backward),
        "step": own.step_peak,
    }
    if timeline.evaluation is not None:
        _, size = _evaluation(own.micro_steps[0], timeline.evaluation)
        phases["eval"] = round(size)
    if timeline.generation:
        first = own.micro_steps[0]
        held = first.start if first.forward is None else first.forward.start
        phases["generate"] = round(held + sum(timeline.generation.values()))
    return phases, {"init": 0, "forward": ahead_at, "backward": back_at, "step": 0}


def _evaluation(micro: MicroStep, passed: Pass) -> tuple[Instant, float]:
    """When a pass without a graph is at its highest, between steps, and the bytes then."""
    if micro.forward is None:
        return (0, 0, True), max(passed.peaks) + micro.start
    return (0, *where(passed, micro.forward)), highest(passed, micro.forward)
