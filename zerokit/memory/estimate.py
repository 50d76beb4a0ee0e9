"""Memory of a strategy from a model's profile: activations as traced, DeepSpeed as it allocates.

Every figure follows from tensor shapes and from DeepSpeed's source, but for the measured ones: those of
``card.py`` (around the tensors), ``host.py`` (a process) and ``replay/model_states.py`` (cuBLAS).
"""

from __future__ import annotations

from functools import lru_cache

from zerokit.domain.activations import ActivationTrace, Timeline
from zerokit.domain.deepspeed_settings import DEFAULT_ZERO, DeepSpeedSettings, ZeroSettings, deepspeed
from zerokit.domain.hardware import Cluster, Gpu
from zerokit.domain.job import Job
from zerokit.domain.profile import ModelProfile, Variant, sequences_of_a_rank, tokens_of_a_rank
from zerokit.domain.strategy import MemoryEstimate, RankEstimate, Strategy
from zerokit.memory import card
from zerokit.memory.adapter_dropout import with_dropout
from zerokit.memory.components import HostComponent, in_ram, on_nvme
from zerokit.memory.fused_loss import loss_size, with_loss, with_score_head
from zerokit.memory.host import activation_copies, host_components
from zerokit.memory.inference import estimate_serving, serving_traces
from zerokit.memory.pipeline import can_be_cut, stages
from zerokit.memory.rank_estimate import Degrees, rank_estimate
from zerokit.memory.rank_model import ElementBytes, RankModel, rank_model
from zerokit.memory.reference_pass import with_reference
from zerokit.memory.replay.model_states import flattening_bytes
from zerokit.memory.replay.partition import partition
from zerokit.memory.replay.step import RankBytes, rank_bytes
from zerokit.memory.sequence_parallel import exchange_of, with_exchanges, with_sequence_peers
from zerokit.notes import Note
from zerokit.values import frozen_dataclass, replace

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
CATALOGUE_LORA_RANK = 16
"""The rank at which the catalogue's profiles were traced."""


def covers(profile: ModelProfile, job: Job, strategy: Strategy) -> bool:
    """Whether the profile has what an estimate of this strategy needs."""
    if job.inference:
        return serving_traces(profile, job, strategy) is not None
    if not replayed(job, strategy):
        return False
    usable = usable_trace(profile, job, strategy)
    if usable is None or (strategy.pipeline_parallel > 1 and not can_be_cut(profile, usable[1])):
        return False
    return not job.defaults.reference or _checkpointed(profile, job, strategy, usable) is not None


def replayed(job: Job, strategy: Strategy) -> bool:
    """Whether a trace can serve to estimate training at all: what DeepSpeed does then is replayed."""
    settings = strategy.settings
    if strategy.pipeline_parallel > 1 and settings.divides_gradients:
        return False  # DeepSpeed's pipeline engine has no stage 2 or 3
    packed = job.packed_base_bytes is not None
    if packed and (settings.divides_weights or strategy.tensor_parallel > 1):
        return False  # DeepSpeed divides packed weights otherwise
    if settings.autocasts and not _autocast_covered(job, strategy):
        return False
    return not job.offload_activations or strategy.world_size == strategy.data_parallel


def _autocast_covered(job: Job, strategy: Strategy) -> bool:
    zero = deepspeed(strategy.settings).zero
    is_alone = strategy.tensor_parallel == strategy.pipeline_parallel == strategy.sequence_parallel == 1
    if zero.stage == 3:
        stays = zero.offload_optimizer.device == zero.offload_param.device == "none"
        return job.packed_base_bytes is None and is_alone and (stays or strategy.data_parallel > 1)
    is_plain_zero = zero.contiguous_gradients and zero.offload_optimizer.device == "none"
    return job.method == "full" and is_alone and is_plain_zero


def usable_trace(
    profile: ModelProfile, job: Job, strategy: Strategy
) -> tuple[Variant, ActivationTrace, tuple[int, int] | None] | None:
    """The variant to use, its trace, and (traced, wanted) LoRA rank where these differ: the widths
    of the adapters hardly move the activations, whose terms in the model's width dwarf them. The variant of a
    stored profile may be another than the job's: see :func:`_instead_notes`."""
    tokens, batch = tokens_of_a_rank(job, strategy), sequences_of_a_rank(job, strategy)
    variant, ranks = Variant.of(job, strategy), None
    trace, lora = profile.trace(variant, tokens, batch), None if job.method == "full" else job.lora
    if trace is None and variant.narrow_adapters:
        variant = replace(variant, narrow_adapters=False)
        trace = profile.trace(variant, tokens, batch)
    if trace is None and variant.checkpointing == "reentrant":
        variant = replace(variant, checkpointing="full")
        trace = profile.trace(variant, tokens, batch)
    if trace is None and lora is not None and lora.rank <= 4 * CATALOGUE_LORA_RANK:
        variant, ranks = replace(variant, lora_rank=CATALOGUE_LORA_RANK), (CATALOGUE_LORA_RANK, lora.rank)
        trace = profile.trace(variant, tokens, batch)
    if trace is None:
        return None
    if lora is not None and lora.dropout and not variant.autocast:  # under which what is left is cast again
        trace = with_dropout(profile, variant, trace)
    return variant, trace, ranks


@lru_cache(maxsize=2048)
def _shared_settings(settings: DeepSpeedSettings) -> DeepSpeedSettings:
    """The settings with all that DeepSpeed's own bytes do not depend on made equal."""
    zero = settings.zero
    if zero.stage == 0:  # no buckets
        zero = replace(zero, reduce_bucket_size=DEFAULT_ZERO.reduce_bucket_size)
    accumulation = min(settings.gradient_accumulation, 2)
    return replace(settings, micro_batch=1, gradient_accumulation=accumulation, zero=zero)


def _settings_of_replay(strategy: Strategy, cluster: Cluster) -> DeepSpeedSettings:
    settings = _shared_settings(deepspeed(strategy.settings))
    return settings if strategy.sequence_parallel == 1 else with_sequence_peers(settings, cluster.gpu)


def estimate_traced(
    profile: ModelProfile, job: Job, strategy: Strategy, cluster: Cluster, *, every_rank: bool = False
) -> MemoryEstimate:
    """Predicted memory per rank. Bytes.

    ``every_rank``: all of them (up to 64 GPUs) instead of those that can be the worst.

    Raises:
        KeyError: the profile does not cover the strategy (ask :func:`covers` first).
    """
    if job.inference:
        return estimate_serving(profile, job, strategy, cluster)
    usable = usable_trace(profile, job, strategy)
    if usable is None:
        raise KeyError(Variant.of(job, strategy).key)
    variant, trace, adapters = usable
    if strategy.sequence_parallel > 1:
        trace = _with_exchanges(profile, trace, strategy)
    reference = ("copy" if job.method == "full" else "base") if job.defaults.reference else ""
    of_job = (adapters, job.loss, cluster.gpu.cublas_workspace_bytes, job.kbit_prepared, reference)
    model = with_score_head(rank_model(profile, variant, trace, *of_job))
    checkpointed = _checkpointed(profile, job, strategy, usable) if job.defaults.reference else None
    # views of experts, saved without checkpointing, add up over all layers, as does what is never released
    adds_up = reference == "base" or (profile.views and model.checkpointing == "none")
    if strategy.settings.divides_weights and not adds_up:
        kept = _layers_kept(model, deepspeed(strategy.settings).zero)
        trace = trace.shortened(kept)
        checkpointed = None if checkpointed is None else checkpointed.shortened(kept)
        model = with_score_head(rank_model(profile, variant, trace, *of_job))
    if strategy.pipeline_parallel > 1:
        return _pipeline(model, job, strategy, cluster, every_rank, adapters)
    timeline = timeline_of(model, job, strategy, cluster.gpu, checkpointed)
    # DeepSpeed's own bytes are the same whatever the activations are
    events = trace.events(with_gradients=not strategy.settings.divides_weights)
    replayed = _replayed_ranks(
        with_score_head(rank_model(profile, variant, events, *of_job)),
        _settings_of_replay(strategy, cluster),
        Degrees.of(strategy, cluster),
        every_rank,
    )
    ranks, peak = _ranks(replayed, timeline)
    notes = (*_with_adapters(replayed.assumptions, adapters), *_instead_notes(variant, job, strategy))
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
    checkpointed: ActivationTrace | None = None,
) -> Timeline:
    """The activations of one micro-batch, with the job's loss; ``checkpointed``: the trace of a reference
    model's pass, if there is one."""
    point = sequences_of_a_rank(job, strategy), tokens_of_a_rank(job, strategy)
    timeline, size = model.trace.timeline(*point, gpu.processors), None
    if model.loss != "standard":
        size = loss_size(model, *point, strategy.settings.parameter_bytes, gpu.supports("bf16"))
        timeline = timeline if size is None else with_loss(model, timeline, size)
    if checkpointed is None:
        return timeline
    return with_reference(model, checkpointed, timeline, point, size, gpu.processors)


def _checkpointed(
    profile: ModelProfile,
    job: Job,
    strategy: Strategy,
    usable: tuple[Variant, ActivationTrace, tuple[int, int] | None],
) -> ActivationTrace | None:
    """The trace with full checkpointing beside a usable one."""
    variant = usable[0]
    if variant.checkpointing in ("full", "reentrant"):
        return usable[1]
    variant = replace(variant, checkpointing="full")
    return profile.trace(variant, tokens_of_a_rank(job, strategy), sequences_of_a_rank(job, strategy))


def _instead_notes(variant: Variant, job: Job, strategy: Strategy) -> tuple[Note, ...]:
    """Where the stored trace of another variant stands for the job's: what differs."""
    wanted = Variant.of(job, strategy)
    notes = []
    if wanted.narrow_adapters and not variant.narrow_adapters:
        text = "adapters in fp32 are counted, where its trainer keeps them in 16 bits: this is more"
        notes.append(Note("fp32-adapters-counted", text))
    if wanted.checkpointing != variant.checkpointing:
        text = "checkpointing is counted as not reentrant, where its trainer's is"
        notes.append(Note("not-reentrant-counted", text))
    return tuple(notes)


def _with_exchanges(profile: ModelProfile, trace: ActivationTrace, strategy: Strategy) -> ActivationTrace:
    exchange = exchange_of(profile, strategy.sequence_parallel, strategy.settings)
    if exchange is None:
        return trace
    return with_exchanges(trace, exchange, strategy.checkpointing != "none")


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
    settings, tokens = deepspeed(strategy.settings), tokens_of_a_rank(job, strategy)
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
        replayed = _replayed_ranks(stage.model, _settings_of_replay(strategy, cluster), degrees, every_rank)
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
    return MemoryEstimate(
        ranks=tuple(ranks),
        min_vram_bytes=card.min_vram_bytes(cluster.gpu, strategy, peak, job.defaults),
        host_bytes_per_node=sum(host.values()),
        host_components=host,
        nvme_bytes_per_node=0,
        assumptions=_with_adapters(notes, adapters),
        basis=model.profile.basis,
    )


def _layers_kept(model: RankModel, zero: ZeroSettings) -> int:
    """Layers at either end of a stack beyond which ZeRO-3 looks neither ahead nor back: what it gathers is
    decided within the reuse distance, and by how far it has fetched ahead. Each module of a layer fetches
    another bucket ahead, so that only the live-parameter limit ends it."""
    smallest = min(model.layer_numel.values(), default=1)
    ahead = max(zero.max_reuse_distance, zero.max_live_parameters)
    reach = ahead + zero.prefetch_bucket_size + zero.reduce_bucket_size
    return 1 << (-(-reach // max(1, smallest)) + 2 - 1).bit_length()  # few values, so that traces are shared


@frozen_dataclass(slots=False, eq=False)
class _Replayed:
    """All that is the same for every micro-batch and sequence length."""

    model: RankModel
    settings: DeepSpeedSettings
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
    model: RankModel, settings: DeepSpeedSettings, degrees: Degrees, every_rank: bool
) -> _Replayed:
    ranks = degrees.ranks
    alike = settings.zero.stage in (0, 3)  # every rank holds as much of every parameter
    every = every_rank and degrees.world_size <= LIST_EVERY_RANK_UP_TO and not alike
    listed = range(ranks) if every else _worst_ranks(model, settings, ranks)
    parts = _host_parts(model, settings, degrees)
    host = in_ram(parts, degrees.per_node)
    return _Replayed(
        model=model,
        settings=settings,
        degrees=degrees,
        every_rank=every_rank,
        ranks=tuple((r, rank_bytes(model, settings, ranks, r)) for r in listed),
        flattens_on_gpu=flattening_bytes(model, settings) <= degrees.room,
        host=host,
        host_bytes_per_node=sum(host.values()),
        nvme_bytes_per_node=on_nvme(parts, degrees.per_node),
        assumptions=_assumptions(model.profile, settings, degrees),
    )


def _host_parts(model: RankModel, settings: DeepSpeedSettings, degrees: Degrees) -> dict[HostComponent, int]:
    part = partition(model, 0, degrees.ranks, round_robin=settings.zero.round_robin_gradients)
    on_cpu = flattening_bytes(model, settings) > degrees.room
    return host_components(model, settings, part, degrees.ranks, degrees.world_size, flattens_on_cpu=on_cpu)


def host_bytes_per_node(profile: ModelProfile, job: Job, strategy: Strategy, cluster: Cluster) -> int | None:
    """What :func:`estimate_traced` says of it, without the replay; ``None`` where only that can say."""
    if job.inference or job.offload_activations or strategy.pipeline_parallel > 1:
        return None
    usable = usable_trace(profile, job, strategy)
    if usable is None:
        return None
    variant, trace, adapters = usable
    model = rank_model(profile, variant, trace, adapters, job.loss, cluster.gpu.cublas_workspace_bytes)
    settings = _settings_of_host(_settings_of_replay(strategy, cluster))
    return _host_bytes(model, settings, Degrees.of(strategy, cluster))


@lru_cache(maxsize=2048)
def _settings_of_host(settings: DeepSpeedSettings) -> DeepSpeedSettings:
    """The settings with the sizes of what is only on the GPU made equal."""
    zero = replace(
        settings.zero,
        reduce_bucket_size=DEFAULT_ZERO.reduce_bucket_size,
        allgather_bucket_size=DEFAULT_ZERO.allgather_bucket_size,
        prefetch_bucket_size=DEFAULT_ZERO.prefetch_bucket_size,
        max_reuse_distance=DEFAULT_ZERO.max_reuse_distance,
        overlap_comm=DEFAULT_ZERO.overlap_comm,
    )
    return replace(settings, zero=zero)


@lru_cache(maxsize=2048)
def _host_bytes(model: RankModel, settings: DeepSpeedSettings, degrees: Degrees) -> int:
    return sum(in_ram(_host_parts(model, settings, degrees), degrees.per_node).values())


def _assumptions(profile: ModelProfile, settings: DeepSpeedSettings, degrees: Degrees) -> tuple[Note, ...]:
    traced = (
        f"activations traced from the model itself (transformers {profile.transformers_version}); "
        "the training loop keeps only the loss of a forward pass"
    )
    notes = [Note("traced", traced, "given")]
    if degrees.sequence_parallel > 1:
        is_known = exchange_of(profile, degrees.sequence_parallel, settings) is not None
        text = "sequence parallel: activations of the sequence's share, Ulysses' exchanges "
        text += "of q, k, v and context counted" if is_known else "left out: the model's heads are not known"
        notes.append(Note("ulysses-exchanges", text))
    return tuple(notes)


@lru_cache(maxsize=256)
def _worst_ranks(model: RankModel, settings: DeepSpeedSettings, ranks: int) -> tuple[int, ...]:
    """Ranks that can have the highest peak: partitions differ in the whole parameters they touch.

    The last holds what backward finishes first; the one with the most whole parameters peaks in the step.
    """
    if settings.zero.stage in (0, 3) or ranks == 1:
        return (0,)
    round_robin = settings.zero.round_robin_gradients
    heaviest = max(
        range(ranks), key=lambda rank: partition(model, rank, ranks, round_robin=round_robin).whole
    )
    return tuple(sorted({0, heaviest, ranks - 1}))


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
