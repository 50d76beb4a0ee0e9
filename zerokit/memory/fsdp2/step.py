"""One rank's peaks over init, forward, backward and step under FSDP2."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache

from zerokit.domain.fsdp2_settings import Fsdp2Settings
from zerokit.memory.components import Component
from zerokit.memory.fsdp2.groups import groups_of, shares_of
from zerokit.memory.fsdp2.weights import Weights
from zerokit.memory.ledger import Ledger
from zerokit.memory.model_parts import block, embeddings_of
from zerokit.memory.rank_model import Overlay, RankModel
from zerokit.memory.replay.model_states import Persistent, workspace_bytes
from zerokit.memory.replay.optimizers import optimizer_name, optimizer_temporaries, optimizer_values
from zerokit.memory.replay.step import Instant, MicroStep, RankBytes


def shard_ranks(settings: Fsdp2Settings, ranks: int) -> int:
    """Ranks that a parameter is divided over: those of one replica."""
    return max(1, ranks // settings.replicas)


def state_bytes(model: RankModel, settings: Fsdp2Settings, ranks: int) -> int:
    """Bytes of the optimizer's states, in the dtype of the shards; a fused Adam keeps its step counters on
    the GPU too (torch/optim/adamw.py)."""
    trained = [share for share in shares_of(model, settings, ranks) if share.trainable]
    fused = "adam" in optimizer_name(settings) and not settings.torch_adam
    counters = len(trained) * block(4) if fused else 0
    return optimizer_values(settings) * sum(share.kept_bytes for share in trained) + counters


def persistent(model: RankModel, settings: Fsdp2Settings, ranks: int) -> Persistent:
    """The steady state of one rank between steps; ``ranks``: that a parameter is divided over."""
    components: dict[Component, int] = {}
    if workspaces := workspace_bytes(model):
        components[Component.CUBLAS_WORKSPACE] = workspaces
    if model.profile.buffer_bytes:
        components[Component.BUFFERS] = model.profile.buffer_bytes
    if not settings.offload:
        shares = shares_of(model, settings, ranks)
        components[Component.PARAMETERS] = sum(share.kept_bytes for share in shares)
        components[Component.OPTIMIZER_STATES] = state_bytes(model, settings, ranks)
    return Persistent(components=components)


def init_peak(model: RankModel, settings: Fsdp2Settings, ranks: int) -> int:
    """The most allocated while ``fully_shard`` divides a model that comes from the CPU: each group is moved
    whole; what is offloaded leaves parameter by parameter. Accelerate holds the embedding and the head whole
    until all are divided (locals of ``fsdp2_prepare_model``)."""
    shares = shares_of(model, settings, ranks)
    level = most = 0
    for group in groups_of(model, settings):
        own = [shares[index] for index in group.parameters]
        whole = sum(block(share.size * share.kept) for share in own)
        divided = [share.kept_bytes for share in own]
        most = max(most, level + whole + (max(divided, default=0) if settings.offload else sum(divided)))
        level += 0 if settings.offload else sum(divided)
        if settings.wrapping == "accelerate" and group.first in embeddings_of(model):
            level += whole
    return most


def broadcast_peak(model: RankModel, settings: Fsdp2Settings, ranks: int) -> int:
    """The most allocated while rank 0 sends its weights (``fsdp2_load_full_state_dict``,
    accelerate/utils/fsdp_utils.py, 1.15): each whole, beside its shard and copies of the chunks that are
    padded (``Shard._shard_tensor``, torch/distributed/tensor/placement_types.py:441, 2.13). Other ranks hold
    the one before until the next is allocated. Tied weights come under each of their names, the head's
    last."""
    shares = shares_of(model, settings, ranks)
    of_name = {share.name: share for share in shares}
    aliases = (of_name[name] for name in model.profile.ties.values() if name in of_name)
    level = most = before = 0
    for share in (*shares, *aliases):
        whole = block(share.size * share.kept)
        most = max(most, level + whole + max(before, (1 + share.padded) * share.kept_bytes))
        level += 0 if settings.offload else share.kept_bytes
        before = whole
    return most


class _Replay:
    """One rank's micro-steps and step; a composition is read where ``at`` says."""

    def __init__(self, model: RankModel, settings: Fsdp2Settings, ranks: int) -> None:
        self.model = model
        self.settings = settings
        self.ranks = shard_ranks(settings, ranks)
        self.ledger = Ledger()
        self.state = persistent(model, settings, self.ranks)
        self.weights = Weights(model, settings, self.ranks, self.ledger)
        self.found: dict[str, dict[Component, int]] = {}
        for component, size in self.state.components.items():
            self.ledger.set(component, size)

    def micro_step(self, reduces: bool, at: Mapping[str, Instant] | None = None) -> MicroStep:
        """One forward and backward; ``reduces``: the last before the optimizer's step."""
        at, ledger = at or {}, self.ledger
        start = ledger.total
        forward = self._pass("forward", self.model.trace.marks_forward, reduces, at.get("forward"))
        backward = self._pass("backward", self.model.trace.marks_backward, reduces, at.get("backward"))
        ledger.watching = "backward" in at and "backward" not in self.found
        ledger.mark()
        self.weights.end_of_backward(reduces=reduces)
        if ledger.watching:
            self.found["backward"] = ledger.composition()
        ledger.watching = False
        return MicroStep(forward=forward, backward=backward, start=start, end=ledger.peak, after=ledger.total)

    def _pass(
        self, phase: str, marks: Iterable[tuple[str, str]], reduces: bool, at: Instant | None
    ) -> Overlay:
        ledger, start = self.ledger, self.ledger.total
        _, position, between = at or (0, -1, False)
        during, after = [], []
        for number, (kind, name) in enumerate(marks):
            if number == position and between:
                self.found[phase] = {k: v for k, v in ledger.amounts.items() if v}
            ledger.watching = number == position and not between
            ledger.mark()
            if phase == "forward":
                self.weights.in_forward(kind, name)
            else:
                self.weights.in_backward(kind, name, reduces=reduces)
            if ledger.watching:
                self.found[phase] = ledger.composition()
            during.append(ledger.peak)
            after.append(ledger.total)
        ledger.watching = False
        return Overlay(start=start, during=tuple(during), after=tuple(after))

    def step(self) -> int:
        """The optimizer's step; its peak."""
        ledger = self.ledger
        ledger.mark()
        if not self.settings.offload:
            shares = shares_of(self.model, self.settings, self.ranks)
            trained = sum(share.kept_bytes for share in shares if share.trainable)
            ledger.burst(Component.OPTIMIZER_TEMPORARIES, optimizer_temporaries(self.settings) * trained)
        peak = ledger.peak
        self.weights.zero_grad()
        return peak


def micro_step_kinds(settings: Fsdp2Settings) -> list[bool]:
    """Whether gradients are reduced in each of the micro-steps that differ."""
    return [True] if settings.gradient_accumulation == 1 else [settings.sync_each_batch, True]


@lru_cache(maxsize=1024)
def rank_bytes(model: RankModel, settings: Fsdp2Settings, ranks: int) -> RankBytes:
    """One optimizer step of one rank in the steady state (second step on)."""
    replay = _Replay(model, settings, ranks)
    divided = init_peak(model, settings, replay.ranks) + model.profile.buffer_bytes
    micro_steps = tuple(replay.micro_step(reduces) for reduces in micro_step_kinds(settings))
    return RankBytes(
        init_peak=broadcast_peak(model, settings, replay.ranks) if settings.broadcasts else divided,
        flattening=0,
        micro_steps=micro_steps,
        step_peak=replay.step(),
        persistent=replay.state,
    )


def compose(
    model: RankModel, settings: Fsdp2Settings, ranks: int, instants: Mapping[str, Instant | None]
) -> dict[str, dict[Component, int]]:
    """The components at one instant of each phase; the step's is its highest."""
    replay = _Replay(model, settings, ranks)
    for number, reduces in enumerate(micro_step_kinds(settings)):
        replay.micro_step(reduces, {phase: at for phase, at in instants.items() if at and at[0] == number})
    replay.ledger.watching = True
    replay.step()
    return {**replay.found, "step": replay.ledger.composition()}
