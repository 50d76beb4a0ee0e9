"""Changes of the job: which make a plan faster, by how much, and which make one fit. The one list of them.

Each changes what is computed or what the script must do, so that none is chosen unasked: it is offered, with
the gain that a search with it finds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from zerokit.domain.hardware import Cluster
from zerokit.domain.job import Job
from zerokit.domain.strategy import REHEARSED, Candidate
from zerokit.memory.components import Component
from zerokit.memory.fused_loss import FUSED_LOSS_SAVES
from zerokit.notes import Note
from zerokit.search.explain import NOISE, gain_words, share_words, strategy_words
from zerokit.search.search import search
from zerokit.search.space import Request, Space, unmodelled_with_loss
from zerokit.timing.step_time import TimeModel
from zerokit.units import format_gib, format_seconds
from zerokit.values import frozen_dataclass, replace

_LARGE_SHARE = 0.15
"""Of the peak, from which the loss is worth a remark: a choice."""
_SHORTEST_SEQUENCE = 256
_EIGHT_BITS = "adamw_8bit"

Fastest = Callable[[Request, float], "Candidate | None"]
"""The plan of a request that steps within so many seconds; None: there is none."""


@frozen_dataclass
class Remedy:
    """A change of what was asked for.

    Attributes:
        title: the options that ask for it, with what the strategy ``s`` has of them.
        needs: what it changes, or what the script must do.
        where: whether a request can have it. made: the request with it.
        told: ``first``: results stay those of the job, so it stands on the first screen; ``explained``: it
            changes the numbers or what is trained; ``size``: how much is computed, or on how much;
            ``script``: how work is divided, which the script takes part in, and ``pipeline``, which it
            builds; ``adapters`` and ``nvme``: only what makes a plan fit.
    """

    title: str
    needs: str
    where: Callable[[Request], bool]
    made: Callable[[Request], Request]
    told: str = "explained"

    def change(self, request: Request) -> Request | None:
        """The request with it; None: it is so already, cannot be, or is not modelled."""
        made = self.made(request) if self.where(request) else request
        is_unknown = unmodelled_with_loss(made.job, made.shape, made.cluster, made.pins)
        return None if made == request or is_unknown else made

    def titled(self, candidate: Candidate) -> str:
        """Its title, of a strategy that was found with it."""
        return self.title.format(s=candidate.strategy)

    def is_used(self, candidate: Candidate) -> bool:
        """Whether a strategy takes it: a script that builds a pipeline may run without stages."""
        return self.told != "pipeline" or candidate.strategy.pipeline_parallel > 1


def _of_job(request: Request, **changes: object) -> Request:
    return replace(request, job=replace(request.job, **changes))


def _pinned(request: Request, **changes: object) -> Request:
    return replace(request, pins=replace(request.pins, **changes))


def _with_settings(request: Request, **changes: object) -> Request:
    return _pinned(request, settings=replace(request.pins.settings, **changes))


def _with_zero(request: Request, **changes: object) -> Request:
    return _with_settings(request, zero=replace(request.pins.settings.zero, **changes))


def _trains_with_adam(request: Request) -> bool:
    job = request.job
    return not (job.inference or request.cluster.on_cpu) and (job.optimizer or "").lower() in (
        "adam",
        "adamw",
    )


def _takes_settings(request: Request) -> bool:
    """Where weights have 16 bits and DeepSpeed makes an Adam."""
    return request.precision != "fp32" and _trains_with_adam(request)


def _is_reentrant(job: Job) -> bool:
    """Whether the job asks for it, or its trainer does."""
    asked = job.use_reentrant_checkpointing
    return job.defaults.reentrant if asked is None else asked


def _twice_the_gpus(request: Request) -> Request:
    cluster, gpus = request.cluster, 2 * request.cluster.gpus
    nodes = cluster.nodes if gpus // cluster.nodes <= cluster.gpu.max_gpus_per_node else 2 * cluster.nodes
    return replace(request, cluster=replace(cluster, gpus=gpus, nodes=nodes))


def _with_adapters(method: str) -> Remedy:
    return Remedy(
        title=f"⟨method⟩ {method}",
        needs="",
        where=lambda request: not request.job.inference and request.job.method not in ("qlora", method),
        made=lambda request: _of_job(request, method=method, lora=request.job.adapters, quantization="none"),
        told="adapters",
    )


def _shared_sequences(option: str, needs: str) -> Remedy:
    return Remedy(
        title=f"⟨{option}⟩ {{s.sequence_parallel}}",
        needs=f"needs {needs}",
        where=lambda request: (
            request.pins.sharing_option == option
            and request.cluster.gpus > 1
            and request.pins.sequence_parallel is None
        ),
        made=lambda request: _pinned(request, search_sequence=True),
        told="script",
    )


def _in_bits(kind: str) -> Remedy:
    return Remedy(
        title=f"⟨quant⟩ {kind}",
        needs="",
        where=lambda request: request.job.inference,
        made=lambda request: _of_job(request, quantization=kind),
        told="adapters",
    )


_FUSED_LOSS = Remedy(
    title="⟨loss⟩ chunked (TRL) or liger (Trainer)",
    needs="the script must fuse head and loss (use_liger_kernel), as TRL's SFTTrainer does",
    where=lambda request: not request.job.inference and request.job.loss == "standard",
    made=lambda request: _pinned(_of_job(request, loss="chunked"), search_tensor=False),
    told="first",
)
REMEDIES = (
    Remedy(
        title="⟨precision⟩ bf16",
        needs="multiplies in 16 bits beside fp32 master weights",
        where=lambda request: (
            request.precision == "fp32"
            and not request.cluster.on_cpu
            and request.cluster.gpu.supports("bf16")
        ),
        made=lambda request: replace(request, precision="bf16"),
        told="first",
    ),
    _FUSED_LOSS,
    Remedy(
        title=f"⟨optimizer⟩ {_EIGHT_BITS}",
        needs="keeps its states in 8 bits (bitsandbytes), which changes the numbers a little; the script "
        f"makes it (a Trainer's optim={_EIGHT_BITS})",
        # DeepSpeed offloads no optimizer that the script makes
        where=lambda request: _trains_with_adam(request) and request.pins.offload_optimizer in (None, "none"),
        made=lambda request: _of_job(request, optimizer=_EIGHT_BITS),
        told="first",
    ),
    Remedy(
        title="⟨set⟩ bf16_master_weights_and_grads,bf16_optimizer_states",
        needs="weights are updated in bf16, which drops updates below 1/256 of a weight",
        where=lambda request: (
            _takes_settings(request) and request.precision != "fp16" and request.cluster.gpu.supports("bf16")
        ),
        made=lambda request: _with_settings(
            request, bf16_master_weights_and_grads=True, bf16_optimizer_states=True
        ),
    ),
    Remedy(
        title="⟨set⟩ grad_accum_dtype=fp32",
        needs="gradients of micro-batches add up in fp32",
        where=_takes_settings,
        made=lambda request: _with_settings(request, grad_accum_dtype="fp32"),
    ),
    Remedy(
        title="⟨set⟩ zero_quantized_weights",
        needs="ZeRO++ sends weights in 8 bits, which rounds them",
        where=_takes_settings,
        made=lambda request: _with_zero(request, zero_quantized_weights=True),
    ),
    Remedy(
        title="⟨set⟩ zero_quantized_gradients",
        needs="ZeRO++ sends gradients in 4 bits, which rounds them",
        where=_takes_settings,
        made=lambda request: _with_zero(request, zero_quantized_gradients=True),
    ),
    Remedy(
        title="⟨engine⟩ fsdp2",
        needs="trains under PyTorch's FSDP2",
        where=lambda request: not request.cluster.on_cpu and request.pins.engine == "deepspeed",
        made=lambda request: _pinned(request, engine="fsdp2"),
        told="first",
    ),
    Remedy(
        title="⟨lora_dropout⟩ 0",
        needs="adapters without dropout",
        where=lambda request: request.job.lora is not None,
        made=lambda request: _of_job(request, lora=replace(request.job.lora, dropout=0.0)),
    ),
    Remedy(
        title="⟨reentrant⟩ off",
        needs="checkpoints that are not reentrant, so that ZeRO-3 lets go of frozen weights",
        where=lambda request: (
            request.job.keeps_recomputed and request.job.method != "full" and _is_reentrant(request.job)
        ),
        made=lambda request: _of_job(request, use_reentrant_checkpointing=False),
        told="first",
    ),
    Remedy(
        title="⟨eval_batch⟩ 1",
        needs="evaluates with one sequence at a time (per_device_eval_batch_size)",
        where=lambda request: (request.job.eval_batch or 1) > 1,
        made=lambda request: _of_job(request, eval_batch=1),
    ),
    Remedy(
        title="⟨vision_tower⟩ frozen",
        needs="trains the language model alone",
        where=lambda request: request.job.method == "full" and request.job.images is not None,
        made=lambda request: _of_job(request, images=replace(request.job.images, tower="frozen")),
    ),
    Remedy(
        title="⟨tp⟩ {s.tensor_parallel}",
        needs="peers must read the same batch, as they do in an Accelerate or Trainer script; a raw "
        "DeepSpeed script must ensure it",
        where=lambda request: request.cluster.gpus > 1 and request.pins.tensor_parallel is None,
        made=lambda request: _pinned(request, search_tensor=True),
        told="script",
    ),
    _shared_sequences("sp", "an Accelerate or Trainer script whose batches carry position_ids"),
    _shared_sequences("cp", "a Trainer script, or an Accelerate one that shares its batches"),
    Remedy(
        title="⟨pipeline_module⟩",
        needs="needs a script that builds a DeepSpeed PipelineModule",
        where=lambda request: (
            request.cluster.gpus > 1 and request.job.method == "full" and request.shape.head == "causal"
        ),
        made=lambda request: _pinned(request, pipeline_module=True),
        told="pipeline",
    ),
    *map(_in_bits, ("int8", "int4")),
    *map(_with_adapters, ("lora", "qlora")),
    Remedy(
        title="⟨nvme⟩ DIR (on a local NVMe disk of every node)",
        needs="",
        where=lambda request: not request.cluster.on_cpu and request.cluster.nvme_path is None,
        made=lambda request: replace(request, cluster=replace(request.cluster, nvme_path="/nvme")),
        told="nvme",
    ),
    Remedy(
        title="half of ⟨seq_len⟩",
        needs="shorter sequences",
        where=lambda request: (
            not (request.job.inference or request.job.images)
            and request.job.seq_len >= 2 * _SHORTEST_SEQUENCE
        ),
        made=lambda request: _of_job(request, seq_len=request.job.seq_len // 2),
        told="size",
    ),
    Remedy(
        title="twice the ⟨gpus⟩",
        needs="the same global batch",
        where=lambda request: (
            not request.cluster.on_cpu and (request.job.global_batch or 0) % (2 * request.cluster.gpus) == 0
        ),
        made=_twice_the_gpus,
        told="size",
    ),
)


@frozen_dataclass
class Gain:
    """What a remedy comes to. ``share``: tokens per second more, of those of the choice."""

    remedy: Remedy
    share: float
    candidate: Candidate

    @property
    def words(self) -> str:
        """``29% faster with ⟨optimizer⟩ adamw_8bit (ZeRO-3, …): what it takes``."""
        with_it = f"{self.remedy.titled(self.candidate)} ({strategy_words(self.candidate.strategy)})"
        return f"{share_words(self.share)} faster with {with_it}: {self.remedy.needs}"


def gains(
    request: Request, space: Space, chosen: Candidate, fastest: Fastest, told: tuple[str, ...]
) -> tuple[Gain, ...]:
    """What each remedy would gain in tokens per second, most first; those within the noise left out.

    Of a script that was rehearsed only how work is divided: it computes what it does, whatever is asked for.

    Args:
        told: the remedies that are asked for, by where they are told.
    """
    if not request.timed:
        return ()
    if chosen.memory.basis == REHEARSED:
        told = tuple(one for one in told if one in ("script", "pipeline"))
    asked = _of_job(request.for_remarks(), global_batch=space.global_batch)

    def all_gains() -> Iterator[Gain]:
        for remedy in REMEDIES:
            changed = remedy.change(asked) if remedy.told in told else None
            if changed is None:
                continue
            tokens = changed.job.seq_len / asked.job.seq_len
            candidate = fastest(changed, chosen.time.step_seconds * tokens / (1 + NOISE))
            if candidate is not None and remedy.is_used(candidate):
                share = chosen.time.step_seconds * tokens / candidate.time.step_seconds - 1
                yield Gain(remedy=remedy, share=share, candidate=candidate)

    return tuple(sorted(all_gains(), key=lambda gain: -gain.share))


def on_loss(space: Space, chosen: Candidate, told: tuple[Gain, ...]) -> tuple[Note, ...]:
    """What a fused loss would save, where the loss takes much of the peak and nothing is said of its time."""
    worst, job = chosen.memory.worst, space.job
    loss = worst.components.get(Component.LOSS, 0)
    is_large = loss > _LARGE_SHARE * worst.peak_allocated_bytes
    is_told = any(gain.remedy is _FUSED_LOSS for gain in told)
    if job.inference or job.loss != "standard" or not is_large or is_told:
        return ()
    saves = (
        f"would save up to {format_gib(loss * FUSED_LOSS_SAVES, 1)}: the loss over a vocabulary of "
        f"{space.shape.vocab:,} takes {format_gib(loss, 1)} of the peak"
    )
    fused: Job = replace(job, loss="chunked")
    with_what = unmodelled_with_loss(fused, space.shape, space.cluster, space.pins)
    if chosen.memory.basis == REHEARSED:
        text = f"a fused (chunked) cross-entropy in the script {saves}"
    elif with_what:
        text = f"a fused (chunked) cross-entropy {saves}; ⟨loss⟩ is not modelled with {with_what}"
    else:
        text = f"⟨loss⟩ chunked (TRL) or liger (Trainer) {saves}"
    return (Note("fused-loss", text, "advice"),)


_PACE = {
    "network": "the network",
    "link": "the link between GPUs",
    "launch": "the host, which launches as many kernels for a smaller batch per GPU,",
}
"""What makes fewer GPUs faster: of the bounds of a step, those that do not shrink with their number."""


def halves(cluster: Cluster) -> Iterator[Cluster]:
    """The cluster with half of its GPUs, a quarter and so on, on as few of its nodes as hold them."""
    gpus = cluster.gpus
    while gpus % 2 == 0:
        gpus //= 2
        least = -(-gpus // cluster.gpus_per_node)
        nodes = next(n for n in range(least, gpus + 1) if gpus % n == 0)
        if nodes > cluster.nodes:
            return
        yield replace(cluster, gpus=gpus, nodes=nodes)


def fastest_with_fewer(space: Space, best: Candidate) -> Space | None:
    """The space of those fewer GPUs that do the same global batch fastest; None: all of them do.

    ``best``: the fastest with all GPUs. Only links and launches make fewer GPUs faster, so
    nothing is asked where something else sets the pace.
    """
    if best.time.bound_by not in _PACE:
        return None
    fastest, seconds = None, best.time.step_seconds
    for cluster in halves(space.cluster):
        smaller = on_cluster(space, cluster)
        if smaller.timing.least_seconds(space.precision) > seconds:
            break  # and with half of these GPUs it only becomes more
        ranked = search(smaller, top=1, limit_seconds=seconds).ranked
        if ranked and ranked[0].time.step_seconds < seconds:
            fastest, seconds = smaller, ranked[0].time.step_seconds
    return fastest


def on_cluster(space: Space, cluster: Cluster) -> Space:
    """The same job and global batch on other GPUs."""
    time = space.timing
    timing = TimeModel(space.shape, space.job, cluster, time.stack, time.calibration, time.trainable)
    return replace(space, cluster=cluster, timing=timing)


def left_idle(best: Candidate, on_all: Candidate) -> str:
    """That the plan does not use all GPUs, what that gains, and how it would."""
    used, gpus = best.strategy.world_size, on_all.strategy.world_size
    verb = "is" if used == 1 else "are"
    return (
        f"{used} of the {gpus} GPUs {verb} used and {gpus - used} left idle, which is "
        f"{gain_words(best, on_all)} faster; ⟨all_gpus⟩ plans for all"
    )


def why_idle(on_all: Candidate) -> str:
    """Why not all GPUs are used, and what would give all of them work."""
    return (
        f"{_PACE[on_all.time.bound_by]} sets the pace of the best plan for all GPUs "
        f"({strategy_words(on_all.strategy)}, {format_seconds(on_all.time.step_seconds)} a step); "
        "a larger ⟨global_batch⟩ gives all of them work"
    )


def would_be_faster(best: Candidate, on_all: Candidate) -> str:
    """What a plan that uses all GPUs misses."""
    strategy, gpus = best.strategy, on_all.strategy.world_size
    return (
        f"{gain_words(best, on_all)} faster with {strategy.world_size} of the {gpus} GPUs "
        f"({strategy_words(strategy)}): {_PACE[on_all.time.bound_by]} sets the pace; then plan with "
        f"⟨gpus⟩ {strategy.world_size} ⟨global_batch⟩ {strategy.global_batch}"
    )
