"""Reasons in words: why a strategy won, what bounds it, and what would help. Numbers support each."""

from __future__ import annotations

from collections.abc import Sequence

from zerokit.domain.deepspeed_settings import deepspeed
from zerokit.domain.hardware import DEFAULT_MARGIN, Cluster, Gpu
from zerokit.domain.model_shape import ModelShape
from zerokit.domain.strategy import BOUNDS, REHEARSED, Candidate, MemoryEstimate, Strategy
from zerokit.domain.strategy import label as label_of_time
from zerokit.errors import MemoryUnknown
from zerokit.memory.components import Component, label
from zerokit.notes import Note
from zerokit.search.engines import engine_of
from zerokit.search.search import HOST_REASON, SearchResult, search
from zerokit.search.space import Request, Space
from zerokit.timing.ranges import measured_on_no_machine, step_range, turned_by
from zerokit.timing.step_time import TimeModel
from zerokit.units import GIB, counted, format_gib, format_seconds, told_apart
from zerokit.values import replace

_SAME_MEMORY_BYTES = GIB // 20  # sizes here are shown to a tenth of a GiB
_AS_FAST = 0.0005  # of a step: paces are shown to a tenth of a per cent
_IN_NOISE = ", less than the runs of one plan differ by"
"""Of what is faster than a choice, which is the simpler of the two."""
_MOSTLY = 0.5  # of the time that a strategy takes longer, from which one part of it is the reason
_WORTH_NAMING_SHARE = 0.1
"""Of a difference in memory, from which a part of it is named: a choice."""
_WORTH_SAYING_SHARE = 0.01
"""Of a step, from which the time that the allocator's retries take is worth a remark: a choice."""


def gpu_words(gpu: Gpu) -> str:
    """Its name; ``14.9 GiB GPU`` where only its memory was given."""
    return f"{format_gib(gpu.driver_vram_bytes, 1)} GPU" if gpu.stands_in else gpu.name


def cluster_words(cluster: Cluster) -> str:
    """``8 × h100-sxm-80gb (79.6 GiB each) on 2 nodes of 4``; ``2 CPU ranks``."""
    each = " each" if cluster.gpus > 1 else ""
    if cluster.on_cpu:
        ranks = counted(cluster.gpus, "CPU rank")
        return f"{ranks} ({format_gib(cluster.gpu.driver_vram_bytes, 1)}{each})"
    nodes = f" on {cluster.nodes} nodes of {cluster.gpus_per_node}" if cluster.nodes > 1 else ""
    assumed = "assumed, " if cluster.gpu_assumed else ""
    if cluster.gpu.stands_in:
        return f"{cluster.gpus} × {gpu_words(cluster.gpu)}{nodes}"
    per_gpu = f"{assumed}{format_gib(cluster.gpu.driver_vram_bytes, 1)}{each}"
    return f"{cluster.gpus} × {cluster.gpu.name} ({per_gpu}){nodes}"


def strategy_words(strategy: Strategy) -> str:
    """One line: stage, offload, degrees, micro-batch, checkpointing."""
    settings = strategy.settings
    words = [settings.title, *offload_words(strategy)]
    words += degree_words(strategy, ("tensor", "pipeline", "sequence", "data"))
    words.append(f"micro-batch {settings.micro_batch}")
    if settings.gradient_accumulation > 1:
        words.append(f"accumulation {settings.gradient_accumulation}")
    return ", ".join([*words, checkpointing_words(strategy)])


def offload_words(strategy: Strategy) -> list[str]:
    """``optimizer offload to cpu``, ``weight offload to nvme``; empty where all stays on the GPU."""
    settings = strategy.settings
    devices = (("optimizer", settings.optimizer_device), ("weight", settings.weights_device))
    return [f"{what} offload to {device}" for what, device in devices if device != "none"]


def degree_words(strategy: Strategy, names: Sequence[str]) -> list[str]:
    """``tensor parallel 2`` and so on, of those that divide anything."""
    sequence = "context" if strategy.engine == "fsdp2" else "sequence"
    degrees = ((name, getattr(strategy, f"{name}_parallel")) for name in names)
    named = [(sequence if name == "sequence" else name, degree) for name, degree in degrees]
    return [f"{name} parallel {degree}" for name, degree in named if degree > 1]


def checkpointing_words(strategy: Strategy) -> str:
    """``full checkpointing``."""
    return f"{'no' if strategy.checkpointing == 'none' else strategy.checkpointing} checkpointing"


def bound_words(candidate: Candidate) -> str:
    """What takes most of the step: ``the GPUs' compute (82 % of the step)``."""
    time = candidate.time
    share = time.parts.get(time.bound_by, 0.0) / time.step_seconds if time.step_seconds else 0.0
    return f"{BOUNDS[time.bound_by]} ({share:.0%} of the step)"


def gain_words(best: Candidate, other: Candidate) -> str:
    """By how much the first is faster: whole per cent, with a decimal where they are few."""
    return share_words(other.time.step_seconds / best.time.step_seconds - 1)


def share_words(gain: float) -> str:
    """A gain in whole per cent, with a decimal where they are few."""
    if gain < _AS_FAST:
        return "less than 0.1%"
    return f"{gain:.0%}" if gain >= 0.1 else f"{gain:.1%}"


def pace_words(slower: float) -> str:
    """By how much a strategy is slower, as a fraction of the other's step: ``2.4% slower``, ``as fast``."""
    if abs(slower) < _AS_FAST:
        return "as fast"
    return f"{slower:.1%} slower" if slower > 0 else f"{-slower:.1%} faster"


def why(chosen: Candidate, others: Sequence[Candidate], cluster: Cluster) -> str:
    """Why this strategy won."""
    free = cluster.gpu.driver_vram_bytes - chosen.memory.min_vram_bytes
    needed = format_gib(chosen.memory.min_vram_bytes, 1)
    text = f"{strategy_words(chosen.strategy)}: requires {needed} of each {_unit(cluster)}'s "
    text += f"{format_gib(cluster.gpu.driver_vram_bytes, 1)} ({format_gib(free, 1)} headroom)"
    if cluster.on_cpu:
        return text + "; the least work of all that fit"
    text += f", {format_seconds(chosen.time.step_seconds)} a step, bound by {bound_words(chosen)}"
    if others:
        slower = others[0].time.step_seconds / chosen.time.step_seconds - 1
        words = strategy_words(others[0].strategy)
        if slower < 0:
            text += f"; {words} is {pace_words(slower)}{_IN_NOISE}"
        else:
            text += f"; the next best, {words}, is {pace_words(slower)}{_by_retries(others[0], chosen)}"
    return text


def _by_retries(other: Candidate, chosen: Candidate) -> str:
    """Where a strategy that fits is slower for want of headroom alone; empty: for other reasons."""
    lost = other.time.step_seconds - chosen.time.step_seconds
    seconds = other.time.parts.get("retries", 0.0)
    more = seconds - chosen.time.parts.get("retries", 0.0)
    if lost < _AS_FAST * chosen.time.step_seconds or more < _MOSTLY * lost:
        return ""
    return f" (less headroom: PyTorch's allocator retries, {format_seconds(seconds)} of each step)"


def runner_up(other: Candidate, chosen: Candidate, cluster: Cluster) -> str:
    """What an alternative costs and saves against the choice."""
    saved = chosen.memory.min_vram_bytes - other.memory.min_vram_bytes
    kind = "memory" if cluster.on_cpu else "GPU memory"
    memory = f"{format_gib(abs(saved), 1)} {'less' if saved > 0 else 'more'} {kind} than the choice"
    if abs(saved) < _SAME_MEMORY_BYTES:
        memory = f"as much {kind} as the choice"
    if cluster.on_cpu:
        return f"{strategy_words(other.strategy)}: {memory}"
    slower = other.time.step_seconds / chosen.time.step_seconds - 1
    pace = pace_words(slower)
    if chosen.memory.basis == REHEARSED != other.memory.basis:
        pace = f"not rehearsed, estimated {pace}"
    elif slower < 0:
        pace += _IN_NOISE
    pace += _by_retries(other, chosen)
    return f"{strategy_words(other.strategy)}: {pace}, {memory}; bound by {bound_words(other)}"


def lack_words(nearest: Candidate, cluster: Cluster) -> str:
    """By how much the closest candidate misses, on the GPU and on the host."""
    needed, available = nearest.memory.min_vram_bytes, cluster.gpu.driver_vram_bytes
    required, of = told_apart(needed, available) if needed > available else (format_gib(needed, 1), "")
    on_gpu = f"{required} per {_unit(cluster)}"
    if needed > available:
        is_close = of != format_gib(available, 1)
        on_gpu = f"{required} of {of} per {_unit(cluster)}" if is_close else on_gpu
        on_gpu += f", {format_gib(needed - available, 1)} too much"
    host = host_lack_words(nearest.memory, cluster)
    joined = (", and " if needed > available else " and ") + host if host else ""
    in_32_bits = ", fp32" if nearest.strategy.settings.precision == "fp32" and _unit(cluster) == "GPU" else ""
    words = f"{strategy_words(nearest.strategy)}{in_32_bits}"
    return f"the closest strategy requires {on_gpu}{joined} ({words})"


def host_lack_words(memory: MemoryEstimate, cluster: Cluster) -> str:
    """``181.0 GiB of host memory per node, where there are 96.0 GiB``; empty where there is enough."""
    required, limit = memory.host_bytes_per_node, cluster.host_limit_bytes
    if limit is None or required <= limit:
        return ""
    shown, available = told_apart(required, limit)
    known = f"there are {available}" if cluster.host_ram_bytes is not None else f"{available} are assumed"
    return f"{shown} of host memory per node, where {known}"


def _unit(cluster: Cluster) -> str:
    """What a rank has to itself."""
    return "CPU rank" if cluster.on_cpu else "GPU"


def advise(space: Space, chosen: Candidate, on_loss: Sequence[Note] = ()) -> tuple[Note, ...]:
    """Remarks that the figures of this plan support, those on its loss among them."""
    advice = [*on_loss]
    tight = _tight_advice(chosen, space.cluster)  # after the loss, which is a way out of it
    advice = [*advice, *tight] if tight else [*unsure_near_limit(space, chosen), *advice]
    if chosen.time.bound_by == "launch" and not space.cluster.on_cpu:
        text = (
            f"torch.compile, or a micro-batch above {chosen.strategy.settings.micro_batch}, would help: "
            "kernel launches bound the step, and both make kernels fewer and larger"
        )
        advice.append(Note("launch-bound", text, "advice"))
    return (*advice, *_idle_advice(space, chosen), *_stage_advice(space, chosen))


def _idle_advice(space: Space, chosen: Candidate) -> list[Note]:
    """Where the GPUs reach next to nothing of what they could: what keeps them waiting."""
    time, strategy, job, cluster = chosen.time, chosen.strategy, space.job, space.cluster
    if job.inference or cluster.on_cpu:
        return []
    tokens = strategy.global_batch * job.seq_len
    peaks = cluster.gpu.peak_flops
    peak = peaks.get(strategy.settings.precision) or max(peaks.values())
    per_weight = _FLOPS_A_WEIGHT if job.method == "full" else _FLOPS_A_FROZEN_WEIGHT
    share = per_weight * space.shape.matmul_parameters * tokens / time.step_seconds / cluster.gpus / peak
    if share >= _IDLE_SHARE:
        return []
    part = time.parts.get(time.bound_by, 0.0) / time.step_seconds
    remedy = _REMEDIES.get(time.bound_by, "")
    if time.bound_by == "launch" and cluster.gpus > 1:
        remedy = "; a model or batch so small is better trained on fewer GPUs"
    text = (
        f"the GPUs reach {share:.1%} of their peak: {part:.0%} of the step goes to "
        f"{label_of_time(time.bound_by)}{remedy}"
    )
    return [Note("idle-gpus", text, "advice")]


_IDLE_SHARE = 0.05
"""Of the datasheet's rate, below which a plan says so."""
_FLOPS_A_WEIGHT, _FLOPS_A_FROZEN_WEIGHT = 6, 4
"""Of a token: two in forward, four in backward (arXiv 2001.08361, section 2.1), of which two are for the
weight's gradient."""
_REMEDIES = {
    "network": "; a larger ⟨global_batch⟩ sends the same gradients less often, fewer nodes send less",
    "link": "; a larger ⟨global_batch⟩ sends the same gradients less often",
    "pcie": "; more GPUs or GPU memory would make offload unnecessary",
    "host": "; more GPUs or GPU memory would make offload unnecessary",
    "nvme": "; more host memory would make NVMe unnecessary",
}


def _tight_advice(chosen: Candidate, cluster: Cluster) -> list[Note]:
    """Where a plan fits, but so narrowly that the allocator has to give memory back and map it again."""
    seconds, step = chosen.time.parts.get("retries", 0.0), chosen.time.step_seconds
    if seconds < _WORTH_SAYING_SHARE * step:
        return []
    headroom = cluster.gpu.driver_vram_bytes - chosen.memory.min_vram_bytes
    text = (
        f"only {format_gib(headroom, 1)} headroom: PyTorch's allocator retries, about "
        f"{format_seconds(seconds)} a step: it gives memory back and maps it again, which the speed counts. "
        "Strategies with more headroom are slower still: `zerokit tune` measures them"
    )
    return [Note("tight", text, "advice")]


LAYERS_NEAR_LIMIT = 10.2
"""Layers' gathered weights for which a plan leaves room, up to which its time is unsure.

Of llm-foundry's FSDP runs with full checkpointing (``python -m benchmarks.planner``) the nine with room for
so few took 19 to 49 % longer than predicted, the other 69 at most 15 %. Likely why: an allocator gives what
one stream freed to no other before it gives all back, and gathered weights are the largest of its blocks.
"""
_16_BIT = 2
_LONGER = "19 to 49 % longer than predicted"


def layers_of_room(memory: MemoryEstimate, shape: ModelShape, cluster: Cluster) -> float:
    """How many layers' gathered 16-bit weights the headroom holds; below 0 where nothing is left."""
    room = cluster.gpu.driver_vram_bytes - memory.min_vram_bytes
    return room / (_16_BIT * max(stack.layer_parameters for stack in shape.stacks))


def unsure_near_limit(of: Space | Request, candidate: Candidate) -> list[Note]:
    """That a time is unsure where full checkpointing under ZeRO-3 leaves room for few gathered layers.

    Nothing where the strategy ran, and nothing of experts, adapters and CPU ranks: no such run was compared.
    """
    strategy, time = candidate.strategy, candidate.time
    if (
        not strategy.settings.divides_weights
        or strategy.data_parallel == 1
        or strategy.checkpointing != "full"
        or of.job.method != "full"
        or of.shape.experts > 1
        or time.step_seconds_range is None
    ):
        return []
    layers = layers_of_room(candidate.memory, of.shape, of.cluster)
    if not 0 <= layers <= LAYERS_NEAR_LIMIT:
        return []
    room = format_gib(of.cluster.gpu.driver_vram_bytes - candidate.memory.min_vram_bytes, 1)
    text = (
        f"the time is unsure so near the GPU's limit: {room} of headroom hold the gathered weights of "
        f"{layers:.1f} layers, and published FSDP runs with room for about ten or fewer took {_LONGER}; "
        "`zerokit tune` compares with a smaller batch"
    )
    short = f"The time is unsure so near the GPU's limit: published runs took {_LONGER}"
    return [Note("near-limit", text, "advice", short=short)]


def _stage_advice(space: Space, chosen: Candidate) -> list[Note]:
    """Where a higher stage would cost memory instead of saving it."""
    strategy, settings, job = chosen.strategy, chosen.strategy.settings, space.job
    if (
        settings.zero_stage in (None, 3)
        or job.inference
        or settings.optimizer_device != "none"
        or strategy.pipeline_parallel > 1
    ):
        return []
    own = deepspeed(settings)
    higher = replace(own, zero=replace(own.zero, stage=3, overlap_comm=None))
    try:
        with_stage = space.memory.known()(job, replace(strategy, settings=higher), space.cluster)
    except MemoryUnknown:
        return []
    more = with_stage.worst.peak_allocated_bytes - chosen.memory.worst.peak_allocated_bytes
    if more < _SAME_MEMORY_BYTES:
        return []
    parts, others = _by_part(with_stage), _by_part(chosen.memory)
    differences = {part: parts.get(part, 0) - others.get(part, 0) for part in parts | others}
    told = [
        f"{size / GIB:+.1f} GiB of {label(part)}".replace("-", "−")
        for part, size in sorted(differences.items(), key=lambda item: -item[1])
        if abs(size) >= max(_SAME_MEMORY_BYTES, _WORTH_NAMING_SHARE * more)
    ]
    why = ""
    if job.method != "full" and differences.get(Component.ACTIVATIONS.value, 0) >= _MOSTLY * more:
        why = "; its linear layers keep their inputs for backward even where the weight is frozen"
    text = (
        f"{higher.title} would take {format_gib(more, 1)} more here than {settings.title}"
        f"{': ' * bool(told)}{', '.join(told)}{why}"
    )
    return [Note("stage-3-takes-more", text, "advice")]


def _by_part(memory: MemoryEstimate) -> dict[str, int]:
    """What is live at the worst rank's peak; all weights together, as the stages count them apart."""
    parts = dict(memory.worst.components)
    weights = (Component.PARAMETERS.value, Component.FROZEN_PARAMETERS.value)
    held = sum(parts.pop(part, 0) for part in weights)
    return {**parts, weights[0]: held}


def note_on_choice(chosen: Candidate, cluster: Cluster, result: SearchResult) -> tuple[Note, ...]:
    """What was taken for the host's memory, where the choice depends on it."""
    offloads = chosen.strategy.settings.offloads
    if cluster.host_ram_bytes is not None or not (offloads or HOST_REASON in result.rejected):
        return ()
    need = chosen.memory.host_bytes_per_node / GIB
    assumed = assumed_host(cluster)
    return (assumed.with_text(f"{assumed}; this plan needs {need:,.0f} GiB of it"),)


def note_on_cores(chosen: Candidate, cluster: Cluster) -> tuple[Note, ...]:
    """What is assumed of the cores that step an offloaded optimizer.

    Of one rank per node, nothing: `torchrun` sets OMP_NUM_THREADS only for several (PyTorch 2.13,
    torch/distributed/run.py:872), and `accelerate launch` with DeepSpeed runs that.
    """
    if cluster.gpus_per_node == 1 or chosen.strategy.settings.optimizer_device == "none":
        return ()
    text = (
        "step time: the ranks share the node's cores for their offloaded optimizer; `zerokit launch` and the "
        "jobs of `zerokit emit` see to that, `torchrun` and `accelerate launch` leave each one core (set "
        "OMP_NUM_THREADS)"
    )
    return (Note("shared-cores", text),)


def note_on_estimate(candidate: Candidate, cluster: Cluster) -> tuple[Note, ...]:
    """Where a strategy takes more host memory than nodes with such GPUs have, as far as is known."""
    if cluster.host_ram_bytes is not None or not host_lack_words(candidate.memory, cluster):
        return ()
    required = format_gib(candidate.memory.host_bytes_per_node, 1)
    assumed = assumed_host(cluster)
    return (assumed.with_text(f"{assumed}; this strategy requires {required}"),)


def assumed_host(cluster: Cluster) -> Note:
    """What is taken for the host memory of a node, and its source."""
    gpu, limit = cluster.gpu, cluster.host_limit_bytes
    if limit is None:
        text = "host memory is no limit: ⟨host_ram⟩ not given"
        return Note("host-memory-assumed", text, "default", short="⟨host_ram⟩ no limit")
    source = gpu.sources.get("host_gib_per_gpu", "")
    text = (
        f"host memory assumed: {limit / GIB:,.0f} GiB per node, {gpu.host_bytes_per_gpu / GIB:,.0f} GiB per "
        f"GPU ({source}); ⟨host_ram⟩ not given"
    )
    short = f"⟨host_ram⟩ {limit / GIB:,.0f} GiB per node"
    return Note("host-memory-assumed", text, "default", short=short)


def with_range(candidate: Candidate, timing: TimeModel) -> Candidate:
    """The candidate with the range of its step time, and what of its hardware was never measured."""
    seconds_range = step_range(timing, candidate.strategy, candidate.memory)
    none = measured_on_no_machine(timing, candidate.strategy)
    time = replace(candidate.time, step_seconds_range=seconds_range, measured_on_no_machine=none)
    return replace(candidate, time=time)


def close_call(chosen: Candidate, others: Sequence[Candidate], timing: TimeModel) -> tuple[Note, ...]:
    """The first of the next best that may be faster than the choice, and what tells; empty: none may."""
    for rival in others:
        turn = turned_by(timing, chosen.strategy, rival.strategy)
        if turn is not None:
            what_tells = f"{turn.told_by} or `zerokit tune`" if turn.told_by else "`zerokit tune`"
            words = strategy_words(rival.strategy)
            text = f"{turn.name} decides between the choice and {words}: {what_tells} tells which is faster"
            return (Note("close-call", text, "advice"),)
    return ()


def headroom_bytes(memory: MemoryEstimate, gpu: Gpu) -> int:
    """What is left of each GPU; negative: so much is lacking."""
    return gpu.driver_vram_bytes - memory.min_vram_bytes


def is_sure(memory: MemoryEstimate, gpu: Gpu) -> bool:
    """Whether the headroom is at least what the estimate may be off by."""
    return headroom_bytes(memory, gpu) >= memory.unsure_bytes


def is_roomy(candidate: Candidate, gpu: Gpu) -> bool:
    """Whether a strategy surely fits and leaves a GiB."""
    return is_sure(candidate.memory, gpu) and headroom_bytes(candidate.memory, gpu) >= GIB


def headroom_words(memory: MemoryEstimate, gpu: Gpu) -> str:
    """``1.7 GiB headroom``; with how far the estimate may be off, where that is more:
    ``0.6 ± 4.6 GiB headroom``."""
    left = format_gib(headroom_bytes(memory, gpu), 1)
    if is_sure(memory, gpu) or not memory.unsure_bytes:
        return f"{left} headroom"
    return f"{left.removesuffix(' GiB')} ± {format_gib(memory.unsure_bytes, 1)} headroom"


def remark(candidate: Candidate, gpu: Gpu) -> str:
    """Of a strategy that is named as one that fits: ``may fit: 0.6 ± 4.6 GiB headroom``, ``barely: 0.1 GiB
    headroom``; empty where it is roomy."""
    if is_roomy(candidate, gpu):
        return ""
    word = "barely" if is_sure(candidate.memory, gpu) else "may fit"
    return f"{word}: {headroom_words(candidate.memory, gpu)}"


NOISE = 0.02
"""Of a step, up to which two predicted times are alike. The steps of one run alone on its host differ as
much: by 0.5 to 4 % in ZeRO-1 and 2 runs of Llama-3.1-8B on four H100s and H200s, by more under ZeRO-3."""


def simplest(space: Space, fastest: Candidate) -> Candidate:
    """The simplest strategy that is as fast as the fastest but for :data:`NOISE`, and fits as surely; of
    these its fastest."""
    for pins in engine_of(space).simpler(space, fastest):
        if (simpler := as_fast(replace(space, pins=pins), fastest)) is not None:
            return simpler
    return fastest


def as_fast(space: Space, fastest: Candidate) -> Candidate | None:
    """The fastest strategy of a part of the space, if it is as fast as the fastest of all but for
    :data:`NOISE`, and fits as surely."""
    gpu, limit = space.cluster.gpu, fastest.time.step_seconds * (1 + NOISE)
    found = next(iter(search(space, top=1, limit_seconds=limit).ranked), None)
    if found is None or (is_sure(fastest.memory, gpu) and not is_sure(found.memory, gpu)):
        return None
    return found


LOOKED_AT = 100
"""So many of the fastest are looked at for one that surely fits."""
WORST_ERROR = 0.0092
"""Of a traced peak, in 357 runs on H200s (docs/accuracy.md; a test compares them)."""


def surely_fitting(space: Space, chosen: Candidate, request: Request) -> list[Note]:
    """What to say of a choice that only may fit: the fastest strategy that surely does, and what it costs.

    The choice stays the fastest: a slower one that fits more surely would make a GPU with more memory, in
    which it surely fits as well, slower than one with less.
    """
    if space.cluster.on_cpu or is_sure(chosen.memory, space.cluster.gpu):
        return []
    wider = search(space, top=LOOKED_AT).ranked  # the same remark however many plans are shown
    gpu = space.cluster.gpu
    sure = next((candidate for candidate in wider if is_sure(candidate.memory, gpu)), None)
    if sure is None:
        return []
    slower = pace_words(sure.time.step_seconds / chosen.time.step_seconds - 1)
    room = format_gib(headroom_bytes(sure.memory, gpu), 1)
    text = f"surely fits, {slower}, with {room} of headroom: plan with {_options(sure.strategy, request)}"
    return [Note("surely-fits", text, "advice")]


def narrow(chosen: Candidate, request: Request) -> list[Note]:
    """What to say of a traced choice that leaves less than predictions of measured runs were off by."""
    cluster, memory = request.cluster, chosen.memory
    room = headroom_bytes(memory, cluster.gpu)
    off = int(WORST_ERROR * memory.worst.peak_allocated_bytes)
    if memory.basis != "traced" or cluster.on_cpu or not 0 <= room < off:
        return []
    said = (
        f"may run out of memory: {format_gib(room, 1)} of headroom, and predictions of measured runs were "
        f"off by up to {WORST_ERROR:.1%} of the peak (here {format_gib(off, 1)}; half of them by less than "
        "0.001%)"
    )
    remedy = "plan without ⟨margin⟩" if request.cluster.margin < DEFAULT_MARGIN else "no strategy leaves more"
    return [Note("narrow", f"{said}; {remedy}", "advice", "warning")]


def _options(strategy: Strategy, request: Request) -> str:
    """What plans this strategy, but for what the request fixes already: written after the options that were
    given, none of them stands there twice."""
    settings, pins = strategy.settings, request.pins
    options = (
        ("zero", settings.zero_stage, pins.zero_stage),
        ("offload_optimizer", settings.optimizer_device, pins.offload_optimizer),
        ("offload_param", settings.weights_device if settings.divides_weights else None, pins.offload_param),
        ("micro_batch", settings.micro_batch, pins.micro_batch),
        ("global_batch", strategy.global_batch, request.job.global_batch),
        ("checkpointing", strategy.checkpointing, pins.checkpointing),
    )
    return " ".join(
        f"⟨{name}⟩ {value}" for name, value, fixed in options if value is not None and fixed is None
    )
