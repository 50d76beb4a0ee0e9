"""What would make a plan fit, when nothing does: the smallest change of each kind."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from zerokit.domain.deepspeed_settings import deepspeed
from zerokit.domain.strategy import Candidate, Strategy
from zerokit.search.explain import host_lack_words, remark, strategy_words
from zerokit.search.remedies import REMEDIES, Remedy
from zerokit.search.space import Pins, Request
from zerokit.units import GIB, counted, format_gib
from zerokit.values import replace

Found = TypeVar("Found")


def halved(
    misfit: int, fitting: int, found: Found, attempt: Callable[[int], Found | None]
) -> tuple[int, Found]:
    """The number next to one that does not fit, and what fits on it.

    Args:
        misfit: does not fit.
        fitting: does, above or below the misfit.
        found: what fits on it.
        attempt: what fits on a number; None: nothing.
    """
    while abs(fitting - misfit) > 1:
        middle = (misfit + fitting) // 2
        between = attempt(middle)
        if between is None:
            misfit = middle
        else:
            fitting, found = middle, between
    return fitting, found


Works = Callable[[Request], Candidate | None]
"""The best plan of a changed request, or None."""

_FIXED = {
    "zero": "zero_stage", "offload_optimizer": "offload_optimizer", "offload_param": "offload_param",
    "tp": "tensor_parallel", "pp": "pipeline_parallel", "sp": "sequence_parallel",
    "gradient_accumulation": "gradient_accumulation", "checkpointing": "checkpointing",
}  # fmt: skip
"""Option -> what it fixes of the strategy."""
_SHORTEST_SEQUENCE, _EIGHTHS = 256, 8
_ANY_HOST_BYTES = 1 << 62
_SMALLER_HOSTS = 4
"""How many times less host memory than the last plan takes is tried."""
_MOST_DOUBLINGS, _MOST_GPUS = 8, 4096
"""Of the number of GPUs: 256 times as many, and how many at most."""


def _words(candidate: Candidate, request: Request) -> str:
    required = format_gib(candidate.memory.min_vram_bytes, 1)
    tight = remark(candidate, request.cluster.gpu)
    return f"{strategy_words(candidate.strategy)}, {required} required{f' ({tight})' if tight else ''}"


def _first(request: Request, works: Works, changes: Iterable[tuple[str, Request]]) -> str | None:
    """The first of the changes, each with its title, after which something fits, in a sentence."""
    fitting = ((title, candidate) for title, changed in changes if (candidate := works(changed)))
    return next((f"{title}: {_words(candidate, request)}" for title, candidate in fitting), None)


def fixed_options(request: Request) -> list[str]:
    """The options that fix the strategy, with their values."""
    shared = request.pins.sharing_option
    return [
        f"⟨{shared if option == 'sp' else option}⟩ {value}"
        for option, name in _FIXED.items()
        if (value := getattr(request.pins, name)) is not None
        if not (name.endswith("_parallel") and value == 1)
        # nobody gave offload to CPU ranks: all is in host memory
        if not (request.cluster.on_cpu and name.startswith("offload"))
    ]


def _freed(request: Request) -> tuple[Request, str] | None:
    """The request without the options that fix the strategy, and these in words; None: there are none."""
    pins = request.pins
    kept = ("engine", "pipeline_module", "search_tensor", "search_sequence", "micro_batch", "settings")
    free = Pins(**{name: getattr(pins, name) for name in kept})
    fixed = fixed_options(request)
    if pins == free or not (fixed or pins.sizes() or pins.overlap_comm is not None):
        return None
    return replace(request, pins=free), " ".join(fixed) or "fixed bucket sizes"


def unpinned(request: Request, works: Works) -> str | None:
    """Without the options that fix the strategy; where that alone is too little, on more GPUs, if those are
    too little with the options."""
    freed = _freed(request)
    if freed is None:
        return None
    free, fixed = freed
    candidate = works(free)
    if candidate:
        return f"without {fixed}: {_words(candidate, request)}"
    if more_gpus(request, works) is None and (more := more_gpus(free, works)):
        return f"without {fixed}, and with {more}"
    return None


def smaller_batch(request: Request, works: Works) -> str | None:
    """A smaller fixed micro-batch."""
    micro = request.pins.micro_batch or 1
    sizes = (micro >> halved for halved in range(1, micro.bit_length()))
    return _first(request, works, (
        (f"⟨micro_batch⟩ {size}", replace(request, pins=replace(request.pins, micro_batch=size)))
        for size in sizes
    ))  # fmt: skip


def shorter_sequence(request: Request, works: Works) -> str | None:
    """The longest sequence that fits, to an eighth of the power of two below it."""
    asked = request.job.seq_len
    lengths = [1 << power for power in range((asked - 1).bit_length()) if 1 << power >= _SHORTEST_SEQUENCE]

    def at(length: int) -> Candidate | None:
        return works(replace(request, job=replace(request.job, seq_len=length)))

    if not lengths or not at(lengths[0]):
        return None  # weights and states alone are too much: nothing between is asked
    longest, candidate = next(
        (length, candidate) for length in reversed(lengths) if (candidate := at(length))
    )
    step = longest // _EIGHTHS
    most_steps = min(2 * _EIGHTHS, -(-asked // step))
    steps, fitting = halved(most_steps, _EIGHTHS, candidate, lambda steps: at(steps * step))
    return f"⟨seq_len⟩ {steps * step}: {_words(fitting, request)}"


def _remedied(request: Request, works: Works, *told: str) -> Iterator[str]:
    """Each of the remedies that are told so after which something fits, in a sentence."""
    for remedy in REMEDIES:
        changed = remedy.change(request) if remedy.told in told else None
        candidate = works(changed) if changed is not None else None
        if changed is not None and candidate is not None:
            instead = " without ⟨tp⟩ auto" if request.pins.search_tensor > changed.pins.search_tensor else ""
            sentence = f"{remedy.titled(candidate)}{instead}: {_words(candidate, request)}"
            yield "; ".join(filter(None, (sentence, remedy.needs)))


def more_host_memory(request: Request, works: Works) -> str | None:
    """Offload with more host memory than there is."""
    if request.cluster.host_limit_bytes is None or request.cluster.on_cpu:
        return None
    candidate = _with_least_host(request, works)
    if candidate is None:
        return None
    gib = -(-candidate.memory.host_bytes_per_node // GIB)
    return f"⟨host_ram⟩ {gib}GiB per node: {_words(candidate, request)}"


def _with_least_host(request: Request, works: Works) -> Candidate | None:
    """What fits the GPUs with little host memory, however much there is."""
    smaller = candidate = works(_with_host(request, _ANY_HOST_BYTES))
    for _ in range(_SMALLER_HOSTS):  # the fastest with any is seldom the one with the least
        if smaller is None:
            break
        candidate, least = smaller, smaller.memory.host_bytes_per_node
        smaller = works(_with_host(request, least - GIB))
    return smaller or candidate


def _with_host(request: Request, size: int) -> Request:
    return replace(request, cluster=replace(request.cluster, host_ram_bytes=size))


def closest(request: Request, nearest: Candidate | None, works: Works) -> Candidate | None:
    """What lacks least; of those that lack as much host memory and nothing else, the fastest: what a plan
    chooses where there is so much. One that lacks host memory alone goes before one that lacks both: its
    GPUs need not be others."""
    if nearest is None:
        return None
    if nearest.memory.min_vram_bytes > request.cluster.gpu.driver_vram_bytes:
        lacks_both = host_lack_words(nearest.memory, request.cluster) and not request.cluster.on_cpu
        return (_with_least_host(request.for_remarks(), works) if lacks_both else None) or nearest
    return works(_with_host(request.for_remarks(), nearest.memory.host_bytes_per_node)) or nearest


def more_gpus(request: Request, works: Works) -> str | None:
    """The fewest GPUs on which something fits: in a node their number is doubled, beyond it nodes are whole.

    Sequences are divided only where nothing fits otherwise: looking for that too on every number of GPUs
    takes seconds.
    """
    if request.cluster.on_cpu:
        return None
    whole = replace(request, pins=replace(request.pins, search_sequence=False))
    without = _more_gpus(whole, works) if request.pins.search_sequence else None
    return without or _more_gpus(request, works)


def _more_gpus(request: Request, works: Works) -> str | None:
    cluster = request.cluster
    larger = [_with_gpus(request, cluster.gpus << doubled) for doubled in range(1, _MOST_DOUBLINGS + 1)]
    larger = [one for one in larger if one.cluster.gpus <= _MOST_GPUS]
    if not larger or not works(larger[-1]):
        return None  # what one GPU must hold is too much already: nothing between is asked
    for below, one in itertools.pairwise([request, *larger]):
        candidate = works(one)
        if candidate:
            numbers = [below.cluster.gpus, *_between(below, one), one.cluster.gpus]

            def on(at: int, numbers: list[int] = numbers) -> Candidate | None:
                return works(_with_gpus(request, numbers[at]))

            at, fitting = halved(0, len(numbers) - 1, candidate, on)
            return _gpus_words(request, _with_gpus(request, numbers[at]), fitting)
    return None


def _between(below: Request, above: Request) -> list[int]:
    """The numbers of GPUs between two that are whole nodes, and that the fixed degrees and the global batch
    divide among themselves as they do on the larger number."""
    cluster, pins, batch = above.cluster, above.pins, above.job.global_batch
    degrees = (pins.tensor_parallel or 1) * (pins.pipeline_parallel or 1) * (pins.sequence_parallel or 1)
    step = math.lcm(cluster.gpu.max_gpus_per_node, degrees)
    least = max(below.cluster.gpus + 1, cluster.gpu.max_gpus_per_node * below.cluster.nodes)
    numbers = range(-(-least // step) * step, cluster.gpus, step)
    return [number for number in numbers if batch is None or batch % number == 0]


def _gpus_words(request: Request, larger: Request, candidate: Candidate) -> str:
    gpus, nodes = larger.cluster.gpus, larger.cluster.nodes
    on = f" on {nodes} nodes" if nodes > 1 else ""
    drops_batch = request.job.global_batch is not None and larger.job.global_batch is None
    batch = f" and ⟨global_batch⟩ {candidate.strategy.global_batch}" if drops_batch else ""
    more = gpus - request.cluster.gpus
    return f"{counted(more, 'more GPU')} (⟨gpus⟩ {gpus}{batch}{on}): {_words(candidate, request)}"


def _with_gpus(request: Request, gpus: int) -> Request:
    cluster = request.cluster
    most = cluster.gpu.max_gpus_per_node
    nodes = max(cluster.nodes, -(-gpus // most))
    if gpus % nodes:
        nodes = gpus // max(d for d in range(1, most + 1) if gpus % d == 0)
    batch = request.job.global_batch
    job = replace(request.job, global_batch=None if batch and batch % gpus else batch)
    return replace(request, job=job, cluster=replace(cluster, gpus=gpus, nodes=nodes))


def first_change(request: Request, works: Works) -> str | None:
    """The option of the first kind of change after which something fits on the same GPUs."""

    def sentences() -> Iterator[str | None]:
        yield from _remedied(request, works, "first", "explained", "script")
        yield shorter_sequence(request, works)
        yield from _remedied(request, works, "adapters")

    sentence = next(filter(None, sentences()), None)
    return None if sentence is None else sentence.partition(":")[0]


def nearest_changes(request: Request, works: Works) -> list[str]:
    """Sentences: the smallest change of each kind after which something fits."""
    sentences = (
        unpinned(request, works), smaller_batch(request, works),
        *_remedied(request, works, "first", "explained"), next(_remedied(request, works, "script"), None),
        shorter_sequence(request, works), next(_remedied(request, works, "adapters"), None),
        more_host_memory(request, works), *_remedied(request, works, "nvme"), more_gpus(request, works),
    )  # fmt: skip
    return [sentence for sentence in sentences if sentence]


_FREED: tuple[tuple[str, ...], ...] = (
    ("checkpointing",), ("micro_batch", "gradient_accumulation"), ("offload_optimizer",),
    ("zero_stage", "offload_optimizer", "offload_param"),
)  # fmt: skip
"""What is freed of one strategy, the least first: what changes no file before what does."""
_MOST_TOGETHER, _MOST_SHOWN = 3, 2


def nearest_to(request: Request, strategy: Strategy, works: Works) -> list[str]:
    """Sentences: as few changes of one strategy, the same batch with it, as make it fit, two ways at most."""
    settings, of_deepspeed = strategy.settings, dict[str, object]()
    if settings.zero_stage is not None:
        zero = deepspeed(settings).zero
        sizes = {"reduce_bucket_size": zero.reduce_bucket_size, "overlap_comm": zero.overlap_comm}
        of_deepspeed = {**sizes, "settings": settings}
    pins = replace(
        request.pins, **_values(strategy), **of_deepspeed, tensor_parallel=strategy.tensor_parallel,
        pipeline_parallel=strategy.pipeline_parallel, sequence_parallel=strategy.sequence_parallel,
        pipeline_module=strategy.pipeline_parallel > 1, search_tensor=False, search_sequence=False,
    )  # fmt: skip
    optimizer = settings.optimizer or settings.client_optimizer or request.job.optimizer
    job = replace(request.job, global_batch=strategy.global_batch, optimizer=optimizer)
    fixed = replace(request, job=job, pins=pins, precision=settings.precision, all_gpus=True)
    ways: list[tuple[str, ...] | Remedy] = [*_FREED[:2], *(one for one in REMEDIES if one.told == "first")]
    ways += _FREED[2:]
    for count in range(1, _MOST_TOGETHER + 1):
        found = dict.fromkeys(
            sentence
            for together in itertools.combinations(ways, count)
            if (sentence := _with_changes(fixed, together, works)) is not None
        )
        if found:
            return list(found)[:_MOST_SHOWN]
    return []


def _with_changes(
    request: Request, together: tuple[tuple[str, ...] | Remedy, ...], works: Works
) -> str | None:
    """The plan with these changes; None: it does not fit, or one of them changes nothing."""
    changed, titles, needs = request, list[str](), list[str]()
    for way in together:
        if isinstance(way, Remedy):
            with_it = way.change(changed)
            if with_it is None:
                return None
            changed = with_it
            titles.append(way.title)
            needs.append(way.needs)
        else:
            changed = replace(changed, pins=replace(changed.pins, **dict.fromkeys(way)))
    candidate = works(changed)
    if candidate is None:
        return None
    then = _values(candidate.strategy)
    before = {name: getattr(request.pins, name) for name in then}
    titles += [
        f"⟨{_OPTIONS.get(name, name)}⟩ {value}" for name, value in then.items() if before[name] != value
    ]
    return "; ".join([f"{' '.join(titles)}: {_words(candidate, request)}", *needs])


_OPTIONS = {"zero_stage": "zero"}


def _values(strategy: Strategy) -> dict[str, object]:
    settings = strategy.settings
    return {
        "zero_stage": settings.zero_stage,
        "offload_optimizer": settings.optimizer_device,
        "offload_param": settings.weights_device,
        "micro_batch": settings.micro_batch,
        "gradient_accumulation": settings.gradient_accumulation,
        "checkpointing": strategy.checkpointing,
    }


def larger_gpus(nearest: Candidate | None, request: Request) -> list[str]:
    """A sentence: GPUs that the closest strategy fits, where memory of the GPU is all that it lacks."""
    if nearest is None or request.cluster.on_cpu or host_lack_words(nearest.memory, request.cluster):
        return []
    each = format_gib(nearest.memory.min_vram_bytes, 1)
    return [f"GPUs of at least {each} each: {strategy_words(nearest.strategy)}"]
