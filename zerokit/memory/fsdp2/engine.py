"""What an estimate asks of the engine that trains, answered for FSDP2."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from zerokit.domain.fsdp2_settings import Fsdp2Settings, fsdp2
from zerokit.domain.hardware import Gpu
from zerokit.domain.job import Job
from zerokit.domain.profile import ModelProfile
from zerokit.domain.strategy import Strategy
from zerokit.domain.training_settings import TrainingSettings
from zerokit.memory.components import Component, HostComponent
from zerokit.memory.fsdp2 import step
from zerokit.memory.fsdp2.groups import shares_of
from zerokit.memory.host import pinned, process_bytes
from zerokit.memory.model_parts import stacks_of
from zerokit.memory.rank_model import RankModel
from zerokit.memory.replay.step import Instant, RankBytes
from zerokit.notes import Note
from zerokit.values import replace

REPLAYED_OPTIMIZERS = ("adam", "adamw", "sgd")
REPLAYED_LOSSES = ("standard", "chunked", "cut")
"""Accelerate and plain loops gather head and final norm together, so the head's weight is whole while a loss
reads it. Liger's has the head's gradient in forward, which nothing was compared with."""


_FP32_LOGITS = frozenset(
    {"beam", "blt", "falcon_mamba", "inkling2", "mamba", "mamba2", "moshi", "nemotron_h", "xlstm"}
)
"""Model types whose forward returns logits in fp32 (Transformers 5.23): Accelerate's ``output_dtype`` makes
another copy of them, which is not counted."""


def not_replayed(job: Job, strategy: Strategy) -> str:
    """What of this training was not compared with rehearsals of the library; empty: all was."""
    settings = fsdp2(strategy.settings)
    unknown = {
        "ranks that are not data-parallel alone": strategy.world_size != strategy.data_parallel,
        "replicas that do not divide the ranks": strategy.data_parallel % settings.replicas != 0,
        f"precision {settings.precision}": settings.precision not in ("bf16", "fp32"),
        f"optimizer {settings.client_optimizer or settings.optimizer}": settings.client_optimizer is not None
        or (settings.optimizer or "AdamW").lower() not in REPLAYED_OPTIMIZERS,
        "quantised weights": job.packed_base_bytes is not None,
        "a reference model": job.defaults.reference,
        "offloaded activations": job.offload_activations,
        f"loss {job.loss}": job.loss not in REPLAYED_LOSSES,
        "reentrant checkpointing": strategy.checkpointing == "full" and job.is_reentrant(settings),
        "selective checkpointing": strategy.recomputed(job.attention) == "selective",
    }
    return ", ".join(words for words, holds in unknown.items() if holds)


def copied_logit_bytes(job: Job, strategy: Strategy) -> int:
    """Return 0."""
    del job, strategy
    return 0


def knows(profile: ModelProfile) -> bool:
    """Whether the model is a decoder of one list of layers, its weights all in one dtype: others are grouped
    by the classes that Transformers names (``_no_split_modules``), which a profile does not know."""
    if profile.hf_config.get("model_type") in _FP32_LOGITS:
        return False
    is_of_one_dtype = not any(parameter.element_bytes for parameter in profile.parameters)
    return profile.head == "causal" and is_of_one_dtype and len(stacks_of(profile.parameters)) == 1


@lru_cache(maxsize=1024)
def _shared_settings(settings: Fsdp2Settings) -> Fsdp2Settings:
    return replace(settings, micro_batch=1, gradient_accumulation=min(settings.gradient_accumulation, 2))


def settings_of_replay(strategy: Strategy, gpu: Gpu) -> Fsdp2Settings:
    """The settings with all that FSDP2's own bytes do not depend on made equal; ``gpu`` changes nothing."""
    del gpu
    return _shared_settings(fsdp2(strategy.settings))


def assumptions(settings: TrainingSettings) -> tuple[Note, ...]:
    """Which parameters travel together, and what an accumulated gradient is."""
    own = fsdp2(settings)
    if own.wrapping == "accelerate":
        words = "as Accelerate 1.14 and later shard it: every decoder layer, the input embedding, final norm "
        words += "and head together; older ones leave all but the layers in one group"
    else:
        words = "as a plain loop shards it: every decoder layer, and the model around them"
    notes = [Note("fsdp2-groups", f"weights are gathered {words}")]
    if own.gradient_accumulation > 1 and not own.sync_each_batch:
        words = "gradients of all but the last micro-batch stay whole on every GPU (no_sync): "
        words += "GradientAccumulationPlugin(sync_each_batch=True) divides them"
        notes.append(Note("whole-gradients", words))
    return tuple(notes)


def least_bytes(model: RankModel, settings: TrainingSettings, ranks: int) -> tuple[int, int]:
    """(bytes at every instant of a step, gradients at its end)."""
    own = fsdp2(settings)
    if own.offload:
        return 0, 0
    shares = shares_of(model, own, step.shard_ranks(own, ranks))
    states = step.state_bytes(model, own, step.shard_ranks(own, ranks))
    gradients = sum(share.kept_bytes for share in shares if share.trainable)
    return sum(share.kept_bytes for share in shares) + states, gradients


def layers_kept(model: RankModel, settings: TrainingSettings) -> int | None:
    """None: shares of gradients add up over all layers."""
    del model, settings
    return None


def rank_bytes(model: RankModel, settings: TrainingSettings, ranks: int, rank: int) -> RankBytes:
    """One optimizer step; ranks are alike but for padding, of which the first has none."""
    del rank
    return step.rank_bytes(model, fsdp2(settings), ranks)


def compose(
    model: RankModel,
    settings: TrainingSettings,
    ranks: int,
    rank: int,
    instants: Mapping[str, Instant | None],
) -> dict[str, dict[Component, int]]:
    """The components at one instant of each phase."""
    del rank
    return step.compose(model, fsdp2(settings), ranks, instants)


def flattening_bytes(model: RankModel, settings: TrainingSettings) -> int:
    """0: nothing is allocated where a card has room, and elsewhere where it has not."""
    del model, settings
    return 0


def listed_ranks(model: RankModel, settings: TrainingSettings, ranks: int, *, every: bool) -> tuple[int, ...]:
    """The first alone."""
    del model, settings, ranks, every
    return (0,)


def host_parts(
    model: RankModel, settings: TrainingSettings, ranks: int, world_size: int, room: int, per_node: int
) -> dict[HostComponent, int]:
    """Host bytes of one rank: each loads the whole model before it is divided, or one of a node does (its
    ``per_node`` ranks then count a part of it each), in the dtype of the shards; what ``CPUOffloadPolicy``
    keeps there, shares of weights beside the whole model until Accelerate has divided it (``original_sd``).
    """
    del room
    own = fsdp2(settings)
    shares = shares_of(model, own, step.shard_ranks(own, ranks))
    parts = {HostComponent.PROCESS: process_bytes(world_size)}
    whole = 0 if model.loads_on_gpu else sum(share.size * share.kept for share in shares)
    whole = -(-whole // per_node) if own.loads_once else whole
    if own.offload:
        trained = [share for share in shares if share.trainable]
        parts[HostComponent.PARAMETERS] = sum(pinned(share.kept_bytes) for share in shares)
        parts[HostComponent.GRADIENTS] = sum(pinned(share.kept_bytes) for share in trained)
        parts[HostComponent.OPTIMIZER_STATES] = step.state_bytes(model, own, step.shard_ranks(own, ranks))
        whole += parts[HostComponent.PARAMETERS] if own.wrapping == "accelerate" else 0
    states = sum(parts.values()) - parts[HostComponent.PROCESS]
    parts[HostComponent.MODEL_BEFORE_IT_MOVES] = max(0, whole - states)
    return {part: size for part, size in parts.items() if size}
