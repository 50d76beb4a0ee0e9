"""What an estimate asks of the engine that trains, answered for training without one."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from zerokit.domain.client_optimizers import client_optimizer
from zerokit.domain.ddp_settings import DdpSettings, ddp
from zerokit.domain.hardware import Gpu
from zerokit.domain.job import Job
from zerokit.domain.profile import ModelProfile
from zerokit.domain.strategy import Strategy
from zerokit.domain.training_settings import TrainingSettings
from zerokit.memory.components import Component, HostComponent
from zerokit.memory.ddp import step
from zerokit.memory.host import process_bytes
from zerokit.memory.rank_model import RankModel
from zerokit.memory.replay.optimizers import managed_bytes
from zerokit.memory.replay.step import Instant, RankBytes
from zerokit.notes import Note
from zerokit.values import replace

_OPTIMIZERS = ("adam", "adamw", "sgd")
_PACKAGES = ("bitsandbytes", "schedulefree")


def not_replayed(job: Job, strategy: Strategy) -> str:
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


def copied_logit_bytes(job: Job, strategy: Strategy) -> int:
    """What the model returns, in fp32 beside it under Accelerate's autocast; and, after that is gone, a clone
    of what is left: DistributedDataParallel makes it (``_DDPSink``, torch/nn/parallel/distributed.py:378,
    2.13) where a Trainer has it look for unused parameters: of adapters, and of models that do not
    checkpoint (transformers/trainer.py:751, 5.23)."""
    settings = ddp(strategy.settings)
    returned = 4 if settings.precision == "fp32" else 2
    is_checked = job.method != "full" or strategy.checkpointing == "none"
    clones = settings.by_trainer and strategy.world_size > 1 and is_checked
    if settings.by_trainer and settings.autocast:
        return 4 + (4 if clones else returned)
    return 2 * returned if clones else 0


def knows(profile: ModelProfile) -> bool:
    """True: modules are taken as they are."""
    del profile
    return True


@lru_cache(maxsize=1024)
def _shared_settings(settings: DdpSettings) -> DdpSettings:
    return replace(settings, micro_batch=1, gradient_accumulation=min(settings.gradient_accumulation, 2))


def settings_of_replay(strategy: Strategy, gpu: Gpu) -> DdpSettings:
    """The settings with all that plain PyTorch's own bytes do not depend on made equal."""
    del gpu
    return _shared_settings(ddp(strategy.settings))


def assumptions(settings: TrainingSettings) -> tuple[Note, ...]:
    """In which dtype the weights are."""
    own = ddp(settings)
    dtype = own.precision if own.weight_bytes == 2 else "fp32"
    words = f"no engine: weights are trained as the script loads them, in {dtype}, gradients and states too"
    if own.autocast:
        words += f"; forward runs under autocast in {own.precision}"
    return (Note("plain-weights", f"{words}; ⟨load_dtype⟩ to change", "given"),)


def least_bytes(model: RankModel, settings: TrainingSettings, ranks: int) -> tuple[int, int]:
    """(bytes at every instant of a step, gradients at its end)."""
    own = ddp(settings)
    return step.persistent(model, own, ranks).total, sum(step.gradient_bytes(model, own))


def layers_kept(model: RankModel, settings: TrainingSettings) -> int | None:
    """None: gradients add up over all layers."""
    del model, settings
    return None


def rank_bytes(model: RankModel, settings: TrainingSettings, ranks: int, rank: int) -> RankBytes:
    """One optimizer step; ranks are alike."""
    del rank
    return step.rank_bytes(model, ddp(settings), ranks)


def compose(
    model: RankModel,
    settings: TrainingSettings,
    ranks: int,
    rank: int,
    instants: Mapping[str, Instant | None],
) -> dict[str, dict[Component, int]]:
    """The components at one instant of each phase."""
    del rank
    return step.compose(model, ddp(settings), ranks, instants)


def flattening_bytes(model: RankModel, settings: TrainingSettings) -> int:
    """0: nothing is joined."""
    del model, settings
    return 0


def listed_ranks(model: RankModel, settings: TrainingSettings, ranks: int, *, every: bool) -> tuple[int, ...]:
    """The first alone."""
    del model, settings, ranks, every
    return (0,)


def host_parts(
    model: RankModel, settings: TrainingSettings, ranks: int, world_size: int, room: int, per_node: int
) -> dict[HostComponent, int]:
    """Host bytes of one rank: each loads the whole model there, unless it is quantised; paged states lie
    there when the GPU is full."""
    del ranks, room, per_node
    own = ddp(settings)
    whole = 0 if model.loads_on_gpu else sum(step.parameter_bytes(p, own) for p in model.parameters)
    parts = {
        HostComponent.PROCESS: process_bytes(world_size),
        HostComponent.MODEL_BEFORE_IT_MOVES: whole,
        HostComponent.OPTIMIZER_STATES: managed_bytes(own, model.trainable_sizes),
    }
    return {part: size for part, size in parts.items() if size}
