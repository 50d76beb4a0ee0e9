"""What an estimate asks of the engine that trains, answered for FSDP2."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache

from zerokit.domain.activations import ActivationTrace
from zerokit.domain.client_optimizers import client_optimizer
from zerokit.domain.families import from_config
from zerokit.domain.fsdp2_settings import Fsdp2Settings, fsdp2
from zerokit.domain.job import Job
from zerokit.domain.profile import ModelProfile
from zerokit.domain.strategy import Strategy
from zerokit.memory.components import Component, HostComponent, Ledger
from zerokit.memory.engine import Engine
from zerokit.memory.fsdp2.weights import (
    Weights,
    constant_bytes,
    groups_of,
    own_shares,
    reduce_bytes,
    shares_of,
)
from zerokit.memory.host import pinned, process_bytes
from zerokit.memory.rank_model import Overlay, RankModel, block, embeddings_of, stacks_of
from zerokit.memory.replay.model_states import (
    Persistent,
    beside_states,
    optimizer_name,
    own_state_bytes,
    step_temporary_bytes,
)
from zerokit.memory.replay.step import Instant, MicroStep, RankBytes
from zerokit.notes import Note


def shard_ranks(settings: Fsdp2Settings, ranks: int) -> int:
    """Ranks that a parameter is divided over: those of one replica."""
    return max(1, ranks // settings.replicas)


def state_bytes(model: RankModel, settings: Fsdp2Settings, ranks: int) -> int:
    """Bytes of the optimizer's states, of the shards."""
    shares = own_shares(model, settings, ranks)
    return own_state_bytes(settings, [(share.numel, share.kept) for share in shares if share.trainable])


def persistent(model: RankModel, settings: Fsdp2Settings, ranks: int) -> Persistent:
    """The steady state of one rank between steps; ``ranks``: that a parameter is divided over."""
    components = beside_states(model)
    components[Component.PARAMETERS] = constant_bytes(model)
    if not settings.offload:
        shares = own_shares(model, settings, ranks)
        components[Component.PARAMETERS] += sum(share.kept_bytes for share in shares)
        components[Component.OPTIMIZER_STATES] = state_bytes(model, settings, ranks)
    return Persistent(components=components)


def init_peak(model: RankModel, settings: Fsdp2Settings, ranks: int) -> int:
    """The most allocated while ``fully_shard`` divides a model that comes from the CPU: each group is moved
    whole; what is offloaded leaves parameter by parameter. Accelerate holds the embedding and the head whole
    until all are divided (locals of ``fsdp2_prepare_model``), and of a model that is loaded on the GPU all
    (``original_sd``). Transformers loads nothing but the shards."""
    shares = shares_of(model, settings, ranks)
    if settings.tp_size > 1:
        return sum(share.kept_bytes for share in own_shares(model, settings, ranks))
    whole_longer = embeddings_of(model) if settings.wrapping == "accelerate" else ()
    level = sum(block(share.size * share.kept) for share in shares) if model.loads_on_gpu else 0
    level = most = level + constant_bytes(model)
    for group in groups_of(model, settings):
        own = [shares[index] for index in group.parameters]
        whole = sum(block(share.size * share.kept) for share in own)
        divided = [share.kept_bytes for share in own]
        comes = 0 if model.loads_on_gpu else whole
        most = max(most, level + comes + (max(divided, default=0) if settings.offload else sum(divided)))
        level += 0 if settings.offload else sum(divided)
        stays = whole_longer and (model.loads_on_gpu or group.first in whole_longer)
        level += comes - (0 if stays else whole)
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
            shares = own_shares(self.model, self.settings, self.ranks)
            trained = [share for share in shares if share.trainable]
            sizes, total = [share.numel for share in trained], sum(share.kept_bytes for share in trained)
            ledger.burst(Component.OPTIMIZER_TEMPORARIES, step_temporary_bytes(self.settings, sizes, total))
        peak = ledger.peak
        self.weights.zero_grad()
        return peak


def micro_step_kinds(settings: Fsdp2Settings) -> list[bool]:
    """Whether gradients are reduced in each of the micro-steps that differ."""
    return [True] if settings.gradient_accumulation == 1 else [settings.sync_each_batch, True]


REPLAYED_OPTIMIZERS = ("adam", "adamw", "sgd", "rmsprop")
REPLAYED_PACKAGES = ("torchao", "schedulefree")
"""Of clients. torchao's do not step what is on the CPU."""
REPLAYED_LOSSES = ("standard", "chunked", "cut", "liger")
"""Accelerate and plain loops gather head and final norm together, so the head's weight is whole while a loss
reads it. Under adapters Accelerate finds no final norm: Liger's, which never calls the head, then fails on a
DTensor (liger-kernel 0.8.5, ops/fused_linear_cross_entropy.py:164), unless the head is tied."""


_FP32_LOGITS = frozenset(
    {"beam", "blt", "falcon_mamba", "inkling2", "mamba", "mamba2", "moshi", "nemotron_h", "xlstm"}
)
"""Model types whose forward returns logits in fp32 (Transformers 5.23): Accelerate's ``output_dtype`` makes
another copy of them, which is not counted."""


class Fsdp2(Engine[Fsdp2Settings]):
    """FSDP2."""

    def not_replayed(self, job: Job, strategy: Strategy) -> str:
        """What of this training was not compared with rehearsals of the library; empty: all was."""
        settings = fsdp2(strategy.settings)
        made = client_optimizer(settings.client_optimizer)
        known = optimizer_name(settings) in REPLAYED_OPTIMIZERS if made is None else (
            made.package in REPLAYED_PACKAGES and not settings.offload
        )  # fmt: skip
        unknown = {
            "pipeline parallel ranks": strategy.pipeline_parallel > 1,
            "replicas that do not divide the ranks": strategy.data_parallel % settings.replicas != 0,
            f"optimizer {settings.client_optimizer or settings.optimizer}": not known,
            "weights in 8 bits": job.packed_base_bytes is not None and job.method != "qlora",
            "a reference model": job.defaults.reference,
            "generation": job.defaults.generates,
            "offloaded activations": job.offload_activations,
            f"loss {job.loss}": job.loss not in REPLAYED_LOSSES,
            "loss liger of adapters, which reads the head's weight without gathering it": job.loss == "liger"
            and job.method != "full"
            and settings.wrapping == "accelerate",
            "selective checkpointing": strategy.recomputed(job.attention) == "selective",
        }
        if strategy.is_loaded_in_parts:
            divided = {
                f"method {job.method}": job.method != "full",
                "context parallel": strategy.sequence_parallel > 1,
                "no shards": strategy.data_parallel == 1,
                "offload": settings.offload,
                "weights that stay gathered": not settings.reshard_after_forward,
                "fp16": settings.precision == "fp16",
                f"loss {job.loss}": job.loss != "standard",
                "evaluation": job.eval_batch is not None,
            }
            unknown |= {f"tensor parallel with {words}": holds for words, holds in divided.items()}
        if strategy.sequence_parallel > 1:
            unknown |= {
                "context parallel in fp32": settings.precision == "fp32",
                "context parallel with other attention than sdpa": job.attention != "sdpa",
                "context parallel with loss liger": job.loss == "liger",
            }
        return ", ".join(words for words, holds in unknown.items() if holds)

    @lru_cache(maxsize=256)  # noqa: B019 - there is one engine
    def knows(self, profile: ModelProfile) -> bool:
        """Whether the model is a decoder of one list of layers, its weights all in one dtype: others are
        grouped by the classes that Transformers names (``_no_split_modules``), which a profile does not
        know."""
        if profile.hf_config.get("model_type") in _FP32_LOGITS:
            return False
        is_of_one_dtype = not any(parameter.element_bytes for parameter in profile.parameters)
        return profile.head == "causal" and is_of_one_dtype and len(stacks_of(profile.parameters)) == 1

    def assumptions(self, settings: Fsdp2Settings) -> tuple[Note, ...]:
        """Which parameters travel together, and what an accumulated gradient is."""
        if settings.tp_size > 1:
            words = (
                "as Transformers (5.19 and later) divides and shards it from its DistributedConfig: every "
            )
            words += "decoder layer, the input embedding, final norm and head together; a tied head twice"
        elif settings.wrapping == "accelerate":
            words = (
                "as Accelerate 1.14 and later shard it: every decoder layer, the input embedding, final norm "
            )
            words += "and head together; older ones leave all but the layers in one group"
        else:
            words = "as a plain loop shards it: every decoder layer, and the model around them"
        notes = [Note("fsdp2-groups", f"weights are gathered {words}")]
        if settings.frozen_bytes == 4 != settings.parameter_bytes:
            words = "frozen weights are kept in fp32, as the script loads them; loaded in "
            words += f"{settings.precision} they would take half as much: ⟨load_dtype⟩ {settings.precision}"
            notes.append(Note("wide-frozen-weights", words, "given"))
        if settings.gradient_accumulation > 1 and not settings.sync_each_batch:
            words = "gradients of all but the last micro-batch stay whole on every GPU (no_sync): "
            words += "GradientAccumulationPlugin(sync_each_batch=True) divides them"
            notes.append(Note("whole-gradients", words))
        return tuple(notes)

    def sharing_sequences(
        self,
        profile: ModelProfile,
        trace: ActivationTrace,
        settings: Fsdp2Settings,
        degree: int,
        checkpointed: bool,
    ) -> tuple[ActivationTrace, str]:
        """The trace with the ring of context parallelism."""
        from zerokit.memory.fsdp2.context_parallel import ring_of, with_ring

        shape = from_config(profile.hf_config, name=profile.name)
        ring = ring_of(shape, degree, settings.parameter_bytes, settings.rotation)
        return with_ring(
            trace, ring, checkpointed
        ), f"ring attention's keys and values ({settings.rotation}) counted"

    def least_bytes(self, model: RankModel, settings: Fsdp2Settings, ranks: int) -> tuple[int, int]:
        """(bytes at every instant of the last forward, gradients that the micro-batches before left whole
        among them, and the most of gradients at the step's end and of weights that forward leaves
        gathered)."""
        shares = own_shares(model, settings, shard_ranks(settings, ranks))
        trained = [share for share in shares if share.trainable]
        gathered = 0 if settings.reshard_after_forward else sum(share.gathered_bytes for share in shares)
        reduces = micro_step_kinds(settings)[0]
        whole = 0 if reduces else reduce_bytes(settings) * sum(share.size for share in trained)
        if settings.offload:
            return whole, gathered
        states = state_bytes(model, settings, shard_ranks(settings, ranks))
        always = sum(share.kept_bytes for share in shares) + states
        return always + whole, max(0 if whole else sum(share.kept_bytes for share in trained), gathered)

    @lru_cache(maxsize=1024)  # noqa: B019 - there is one engine
    def rank_bytes(self, model: RankModel, settings: Fsdp2Settings, ranks: int, rank: int) -> RankBytes:
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
        self,
        model: RankModel,
        settings: Fsdp2Settings,
        ranks: int,
        rank: int,
        instants: Mapping[str, Instant | None],
    ) -> dict[str, dict[Component, int]]:
        """The components at one instant of each phase; the step's is its highest."""
        replay = _Replay(model, settings, ranks)
        for number, reduces in enumerate(micro_step_kinds(settings)):
            replay.micro_step(
                reduces, {phase: at for phase, at in instants.items() if at and at[0] == number}
            )
        replay.ledger.watching = True
        replay.step()
        return {**replay.found, "step": replay.ledger.composition()}

    def host_parts(
        self, model: RankModel, settings: Fsdp2Settings, ranks: int, world_size: int, room: int, per_node: int
    ) -> dict[HostComponent, int]:
        """Host bytes of one rank: each loads the whole model before it is divided, or one of a node does (its
        ``per_node`` ranks then count a part of it each), in the dtype of the shards; what
        ``CPUOffloadPolicy`` keeps there, shares of weights beside the whole model until Accelerate has
        divided it (``original_sd``)."""
        shares = own_shares(model, settings, shard_ranks(settings, ranks))
        parts = {HostComponent.PROCESS: process_bytes(world_size)}
        is_divided = model.loads_on_gpu or settings.tp_size > 1
        whole = 0 if is_divided else sum(share.size * share.kept for share in shares)
        whole = -(-whole // per_node) if settings.loads_once else whole
        if settings.offload:
            trained = [share for share in shares if share.trainable]
            parts[HostComponent.PARAMETERS] = sum(pinned(share.kept_bytes) for share in shares)
            parts[HostComponent.GRADIENTS] = sum(pinned(share.kept_bytes) for share in trained)
            parts[HostComponent.OPTIMIZER_STATES] = state_bytes(model, settings, shard_ranks(settings, ranks))
            whole += parts[HostComponent.PARAMETERS] if settings.wrapping == "accelerate" else 0
        states = sum(parts.values()) - parts[HostComponent.PROCESS]
        parts[HostComponent.MODEL_BEFORE_IT_MOVES] = max(0, whole - states)
        return {part: size for part, size in parts.items() if size}
