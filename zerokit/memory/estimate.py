"""Memory of a strategy from a model's profile: activations as traced, the engine as it allocates.

Every figure follows from tensor shapes and from the engine's source, but for the measured ones: those of
``card.py`` (around the tensors), ``host.py`` (a process) and ``replay/model_states.py`` (cuBLAS).
"""

from __future__ import annotations

from functools import lru_cache

from zerokit.domain.activations import ActivationTrace, Timeline, evaluate
from zerokit.domain.deepspeed_settings import DeepSpeedSettings, deepspeed
from zerokit.domain.hardware import Cluster, Gpu
from zerokit.domain.hf_classes import has_other_layers
from zerokit.domain.job import Job
from zerokit.domain.profile import (
    ModelProfile,
    Variant,
    generating,
    needs_graphless,
    sequences_of_a_rank,
    tokens_of_a_rank,
)
from zerokit.domain.strategy import MemoryEstimate, RankEstimate, Strategy
from zerokit.domain.trainers import NOT_FUSED
from zerokit.domain.training_settings import TrainingSettings
from zerokit.memory import card
from zerokit.memory.components import HostComponent, in_ram, on_nvme
from zerokit.memory.engines import engine_of
from zerokit.memory.fused_loss import loss_size, with_loss, with_score_head
from zerokit.memory.host import activation_copies
from zerokit.memory.rank_estimate import Degrees, rank_estimate
from zerokit.memory.rank_model import (
    ElementBytes,
    RankModel,
    rank_model,
    recomputed_notes,
    recomputed_weights_stay,
)
from zerokit.memory.replay.step import RankBytes
from zerokit.notes import Note
from zerokit.values import frozen_dataclass, replace


def least_vram_bytes(profile: ModelProfile, job: Job, strategy: Strategy, cluster: Cluster) -> int:
    """A bound from below, in nvidia-smi's total, by which a search rejects what cannot fit; cheap.

    What stays allocated between steps, plus the activations' own peak; gradients, buckets and gathered
    weights can only add to it.

    Raises:
        KeyError: the profile does not cover the strategy (ask ``estimate.covers`` first).
    """
    if job.inference:
        from zerokit.memory.inference import estimate_serving

        return estimate_serving(profile, job, strategy, cluster).min_vram_bytes
    tokens = max(1, job.seq_len // strategy.sequence_parallel)
    usable = usable_trace(profile, job, strategy)
    if usable is None:
        raise KeyError(Variant.of(job, strategy).key)
    variant, trace, adapters = usable
    model = rank_model(profile, variant, trace, adapters, job.loss, cluster.gpu.cublas_workspace_bytes)
    ranks = strategy.zero_ranks
    states, gradients = engine_of(strategy.settings).least_bytes(model, strategy.settings, ranks)
    activations = _activation_peak(
        trace, strategy.settings.micro_batch, tokens, with_head=job.loss == "standard"
    )
    return card.min_vram_bytes(cluster.gpu, strategy, states + max(activations, gradients))


@lru_cache(maxsize=512)
def _activation_peak(trace: ActivationTrace, micro_batch: int, tokens: int, *, with_head: bool) -> int:
    """Peak of the forward pass. Runs of like layers rise or fall evenly: their ends tell. ``with_head``: else
    without what comes after the layers, which another loss does otherwise."""
    level = peak = 0.0
    by_key: dict[int, tuple[float, float]] = {}
    for run in trace.forward if with_head or trace.forward[-1].stack else trace.forward[:-1]:
        if run.segment not in by_key:
            marks = trace.segments[run.segment]
            highest = max(evaluate(p, micro_batch, tokens) for p in {p for mark in marks for p in mark.peaks})
            by_key[run.segment] = (highest, evaluate(marks[-1].after, micro_batch, tokens))
        highest, change = by_key[run.segment]
        level += run.jump * change
        peak = max(peak, level + highest, level + (run.count - 1) * change + highest)
        level += run.count * change
    return int(peak)


def bytes_of_order(settings: DeepSpeedSettings, trainable: int) -> int:
    """The most that another order of work can save.

    Below stage 3 that is at most all gradients; at stage 3 the gathered weights that are kept for their next
    use and those fetched ahead, each at most ``max_live_parameters``.
    """
    elements = 2 * settings.zero.max_live_parameters if settings.divides_weights else trainable
    return elements * settings.parameter_bytes


LIST_EVERY_RANK_UP_TO = 64
SELECTIVE = Note(
    "selective-checkpointing",
    "selective checkpointing computes attention scores again in backward: the script calls "
    "zerokit.selective_checkpointing(model) before deepspeed.initialize",
)
FLATTENS_ON_GPU = Note(
    "flattens-on-gpu",
    "the peak is a copy of the weights that DeepSpeed makes on the GPU because it has room for it; on a "
    "smaller one it makes the copy on the CPU, so that less is required",
)
NO_EVALUATION = Note(
    "evaluation-not-counted",
    "⟨eval_batch⟩: the peak of an evaluation is not counted; `zerokit rehearse` runs it with the script",
)
CATALOGUE_LORA_RANK = 16
"""The rank at which the catalogue's profiles were traced."""


def covers(profile: ModelProfile, job: Job, strategy: Strategy) -> bool:
    """Whether the profile has what an estimate of this strategy needs."""
    if job.inference:
        from zerokit.memory.inference import serving_traces

        return serving_traces(profile, job, strategy) is not None
    if not replayed(job, strategy) or not engine_of(strategy.settings).knows(profile):
        return False
    usable = usable_trace(profile, job, strategy)
    if usable is None:
        return False
    if strategy.pipeline_parallel > 1:
        from zerokit.memory.pipeline import can_be_cut

        if not can_be_cut(profile, usable[1]):
            return False
    return not needs_graphless(job) or all(_checkpointed(profile, job, strategy, usable))


def replayed(job: Job, strategy: Strategy) -> bool:
    """Whether a trace can serve to estimate training at all: what the engine does then is replayed."""
    return not not_replayed(job, strategy)


UNPADDED = Note(
    "unpadded-counted", "batches are counted without padding, whose attention keeps more", level="warning"
)


def not_replayed(job: Job, strategy: Strategy) -> str:
    """What of this training the replay of its engine does not know; empty: it knows all."""
    return engine_of(strategy.settings).not_replayed(job, strategy)


def usable_trace(
    profile: ModelProfile, job: Job, strategy: Strategy
) -> tuple[Variant, ActivationTrace, tuple[int, int] | None] | None:
    """The variant to use, its trace, and (traced, wanted) LoRA rank where these differ: the widths
    of the adapters hardly move the activations, whose terms in the model's width dwarf them. The variant of a
    stored profile may be another than the job's: see :func:`_instead_notes`."""
    tokens, batch = tokens_of_a_rank(job, strategy), sequences_of_a_rank(job, strategy)
    variant, ranks = Variant.of(job, strategy), None
    trace, lora = profile.trace(variant, tokens, batch), None if job.method == "full" else job.lora
    casts = variant.precision == "32" or variant.wide_adapters or variant.wide_ends or profile.has_layer_norms
    if trace is None and (variant.fused_adapters or variant.input_grads):
        dropped = variant.dropout and (variant.autocast or variant.wide_adapters)
        variant = replace(variant, fused_adapters=False, input_grads=False, dropout=dropped)
        trace = profile.trace(variant, tokens, batch)
    if trace is None and variant.autocast and not casts and profile.head == "causal":
        variant = replace(variant, autocast=False, dropout=False)
        trace = profile.trace(variant, tokens, batch)
    if trace is None and variant.narrow_adapters:
        variant = replace(variant, narrow_adapters=False)
        trace = profile.trace(variant, tokens, batch)
    if trace is None and variant.checkpointing == "reentrant":
        variant = replace(variant, checkpointing="full")
        trace = profile.trace(variant, tokens, batch)
    if trace is None and variant.padding:
        variant = replace(variant, padding=False)
        trace = profile.trace(variant, tokens, batch)
    if trace is None and lora is not None and lora.rank <= 4 * CATALOGUE_LORA_RANK:
        variant, ranks = replace(variant, lora_rank=CATALOGUE_LORA_RANK), (CATALOGUE_LORA_RANK, lora.rank)
        trace = profile.trace(variant, tokens, batch)
    if trace is None:
        return None
    # what is left is cast again, or kept by functions that a trace runs
    by_itself = variant.autocast or variant.wide_adapters or variant.fused_adapters
    if lora is not None and lora.dropout and not by_itself:
        from zerokit.memory.adapter_dropout import with_dropout

        trace = with_dropout(profile, variant, trace)
    return variant, trace, ranks


def estimate_traced(
    profile: ModelProfile, job: Job, strategy: Strategy, cluster: Cluster, *, every_rank: bool = False
) -> MemoryEstimate:
    """Predicted memory per rank. Bytes.

    ``every_rank``: all of them (up to 64 GPUs) instead of those that can be the worst.

    Raises:
        KeyError: the profile does not cover the strategy (ask :func:`covers` first).
    """
    if job.inference:
        from zerokit.memory.inference import estimate_serving

        return estimate_serving(profile, job, strategy, cluster)
    usable = usable_trace(profile, job, strategy)
    if usable is None:
        raise KeyError(Variant.of(job, strategy).key)
    variant, trace, adapters = usable
    engine, shared, sharing = engine_of(strategy.settings), strategy.sequence_parallel, list[Note]()
    if shared > 1:
        trace, how = engine.sharing_sequences(
            profile, trace, strategy.settings, shared, strategy.checkpointing != "none"
        )
        sharing.append(Note("shared-sequences", f"activations are of the sequence's share, {how}"))
    as_copy, base = job.defaults.reference_as, "base" if job.defaults.refers_in_step else ""
    reference = (as_copy if job.method == "full" else base) * job.defaults.reference
    stay = recomputed_weights_stay(job, strategy)
    kept_as = (job.kbit_prepared, reference, stay, job.optimizer_groups, job.defaults.compares)
    of_job = (adapters, job.loss, cluster.gpu.cublas_workspace_bytes, *kept_as)
    model = with_score_head(rank_model(profile, variant, trace, *of_job))
    checkpointed = _checkpointed(profile, job, strategy, usable) if needs_graphless(job) else (None, None)
    # views of experts, saved without checkpointing, add up over all layers, as does what is not released
    # before backward ends
    between = job.eval_batch is not None or job.defaults.completes
    adds_up = stay or reference == "base" or between or bool(profile.views and model.checkpointing == "none")
    kept = None if adds_up else engine.layers_kept(model, strategy.settings)
    if kept is not None:
        trace = trace.shortened(kept)
        checkpointed = tuple(one and one.shortened(kept) for one in checkpointed)
        model = with_score_head(rank_model(profile, variant, trace, *of_job))
    if strategy.pipeline_parallel > 1:
        return _pipeline(model, job, strategy, cluster, every_rank, adapters)
    timeline = timeline_of(model, job, strategy, cluster.gpu, *checkpointed)
    # the engine's own bytes are the same whatever the activations are
    events = trace.events(with_gradients=not strategy.settings.divides_weights)
    replayed = _replayed_ranks(
        with_score_head(rank_model(profile, variant, events, *of_job)),
        engine.settings_of_replay(strategy, cluster.gpu),
        Degrees.of(strategy, cluster),
        every_rank,
    )
    ranks, peak = _ranks(replayed, timeline)
    notes = (
        *_with_adapters(replayed.assumptions, adapters),
        *sharing,
        *_instead_notes(profile, variant, job, strategy),
    )
    notes = (*notes, *recomputed_notes(job, strategy))
    if peak < max(rank.peak_allocated_bytes for rank in ranks):
        notes = (*notes, FLATTENS_ON_GPU)
    if strategy.recomputed(job.attention) == "selective":
        notes = (*notes, SELECTIVE)
    host = dict(replayed.host)
    if job.offload_activations:
        tokens = tokens_of_a_rank(job, strategy)
        each = activation_copies(usable[1], sequences_of_a_rank(job, strategy), tokens)
        host[HostComponent.ACTIVATIONS.value] = each * replayed.degrees.per_node
    return MemoryEstimate(
        ranks=ranks,
        min_vram_bytes=card.min_vram_bytes(cluster.gpu, strategy, peak, job.defaults),
        host_bytes_per_node=sum(host.values()),
        host_components=host,
        nvme_bytes_per_node=replayed.nvme_bytes_per_node,
        assumptions=notes,
        basis=profile.basis,
    )


def timeline_of(
    model: RankModel,
    job: Job,
    strategy: Strategy,
    gpu: Gpu,
    of_reference: ActivationTrace | None = None,
    of_evaluation: ActivationTrace | None = None,
    of_generation: ActivationTrace | None = None,
) -> Timeline:
    """The activations of one micro-batch, with the job's loss; ``of_reference``, ``of_evaluation``,
    ``of_generation``: traces under checkpointing that passes without a graph are read from, where there are
    such."""
    point = sequences_of_a_rank(job, strategy), tokens_of_a_rank(job, strategy)
    timeline, size = model.trace.timeline(*point, gpu.processors), None
    copied = engine_of(strategy.settings).copied_logit_bytes(job, strategy)
    if model.loss != "standard":
        size = loss_size(model, *point, strategy.settings, gpu.supports("bf16"), job.scored_tokens)
        timeline = timeline if size is None else with_loss(model, timeline, size)
    elif copied and (head := loss_size(model, *point, strategy.settings, False)) is not None:
        timeline = _with_outputs(timeline, copied * head.tokens * head.vocabulary)
    if not needs_graphless(job):
        return timeline
    from zerokit.memory.graphless import with_evaluation, with_generation, with_reference

    if of_evaluation is not None and job.eval_batch is not None:
        sequences = job.eval_batch * job.defaults.sequences
        timeline = with_evaluation(
            model, of_evaluation, timeline, (sequences, point[1]), strategy.settings, gpu
        )
    if of_generation is not None and job.defaults.generates:
        timeline = with_generation(model, of_generation, timeline, job, strategy, gpu)
    if of_reference is None or not job.defaults.reference:
        return timeline
    if size is not None and model.copy_bytes:
        size = replace(size, element_bytes=model.copy_bytes)
    in_step = job.defaults.refers_in_step
    return with_reference(model, of_reference, timeline, point, size, gpu.processors, in_step=in_step)


@lru_cache(maxsize=512)
def _with_outputs(timeline: Timeline, size_bytes: int) -> Timeline:
    """The timeline where forward ends with so many bytes beside what backward needs."""
    return replace(timeline, forward_peak=max(timeline.forward_peak, timeline.after_forward + size_bytes))


def _checkpointed(
    profile: ModelProfile,
    job: Job,
    strategy: Strategy,
    usable: tuple[Variant, ActivationTrace, tuple[int, int] | None],
) -> tuple[ActivationTrace | None, ...]:
    """The traces with full checkpointing beside a usable one, of a reference model's pass, of an
    evaluation's and of a prompt's."""
    variant, tokens = usable[0], tokens_of_a_rank(job, strategy)
    if variant.checkpointing not in ("full", "reentrant"):
        variant = replace(variant, checkpointing="full")
    evaluated = (job.eval_batch or 0) * job.defaults.sequences
    wanted = (
        (variant, sequences_of_a_rank(job, strategy) * job.defaults.reference),
        (replace(variant, dropout=False), evaluated),
        (generating(job, variant), 2 * job.defaults.generates),
    )
    return tuple(profile.trace(one, tokens, count) if count else usable[1] for one, count in wanted)


def _instead_notes(profile: ModelProfile, variant: Variant, job: Job, strategy: Strategy) -> tuple[Note, ...]:
    """Where the stored trace of another variant stands for the job's: what differs."""
    wanted = Variant.of(job, strategy)
    notes = []
    if wanted.narrow_adapters and not variant.narrow_adapters:
        text = "adapters in fp32 are counted, where its trainer keeps them in 16 bits: this is more"
        notes.append(Note("fp32-adapters-counted", text))
    elif strategy.settings.zero_stage == 3 and job.method == "lora" and job.trainer == "raw":
        text = (
            "adapters are in fp32, as a model has them that is made under deepspeed.zero.Init, as a "
            "Trainer's is; one that is made without has them in 16 bits, and keeps less"
        )
        notes.append(Note("adapters-under-zero-init", text))
    if job.defaults.reference and wanted.zero3_linear and job.method != "full":
        text = "passes through the base keep ZeRO-3 from fetching ahead, which is counted: up to 16 % less"
        notes.append(Note("fetches-ahead-counted", text))
    if wanted.padding and not variant.padding:
        notes.append(UNPADDED)
    of_text = profile.hf_config.get("text_config", profile.hf_config)
    if job.fuses_adapters and (not variant.fused_adapters or has_other_layers(of_text)):
        notes.append(NOT_FUSED)
    if wanted.checkpointing != variant.checkpointing:
        text = "checkpointing is counted as not reentrant, where its trainer's is"
        notes.append(Note("not-reentrant-counted", text))
    return tuple(notes)


def _with_adapters(notes: tuple[Note, ...], adapters: tuple[int, int] | None) -> tuple[Note, ...]:
    if adapters is None:
        return notes
    text = f"activations of the adapters traced at rank {adapters[0]}, not {adapters[1]}"
    return (*notes, Note("adapters-of-other-rank", text))


def _pipeline(
    model: RankModel,
    job: Job,
    strategy: Strategy,
    cluster: Cluster,
    every_rank: bool,
    adapters: tuple[int, int] | None,
) -> MemoryEstimate:
    """Every stage as a model of its own; ranks in the order of ``PipeModelDataParallelTopology``."""
    from zerokit.memory.pipeline import stages

    settings, tokens = deepspeed(strategy.settings), tokens_of_a_rank(job, strategy)
    shared = engine_of(settings).settings_of_replay(strategy, cluster.gpu)
    degrees = Degrees.of(strategy, cluster)
    cut, peak = stages(model, strategy.pipeline_parallel), 0
    ranks: list[RankEstimate] = []
    host: dict[str, int] = {}
    sequences = sequences_of_a_rank(job, strategy)
    for stage in cut:
        timeline = stage.timeline(
            sequences, tokens, settings.gradient_accumulation, settings.parameter_bytes,
            cluster.gpu.processors,
        )  # fmt: skip
        if settings.zero.stage == 0 and settings.precision == "bf16":
            # BF16_Optimizer (runtime/bf16_optimizer.py:191): gradients of all micro-batches in a flat copy
            flat = stage.model.trainable_numel * ElementBytes.of(settings).accumulation
            timeline = timeline.raised(flat)
        replayed = _replayed_ranks(stage.model, shared, degrees, every_rank)
        offset = stage.index * degrees.world_size
        estimates, required = _ranks(replayed, timeline)
        peak = max(peak, required)
        ranks += (replace(r, first=r.first + offset, last=r.last + offset) for r in estimates)
        host = max(host, replayed.host, key=lambda components: sum(components.values()))
    described = ", ".join(f"{stage.layers[1] - stage.layers[0]}" for stage in cut)
    notes = (
        *_assumptions(model.profile, settings, degrees),
        Note(
            "pipeline-stages",
            f"pipeline stages of {described} layers, divided by parameters as PipelineModule does by "
            "default; embeddings on the first, head and loss on the last",
        ),
    )
    notes += (NO_EVALUATION,) if job.eval_batch else ()
    return MemoryEstimate(
        ranks=tuple(ranks),
        min_vram_bytes=card.min_vram_bytes(cluster.gpu, strategy, peak, job.defaults),
        host_bytes_per_node=sum(host.values()),
        host_components=host,
        nvme_bytes_per_node=0,
        assumptions=_with_adapters(notes, adapters),
        basis=model.profile.basis,
    )


@frozen_dataclass(slots=False, eq=False)
class _Replayed:
    """All that is the same for every micro-batch and sequence length."""

    model: RankModel
    settings: TrainingSettings
    degrees: Degrees
    every_rank: bool
    ranks: tuple[tuple[int, RankBytes], ...]
    flattens_on_gpu: bool
    host: dict[str, int]
    host_bytes_per_node: int
    nvme_bytes_per_node: int
    assumptions: tuple[Note, ...]


@lru_cache(maxsize=4096)
def _replayed_ranks(
    model: RankModel, settings: TrainingSettings, degrees: Degrees, every_rank: bool
) -> _Replayed:
    engine, ranks = engine_of(settings), degrees.ranks
    every = every_rank and degrees.world_size <= LIST_EVERY_RANK_UP_TO
    listed = engine.listed_ranks(model, settings, ranks, every=every)
    parts = engine.host_parts(model, settings, ranks, degrees.world_size, degrees.room, degrees.per_node)
    host = in_ram(parts, degrees.per_node)
    return _Replayed(
        model=model,
        settings=settings,
        degrees=degrees,
        every_rank=every_rank,
        ranks=tuple((r, engine.rank_bytes(model, settings, ranks, r)) for r in listed),
        flattens_on_gpu=engine.flattening_bytes(model, settings) <= degrees.room,
        host=host,
        host_bytes_per_node=sum(host.values()),
        nvme_bytes_per_node=on_nvme(parts, degrees.per_node),
        assumptions=_assumptions(model.profile, settings, degrees),
    )


def host_bytes_per_node(profile: ModelProfile, job: Job, strategy: Strategy, cluster: Cluster) -> int | None:
    """What :func:`estimate_traced` says of it, without the replay; ``None`` where only that can say."""
    if job.inference or job.offload_activations or strategy.pipeline_parallel > 1:
        return None
    usable = usable_trace(profile, job, strategy)
    if usable is None:
        return None
    variant, trace, adapters = usable
    model = rank_model(profile, variant, trace, adapters, job.loss, cluster.gpu.cublas_workspace_bytes)
    engine, degrees = engine_of(strategy.settings), Degrees.of(strategy, cluster)
    settings = engine.settings_of_replay(strategy, cluster.gpu)
    parts = engine.host_parts(
        model, settings, degrees.ranks, degrees.world_size, degrees.room, degrees.per_node
    )
    return sum(in_ram(parts, degrees.per_node).values())


def _assumptions(profile: ModelProfile, settings: TrainingSettings, degrees: Degrees) -> tuple[Note, ...]:
    traced = (
        f"activations traced from the model itself (transformers {profile.transformers_version}); "
        "the training loop keeps only the loss of a forward pass"
    )
    notes = [Note("traced", traced, "given"), *engine_of(settings).assumptions(settings)]
    return tuple(notes)


@lru_cache(maxsize=16384)
def _ranks(replayed: _Replayed, timeline: Timeline) -> tuple[tuple[RankEstimate, ...], int]:
    """(of all GPUs, the peak that the smallest card that does must hold); candidates that differ in nothing
    that moves memory share them."""
    estimates = tuple(
        rank_estimate(
            replayed.model, replayed.settings, replayed.degrees.ranks, timeline, rank, own,
            replayed.flattens_on_gpu,
        )
        for rank, own in replayed.ranks
    )  # fmt: skip
    required = max(
        max(own.init_peak, *(size for phase, size in estimate.phases.items() if phase != "init"))
        for estimate, (_, own) in zip(estimates, replayed.ranks, strict=True)
    )
    return _over_all_ranks(estimates, replayed), required


def _over_all_ranks(estimates: tuple[RankEstimate, ...], replayed: _Replayed) -> tuple[RankEstimate, ...]:
    """Entries for all GPUs: tensor-parallel peers are neighbours, and alike."""
    degrees, peers = replayed.degrees, replayed.degrees.peers
    if (
        replayed.every_rank
        and degrees.world_size <= LIST_EVERY_RANK_UP_TO
        and len(estimates) == degrees.ranks
    ):
        return tuple(
            replace(e, first=e.first * peers + peer, last=e.first * peers + peer)
            for e in estimates
            for peer in range(peers)
        )
    spread = []
    for position, estimate in enumerate(estimates):
        start = 0 if position == 0 else estimate.first
        stop = estimates[position + 1].first if position + 1 < len(estimates) else degrees.ranks
        spread.append(replace(estimate, first=start * peers, last=stop * peers - 1))
    return tuple(spread)
