"""What an estimate asks of the engine that trains, answered for FSDP2."""

from __future__ import annotations

from collections.abc import Mapping

from zerokit.domain.fsdp2_settings import Fsdp2Settings, fsdp2
from zerokit.domain.job import Job
from zerokit.domain.profile import ModelProfile
from zerokit.domain.strategy import Strategy
from zerokit.memory.components import Component, HostComponent
from zerokit.memory.engine import Engine
from zerokit.memory.fsdp2 import step
from zerokit.memory.fsdp2.groups import shares_of
from zerokit.memory.host import pinned, process_bytes
from zerokit.memory.model_parts import stacks_of
from zerokit.memory.rank_model import RankModel
from zerokit.memory.replay.step import Instant, RankBytes
from zerokit.notes import Note

REPLAYED_OPTIMIZERS = ("adam", "adamw", "sgd")
REPLAYED_LOSSES = ("standard", "chunked", "cut")
"""Accelerate and plain loops gather head and final norm together, so the head's weight is whole while a loss
reads it. Liger's has the head's gradient in forward, which nothing was compared with."""


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
        unknown = {
            "ranks that are not data-parallel alone": strategy.world_size != strategy.data_parallel,
            "replicas that do not divide the ranks": strategy.data_parallel % settings.replicas != 0,
            f"precision {settings.precision}": settings.precision not in ("bf16", "fp32"),
            f"optimizer {settings.client_optimizer or settings.optimizer}": settings.client_optimizer
            is not None
            or (settings.optimizer or "AdamW").lower() not in REPLAYED_OPTIMIZERS,
            "quantised weights": job.packed_base_bytes is not None,
            "a reference model": job.defaults.reference,
            "offloaded activations": job.offload_activations,
            f"loss {job.loss}": job.loss not in REPLAYED_LOSSES,
            "reentrant checkpointing": strategy.checkpointing == "full" and job.is_reentrant(settings),
            "selective checkpointing": strategy.recomputed(job.attention) == "selective",
        }
        return ", ".join(words for words, holds in unknown.items() if holds)

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
        if settings.wrapping == "accelerate":
            words = (
                "as Accelerate 1.14 and later shard it: every decoder layer, the input embedding, final norm "
            )
            words += "and head together; older ones leave all but the layers in one group"
        else:
            words = "as a plain loop shards it: every decoder layer, and the model around them"
        notes = [Note("fsdp2-groups", f"weights are gathered {words}")]
        if settings.gradient_accumulation > 1 and not settings.sync_each_batch:
            words = "gradients of all but the last micro-batch stay whole on every GPU (no_sync): "
            words += "GradientAccumulationPlugin(sync_each_batch=True) divides them"
            notes.append(Note("whole-gradients", words))
        return tuple(notes)

    def least_bytes(self, model: RankModel, settings: Fsdp2Settings, ranks: int) -> tuple[int, int]:
        """(bytes at every instant of a step, gradients at its end)."""
        if settings.offload:
            return 0, 0
        shares = shares_of(model, settings, step.shard_ranks(settings, ranks))
        states = step.state_bytes(model, settings, step.shard_ranks(settings, ranks))
        gradients = sum(share.kept_bytes for share in shares if share.trainable)
        return sum(share.kept_bytes for share in shares) + states, gradients

    def rank_bytes(self, model: RankModel, settings: Fsdp2Settings, ranks: int, rank: int) -> RankBytes:
        """One optimizer step; ranks are alike but for padding, of which the first has none."""
        return step.rank_bytes(model, settings, ranks)

    def compose(
        self,
        model: RankModel,
        settings: Fsdp2Settings,
        ranks: int,
        rank: int,
        instants: Mapping[str, Instant | None],
    ) -> dict[str, dict[Component, int]]:
        """The components at one instant of each phase."""
        return step.compose(model, settings, ranks, instants)

    def host_parts(
        self, model: RankModel, settings: Fsdp2Settings, ranks: int, world_size: int, room: int, per_node: int
    ) -> dict[HostComponent, int]:
        """Host bytes of one rank: each loads the whole model before it is divided, or one of a node does (its
        ``per_node`` ranks then count a part of it each), in the dtype of the shards; what
        ``CPUOffloadPolicy`` keeps there, shares of weights beside the whole model until Accelerate has
        divided it (``original_sd``)."""
        shares = shares_of(model, settings, step.shard_ranks(settings, ranks))
        parts = {HostComponent.PROCESS: process_bytes(world_size)}
        whole = 0 if model.loads_on_gpu else sum(share.size * share.kept for share in shares)
        whole = -(-whole // per_node) if settings.loads_once else whole
        if settings.offload:
            trained = [share for share in shares if share.trainable]
            parts[HostComponent.PARAMETERS] = sum(pinned(share.kept_bytes) for share in shares)
            parts[HostComponent.GRADIENTS] = sum(pinned(share.kept_bytes) for share in trained)
            parts[HostComponent.OPTIMIZER_STATES] = step.state_bytes(
                model, settings, step.shard_ranks(settings, ranks)
            )
            whole += parts[HostComponent.PARAMETERS] if settings.wrapping == "accelerate" else 0
        states = sum(parts.values()) - parts[HostComponent.PROCESS]
        parts[HostComponent.MODEL_BEFORE_IT_MOVES] = max(0, whole - states)
        return {part: size for part, size in parts.items() if size}
