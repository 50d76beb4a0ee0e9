"""What an estimate asks of the engine that trains, answered for training without one."""

from __future__ import annotations

from collections.abc import Mapping

from zerokit.domain.client_optimizers import client_optimizer
from zerokit.domain.ddp_settings import DdpSettings, ddp
from zerokit.domain.job import Job
from zerokit.domain.strategy import Strategy
from zerokit.memory.components import Component, HostComponent
from zerokit.memory.ddp import step
from zerokit.memory.engine import Engine
from zerokit.memory.host import process_bytes
from zerokit.memory.rank_model import RankModel
from zerokit.memory.replay.optimizers import managed_bytes
from zerokit.memory.replay.step import Instant, RankBytes
from zerokit.notes import Note

_OPTIMIZERS = ("adam", "adamw", "sgd")
_PACKAGES = ("bitsandbytes", "schedulefree")


class Ddp(Engine[DdpSettings]):
    """Training without an engine."""

    def not_replayed(self, job: Job, strategy: Strategy) -> str:
        """What of this training was not compared with rehearsals of it; empty: all was."""
        settings = ddp(strategy.settings)
        packed = job.packed_base_bytes is not None
        made = client_optimizer(settings.client_optimizer)
        known = made.package in _PACKAGES if made else (settings.optimizer or "AdamW").lower() in _OPTIMIZERS
        is_full = job.method == "full"
        trained_bytes = settings.weight_bytes if is_full else settings.adapter_bytes
        unknown = {
            "ranks that are not data-parallel alone": strategy.world_size != strategy.data_parallel,
            f"optimizer {settings.client_optimizer or settings.optimizer}": not known,
            "weights in fp16, which a scaler of gradients refuses": settings.precision == "fp16"
            and settings.autocast
            and trained_bytes == 2,
            f"loss {job.loss}": job.loss != "standard"
            and (job.loss != "chunked" or is_full == (settings.weight_bytes == 2)),
            "quantised weights beside others in fp32": packed and settings.weight_bytes == 4,
            "a reference model": job.defaults.reference,
            "offloaded activations": job.offload_activations,
            "selective checkpointing": strategy.recomputed(job.attention) == "selective",
        }
        return ", ".join(words for words, holds in unknown.items() if holds)

    def copied_logit_bytes(self, job: Job, strategy: Strategy) -> int:
        """What the model returns, in fp32 beside it under Accelerate's autocast; and, after that is gone, a
        clone of what is left: DistributedDataParallel makes it (``_DDPSink``,
        torch/nn/parallel/distributed.py:378, 2.13) where a Trainer has it look for unused parameters: of
        adapters, and of models that do not checkpoint (transformers/trainer.py:751, 5.23)."""
        settings = ddp(strategy.settings)
        returned = 4 if settings.precision == "fp32" else 2
        is_checked = job.method != "full" or strategy.checkpointing == "none"
        clones = settings.by_trainer and strategy.world_size > 1 and is_checked
        if settings.by_trainer and settings.autocast:
            return 4 + (4 if clones else returned)
        return 2 * returned if clones else 0

    def assumptions(self, settings: DdpSettings) -> tuple[Note, ...]:
        """In which dtype the weights are."""
        dtype = settings.precision if settings.weight_bytes == 2 else "fp32"
        words = f"no engine: weights are trained as the script loads them, in {dtype}, gradients and "
        words += "states too"
        if settings.autocast:
            words += f"; forward runs under autocast in {settings.precision}"
        return (Note("plain-weights", f"{words}; ⟨load_dtype⟩ to change", "given"),)

    def least_bytes(self, model: RankModel, settings: DdpSettings, ranks: int) -> tuple[int, int]:
        """(bytes at every instant of a step, gradients at its end)."""
        return step.persistent(model, settings, ranks).total, sum(step.gradient_bytes(model, settings))

    def rank_bytes(self, model: RankModel, settings: DdpSettings, ranks: int, rank: int) -> RankBytes:
        """One optimizer step; ranks are alike."""
        return step.rank_bytes(model, settings, ranks)

    def compose(
        self,
        model: RankModel,
        settings: DdpSettings,
        ranks: int,
        rank: int,
        instants: Mapping[str, Instant | None],
    ) -> dict[str, dict[Component, int]]:
        """The components at one instant of each phase."""
        return step.compose(model, settings, ranks, instants)

    def host_parts(
        self, model: RankModel, settings: DdpSettings, ranks: int, world_size: int, room: int, per_node: int
    ) -> dict[HostComponent, int]:
        """Host bytes of one rank: each loads the whole model there, unless it is quantised; paged states lie
        there when the GPU is full."""
        whole = 0 if model.loads_on_gpu else sum(step.parameter_bytes(p, settings) for p in model.parameters)
        parts = {
            HostComponent.PROCESS: process_bytes(world_size),
            HostComponent.MODEL_BEFORE_IT_MOVES: whole,
            HostComponent.OPTIMIZER_STATES: managed_bytes(settings, model.trainable_sizes),
        }
        return {part: size for part, size in parts.items() if size}
