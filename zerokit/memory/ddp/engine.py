"""What an estimate asks of the engine that trains, answered for training without one."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from itertools import accumulate, pairwise

from zerokit.domain.client_optimizers import BITSANDBYTES, client_optimizer
from zerokit.domain.ddp_settings import DdpSettings, ddp
from zerokit.domain.job import Job
from zerokit.domain.profile import Parameter
from zerokit.domain.strategy import Strategy
from zerokit.memory.components import Component, HostComponent, Ledger
from zerokit.memory.engine import Engine
from zerokit.memory.host import process_bytes
from zerokit.memory.rank_model import Overlay, RankModel, block, embeddings_of, layers_of
from zerokit.memory.replay.model_states import (
    Persistent,
    beside_states,
    client,
    managed_bytes,
    own_state_bytes,
    step_temporary_bytes,
)
from zerokit.memory.replay.step import Instant, MicroStep, RankBytes
from zerokit.notes import Note

_BROADCAST_BYTES = 250 << 20
"""From which a flat buffer of the first broadcast is sent (``broadcast_bucket_size``,
torch/nn/parallel/distributed.py:803, 2.13)."""


def parameter_bytes(parameter: Parameter, settings: DdpSettings) -> int:
    """Bytes of a parameter, quantised ones with their constants."""
    element_bytes = parameter.element_bytes or settings.weight_bytes
    return block(parameter.stored_bytes or parameter.numel * element_bytes)


@lru_cache(maxsize=256)
def gradient_bytes(model: RankModel, settings: DdpSettings) -> tuple[int, ...]:
    """Bytes of the gradient of every trained parameter; one that the loss does not depend on has none."""
    sizes = (parameter_bytes(parameter, settings) for parameter in model.trainable)
    return tuple(0 if i in model.unused else size for i, size in enumerate(sizes))


def state_bytes(model: RankModel, settings: DdpSettings) -> int:
    """Bytes of the optimizer's states; a Trainer has bitsandbytes keep those of embeddings in 32 bits
    (transformers/trainer.py:1328, 5.23)."""
    made = client(settings)
    spared = settings.by_trainer and made is not None and made.package == BITSANDBYTES
    embeddings = _embeddings(model) if spared else frozenset[str]()
    wide = frozenset(i for i, p in enumerate(model.trainable) if p.name in embeddings)
    tensors = [
        (0 if i in model.unused else p.numel, p.element_bytes or settings.weight_bytes)
        for i, p in enumerate(model.trainable)
    ]
    return own_state_bytes(settings, tensors, wide)


def _embeddings(model: RankModel) -> frozenset[str]:
    """Matrices beside the layers, but for a head of its own."""
    layers = tuple(f"{layer}." for layer in layers_of(model.parameters))
    _, head = embeddings_of(model)
    names = {p.name for p in model.parameters if len(p.shape) == 2 and not p.name.startswith(layers)}
    return frozenset(names - {f"{head}.weight"})


def reference_bytes(model: RankModel, settings: DdpSettings) -> int:
    """Bytes of a reference model's weights and buffers, which is not wrapped."""
    if not model.has_copy:
        return 0
    own = model.copy_bytes
    weights = (own * p.numel if own else parameter_bytes(p, settings) for p in model.parameters)
    return sum(weights) + model.profile.buffer_bytes


def persistent(model: RankModel, settings: DdpSettings, ranks: int) -> Persistent:
    """The steady state of one rank between steps; ``ranks``: that reduce gradients, each with buckets as
    large as these (``gradient_as_bucket_view`` is off; torch/csrc/distributed/c10d/reducer.cpp,
    ``initialize_buckets``)."""
    components = {Component.PARAMETERS: sum(parameter_bytes(p, settings) for p in model.parameters)}
    components |= beside_states(model)
    components[Component.OPTIMIZER_STATES] = state_bytes(model, settings)
    if reference := reference_bytes(model, settings):
        components[Component.SCRIPT] = reference
    if ranks > 1:
        components[Component.GRADIENT_BUCKET] = sum(gradient_bytes(model, settings))
    return Persistent(components=components)


def init_peak(model: RankModel, settings: DdpSettings, ranks: int) -> int:
    """The most allocated before training: weights and buffers, those of a reference model too, and the flat
    copies in which rank 0 sends its own to the others, two on their way at once, and then buckets."""
    weights = sum(parameter_bytes(p, settings) for p in model.parameters) + model.profile.buffer_bytes
    weights += reference_bytes(model, settings)
    if ranks == 1:
        return weights
    # bytes of each flat copy, in order; of one tensor alone there is none (`flatten_dense_tensors`).
    # Tensors of one dtype go together until they are so large (`compute_bucket_assignment_by_size`,
    # torch/csrc/distributed/c10d/reducer.cpp)
    found: list[tuple[int, int]] = []
    open_ones: dict[int, tuple[int, int, int]] = {}
    for index, parameter in enumerate(model.parameters):
        packed = parameter.stored_bytes  # of which constants are no part of the module
        dtype = 1 if packed else parameter.element_bytes or settings.weight_bytes
        elements = -(-parameter.numel // 2) if 0 < packed < parameter.numel else parameter.numel
        first, count, size = open_ones.pop(dtype, (index, 0, 0))
        count, size = count + 1, size + elements * dtype
        if size >= _BROADCAST_BYTES:
            found.append((first, size if count > 1 else 0))
        else:
            open_ones[dtype] = first, count, size
    found += ((first, size if count > 1 else 0) for first, count, size in open_ones.values())
    sent = [0, *((block(size) for _, size in sorted(found)))]
    at_once = max((one + other for one, other in pairwise(sent)), default=0)
    return weights + max(at_once, sum(gradient_bytes(model, settings)))


def micro_step_kinds(settings: DdpSettings) -> list[bool]:
    """Whether gradients are made anew in each of the micro-steps that differ."""
    return [True] if settings.gradient_accumulation == 1 else [True, False]


class _Replay:
    """One rank's micro-steps and step."""

    def __init__(self, model: RankModel, settings: DdpSettings, ranks: int) -> None:
        self.model = model
        self.settings = settings
        self.ledger = Ledger()
        self.state = persistent(model, settings, ranks)
        self.gradients = sum(gradient_bytes(model, settings))
        for component, size in self.state.components.items():
            self.ledger.set(component, size)

    def made(self) -> tuple[int, ...]:
        """Bytes of gradients up to every mark of backward."""
        sizes = gradient_bytes(self.model, self.settings)
        return tuple(accumulate(sizes[i] if i >= 0 else 0 for i in self.model.gradient_indexes))

    def micro_step(self, anew: bool) -> MicroStep:
        """One forward and backward: gradients are where autograd made them, or added to what is there."""
        start, made = self.ledger.total, self.made()
        after = tuple(start + size for size in made) if anew else (start,) * len(made)
        during = (start, *after[:-1])
        if anew and made:
            self.ledger.adopt(Component.GRADIENTS, made[-1])
        total = self.ledger.total
        backward = Overlay(start=start, during=during, after=after)
        return MicroStep(forward=None, backward=backward, start=start, end=total, after=total)

    def step(self) -> int:
        """The optimizer's step; its peak."""
        self.ledger.mark()
        temporaries = step_temporary_bytes(self.settings, self.model.trainable_sizes, self.gradients)
        self.ledger.burst(Component.OPTIMIZER_TEMPORARIES, temporaries)
        return self.ledger.peak


_OPTIMIZERS = ("adam", "adamw", "sgd")
_PACKAGES = (BITSANDBYTES, "schedulefree", "torchao")
_LOSSES_OF_ENGINES = ("liger", "cut")


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
            f"loss {job.loss}": job.loss in _LOSSES_OF_ENGINES,
            "a reward model trained whole on several GPUs": job.loss == "value"
            and is_full
            and strategy.world_size > 1,  # DistributedDataParallel ends it: a gradient comes twice
            "quantised weights beside others in fp32": packed and settings.weight_bytes == 4,
            "offloaded activations": job.offload_activations,
            "selective checkpointing": strategy.recomputed(job.attention) == "selective",
        }
        return ", ".join(words for words, holds in unknown.items() if holds)

    def copied_logit_bytes(self, job: Job, strategy: Strategy) -> int:
        """What the model returns, in fp32 beside it under Accelerate's autocast; and, after that is gone, a
        clone of what is left: DistributedDataParallel makes it (``_DDPSink``,
        torch/nn/parallel/distributed.py:378, 2.13) where a Trainer has it look for unused parameters: of
        adapters, and of models that do not checkpoint (transformers/trainer.py:751, 5.23), unless it says
        otherwise."""
        settings = ddp(strategy.settings)
        returned = 4 if settings.precision == "fp32" else 2
        adapts = job.method != "full"
        is_checked = job.defaults.looks_for_unused if adapts else strategy.checkpointing == "none"
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
        return persistent(model, settings, ranks).total, sum(gradient_bytes(model, settings))

    @lru_cache(maxsize=1024)  # noqa: B019 - there is one engine
    def rank_bytes(self, model: RankModel, settings: DdpSettings, ranks: int, rank: int) -> RankBytes:
        """One optimizer step of one rank in the steady state (second step on)."""
        replay = _Replay(model, settings, ranks)
        return RankBytes(
            init_peak=init_peak(model, settings, ranks),
            flattening=0,
            micro_steps=tuple(replay.micro_step(anew) for anew in micro_step_kinds(settings)),
            step_peak=replay.step(),
            persistent=replay.state,
        )

    def compose(
        self,
        model: RankModel,
        settings: DdpSettings,
        ranks: int,
        rank: int,
        instants: Mapping[str, Instant | None],
    ) -> dict[str, dict[Component, int]]:
        """The components at one instant of each phase; the step's is its highest."""
        replay = _Replay(model, settings, ranks)
        found: dict[str, dict[Component, int]] = {}
        for number, anew in enumerate(micro_step_kinds(settings)):
            before, made = dict(replay.ledger.amounts), (0, *replay.made())
            for phase, at in instants.items():
                if at is None or at[0] != number:
                    continue
                held = made[at[1]] if phase == "backward" and anew else 0
                found[phase] = before | {Component.GRADIENTS: before.get(Component.GRADIENTS, 0) + held}
            replay.micro_step(anew)
        replay.ledger.watching = True
        replay.step()
        found["step"] = replay.ledger.composition()
        return {phase: {part: size for part, size in parts.items() if size} for phase, parts in found.items()}

    def host_parts(
        self, model: RankModel, settings: DdpSettings, ranks: int, world_size: int, room: int, per_node: int
    ) -> dict[HostComponent, int]:
        """Host bytes of one rank: each loads the whole model there, unless it is quantised; paged states lie
        there when the GPU is full."""
        copies = 0 if model.loads_on_gpu else 2 if model.has_copy else 1
        whole = copies * sum(parameter_bytes(p, settings) for p in model.parameters)
        parts = {
            HostComponent.PROCESS: process_bytes(world_size),
            HostComponent.MODEL_BEFORE_IT_MOVES: whole,
            HostComponent.OPTIMIZER_STATES: managed_bytes(settings, model.trainable_sizes),
        }
        return {part: size for part, size in parts.items() if size}
