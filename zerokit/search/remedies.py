"""Changes of the job: which make a plan faster, by how much, and which make one fit. The one list of them.

Each changes what is computed or what the script must do, so that none is chosen unasked: it is offered, with
the gain that a search with it finds.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator

from zerokit.domain.client_optimizers import client_optimizer
from zerokit.domain.hardware import Cluster
from zerokit.domain.job import Job
from zerokit.domain.strategy import REHEARSED, Candidate
from zerokit.memory.components import Component
from zerokit.memory.fused_loss import FUSED_LOSS_SAVES
from zerokit.notes import Note
from zerokit.search.close_calls import NOISE
from zerokit.search.explain import gain_words, share_words, strategy_words
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
        change: the request with it; None: it is so already, or is not modelled here.
        told: ``first``: results stay those of the job, so it stands on the first screen; ``explained``: it
            changes the numbers or what is trained; ``size``: how much is computed, or on how much;
            ``script``: how work is divided, which the script takes part in, and ``pipeline``, which it
            builds; ``adapters`` and ``nvme``: only what makes a plan fit.
    """

    title: str
    needs: str
    change: Callable[[Request], Request | None]
    told: str = "explained"

    def titled(self, candidate: Candidate) -> str:
        """Its title, of a strategy that was found with it."""
        return self.title.format(s=candidate.strategy)

    def is_used(self, candidate: Candidate) -> bool:
        """Whether a strategy takes it: a script that builds a pipeline may run without stages."""
        return self.told != "pipeline" or candidate.strategy.pipeline_parallel > 1


def _of_job(request: Request, **changes: object) -> Request:
    return replace(request, job=replace(request.job, **changes))


def _with_settings(request: Request, **changes: object) -> Request | None:
    """With other values of DeepSpeed's settings, where weights have 16 bits and DeepSpeed makes an Adam."""
    job, pins = request.job, request.pins
    is_adam = (job.optimizer or "").lower() in ("adam", "adamw")
    if job.inference or request.cluster.on_cpu or request.precision == "fp32" or not is_adam:
        return None
    settings = replace(pins.settings, **changes)
    return None if settings == pins.settings else replace(request, pins=replace(pins, settings=settings))


def _with_zero(request: Request, **changes: object) -> Request | None:
    return _with_settings(request, zero=replace(request.pins.settings.zero, **changes))


def _bf16_states(request: Request) -> Request | None:
    if not request.cluster.gpu.supports("bf16") or request.precision == "fp16":
        return None
    return _with_settings(request, bf16_master_weights_and_grads=True, bf16_optimizer_states=True)


def _fused_loss(request: Request) -> Request | None:
    if request.job.inference or request.job.loss != "standard":
        return None
    pins = replace(request.pins, search_tensor=False)
    return _if_modelled(replace(_of_job(request, loss="chunked"), pins=pins))


def _eight_bits(request: Request) -> Request | None:
    job, pins = request.job, request.pins
    if job.inference or request.cluster.on_cpu or (job.optimizer or "").lower() not in ("adam", "adamw"):
        return None
    if pins.offload_optimizer not in (None, "none"):
        return None  # DeepSpeed offloads no optimizer that the script makes
    return _of_job(request, optimizer=_EIGHT_BITS) if client_optimizer(_EIGHT_BITS) else None


def _sixteen_bits(request: Request) -> Request | None:
    is_slower = request.cluster.on_cpu or not request.cluster.gpu.supports("bf16")
    return None if request.precision != "fp32" or is_slower else replace(request, precision="bf16")


def _half_as_long(request: Request) -> Request | None:
    job = request.job
    if job.inference or job.images is not None or job.seq_len < 2 * _SHORTEST_SEQUENCE:
        return None
    return _of_job(request, seq_len=job.seq_len // 2)


def _under_fsdp2(request: Request) -> Request | None:
    is_other = request.cluster.on_cpu or request.pins.engine != "deepspeed"
    return None if is_other else replace(request, pins=replace(request.pins, engine="fsdp2"))


def _without_dropout(request: Request) -> Request | None:
    lora = request.job.lora
    return _of_job(request, lora=replace(lora, dropout=0.0)) if lora is not None and lora.dropout else None


def _frozen_tower(request: Request) -> Request | None:
    images = request.job.images
    if request.job.method != "full" or images is None or images.tower == "frozen":
        return None
    return _of_job(request, images=replace(images, tower="frozen"))


def _twice_the_gpus(request: Request) -> Request | None:
    cluster, batch = request.cluster, request.job.global_batch
    gpus = 2 * cluster.gpus
    if request.cluster.on_cpu or (batch is not None and batch % gpus):
        return None
    nodes = cluster.nodes if gpus // cluster.nodes <= cluster.gpu.max_gpus_per_node else 2 * cluster.nodes
    return replace(request, cluster=replace(cluster, gpus=gpus, nodes=nodes))


def _divided(request: Request, degree: str, search: str) -> Request | None:
    """With a degree searched that the script takes part in; None: it is fixed, or searched already."""
    pins = request.pins
    if request.cluster.gpus < 2 or getattr(pins, degree) is not None or getattr(pins, search):
        return None
    return _if_modelled(replace(request, pins=replace(pins, **{search: True})))


def _if_modelled(request: Request) -> Request | None:
    is_unknown = unmodelled_with_loss(request.job, request.shape, request.cluster, request.pins)
    return None if is_unknown else request


def _in_stages(request: Request) -> Request | None:
    pins, is_causal = request.pins, request.shape.head == "causal"
    if request.cluster.gpus < 2 or pins.pipeline_module or request.job.method != "full" or not is_causal:
        return None
    return _if_modelled(replace(request, pins=replace(pins, pipeline_module=True)))


def _with_adapters(method: str, request: Request) -> Request | None:
    job = request.job
    if job.inference or job.method in ("qlora", method):
        return None
    return _of_job(request, method=method, lora=job.adapters, quantization="none")


def _in_bits(kind: str, request: Request) -> Request | None:
    is_other = request.job.inference and request.job.quantization != kind
    return _of_job(request, quantization=kind) if is_other else None


def _on_nvme(request: Request) -> Request | None:
    if request.cluster.nvme_path is not None or request.cluster.on_cpu:
        return None
    return replace(request, cluster=replace(request.cluster, nvme_path="/nvme"))


REMEDIES = (
    Remedy(
        title="⟨precision⟩ bf16",
        needs="multiplies in 16 bits beside fp32 master weights",
        change=_sixteen_bits,
        told="first",
    ),
    Remedy(
        title="⟨loss⟩ chunked (TRL) or liger (Trainer)",
        needs="the script must fuse head and loss (use_liger_kernel), as TRL's SFTTrainer does",
        change=_fused_loss,
        told="first",
    ),
    Remedy(
        title="⟨attention⟩ sdpa",
        needs="fused kernels, which keep no scores",
        change=lambda request: (
            _of_job(request, attention="sdpa") if request.job.attention == "eager" else None
        ),
        told="first",
    ),
    Remedy(
        title=f"⟨optimizer⟩ {_EIGHT_BITS}",
        needs="keeps its states in 8 bits (bitsandbytes), which changes the numbers a little; the script "
        f"makes it (a Trainer's optim={_EIGHT_BITS})",
        change=_eight_bits,
        told="first",
    ),
    Remedy(
        title="⟨set⟩ bf16_master_weights_and_grads,bf16_optimizer_states",
        needs="weights are updated in bf16, which drops updates below 1/256 of a weight",
        change=_bf16_states,
    ),
    Remedy(
        title="⟨set⟩ grad_accum_dtype=fp32",
        needs="gradients of micro-batches add up in fp32",
        change=lambda request: _with_settings(request, grad_accum_dtype="fp32"),
    ),
    Remedy(
        title="⟨set⟩ zero_quantized_weights",
        needs="ZeRO++ sends weights in 8 bits, which rounds them",
        change=lambda request: _with_zero(request, zero_quantized_weights=True),
    ),
    Remedy(
        title="⟨set⟩ zero_quantized_gradients",
        needs="ZeRO++ sends gradients in 4 bits, which rounds them",
        change=lambda request: _with_zero(request, zero_quantized_gradients=True),
    ),
    Remedy(
        title="⟨engine⟩ fsdp2",
        needs="trains under PyTorch's FSDP2",
        change=_under_fsdp2,
        told="first",
    ),
    Remedy(title="⟨lora_dropout⟩ 0", needs="adapters without dropout", change=_without_dropout),
    Remedy(title="⟨vision_tower⟩ frozen", needs="trains the language model alone", change=_frozen_tower),
    Remedy(
        title="⟨tp⟩ {s.tensor_parallel}",
        needs="peers must read the same batch, as they do in an Accelerate or Trainer script; a raw "
        "DeepSpeed script must ensure it",
        change=lambda request: _divided(request, "tensor_parallel", "search_tensor"),
        told="script",
    ),
    Remedy(
        title="⟨sp⟩ {s.sequence_parallel}",
        needs="needs an Accelerate or Trainer script whose batches carry position_ids",
        change=lambda request: _divided(request, "sequence_parallel", "search_sequence"),
        told="script",
    ),
    Remedy(
        title="⟨pipeline_module⟩",
        needs="needs a script that builds a DeepSpeed PipelineModule",
        change=_in_stages,
        told="pipeline",
    ),
    *(
        Remedy(title=f"⟨{option}⟩ {kind}", needs="", change=functools.partial(change, kind), told="adapters")
        for option, kinds, change in (
            ("quant", ("int8", "int4"), _in_bits),
            ("method", ("lora", "qlora"), _with_adapters),
        )
        for kind in kinds
    ),
    Remedy(title="⟨nvme⟩ DIR (on a local NVMe disk of every node)", needs="", change=_on_nvme, told="nvme"),
    Remedy(title="half of ⟨seq_len⟩", needs="shorter sequences", change=_half_as_long, told="size"),
    Remedy(title="twice the ⟨gpus⟩", needs="the same global batch", change=_twice_the_gpus, told="size"),
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
    is_told = any(gain.remedy.change is _fused_loss for gain in told)
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
