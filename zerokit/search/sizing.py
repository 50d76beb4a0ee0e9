"""The other way round: how many of which GPU a job needs, by method and with or without offload."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from zerokit.domain.hardware import Cluster, Gpu
from zerokit.domain.job import Job
from zerokit.domain.strategy import Candidate
from zerokit.errors import InputError
from zerokit.search.explain import simplest
from zerokit.search.nearest import first_change, halved
from zerokit.search.plan import best_plan, check_pins, make_space, refuse_micro_batch
from zerokit.search.search import search
from zerokit.search.space import Pins, Request
from zerokit.timing.ranges import measured_on_no_machine
from zerokit.units import counted
from zerokit.values import replace

_MOST_GPUS = 1 << 14


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """The fewest GPUs of one kind for one method.

    Attributes:
        candidate: the fastest plan on so many; ``None``: not even the most searched are enough.
        why: why there is none.
        refused: there is none because no number of these GPUs can have what is asked for.
    """

    gpu: Gpu
    method: str
    offload: bool
    gpus: int
    nodes: int
    candidate: Candidate | None
    why: str = ""
    refused: bool = False

    @property
    def seconds_per_billion_tokens(self) -> float | None:
        """Wall time to train on 1e9 tokens."""
        if self.candidate is None:
            return None
        return 1e9 / (self.candidate.time.tokens_per_second_per_gpu * self.gpus)

    @property
    def gpu_hours_per_billion_tokens(self) -> float | None:
        """GPU-hours for 1e9 tokens."""
        seconds = self.seconds_per_billion_tokens
        return None if seconds is None else seconds * self.gpus / 3600


def sizes(
    request: Request, gpus: tuple[Gpu, ...], methods: tuple[str, ...], most: int = _MOST_GPUS
) -> Iterator[Size]:
    """The fewest GPUs of each kind, for each method, without offload and with it. Raises InputError: a
    micro-batch that does not divide the global batch on any number of GPUs."""
    if request.job.global_batch is not None:
        refuse_micro_batch(request.job.global_batch, request.pins)
    for gpu in gpus:
        for method in methods:
            pair = [fewest(request, gpu, method, offload, most) for offload in (False, True)]
            if not any(size.gpus or size.refused for size in pair):
                remedied = _with_remedy(pair[0], request, most)
                pair = [replace(size, why=remedied.why) for size in pair]
            yield from pair


def fewest(request: Request, gpu: Gpu, method: str, offload: bool, most: int = _MOST_GPUS) -> Size:
    """The smallest number of GPUs on which something fits. Inside a node numbers are doubled, up to the most,
    beyond it whole nodes: first doubling, then halving the gap."""
    pins = request.pins
    if not offload:
        pins = replace(pins, offload_optimizer="none", offload_param="none")
    job = replace(request.job, method=method, lora=None if method == "full" else request.job.adapters)

    refusals: list[InputError | None] = []

    def attempt(count: int) -> Candidate | None:
        try:
            fitting, refusal = _fits_on(request, gpu, job, pins, count), None
        except InputError as error:
            fitting, refusal = None, error
        refusals.append(refusal)
        return fitting

    per_node = gpu.max_gpus_per_node
    in_node = min(per_node, most)
    for count in (*(n for n in (1, 2, 4, 8, 16) if n < in_node), in_node):
        fitting = attempt(count)
        if fitting is not None:
            return _size(gpu, method, offload, count, fitting)
    low, high, most_nodes, best = 1, 1, most // per_node, None
    while best is None and high < most_nodes:
        low, high = high, min(2 * high, most_nodes)
        best = attempt(high * per_node)
    if best is None:
        refused, last = all(refusals), refusals[-1]
        why = f"does not fit on {counted(most, 'GPU')}{_loading_words(request, job, gpu)}"
        why = last.marked if refused and last is not None else why
        return Size(gpu=gpu, method=method, offload=offload, gpus=0, nodes=0, candidate=None,
                    why=why, refused=refused)  # fmt: skip
    nodes, found = halved(low, high, best, lambda nodes: attempt(nodes * per_node))
    return _size(gpu, method, offload, nodes * per_node, found)


def _with_remedy(size: Size, request: Request, most: int) -> Size:
    """With what would make it fit on one node of them, where there is such a change of the job."""
    lora = None if size.method == "full" else request.job.adapters
    cluster = _cluster(request, size.gpu, min(size.gpu.max_gpus_per_node, most))
    asked = replace(request, job=replace(request.job, method=size.method, lora=lora), cluster=cluster)
    change = first_change(asked.for_remarks(), best_plan)
    return replace(size, why=f"{size.why}; it would with {change}") if change else size


def _loading_words(request: Request, job: Job, gpu: Gpu) -> str:
    """Where no number of GPUs helps, since each of them loads the quantised model first."""
    packed_bytes = job.packed_base_bytes
    if packed_bytes is None or request.shape.weight_bytes(2, packed_bytes) <= gpu.driver_vram_bytes:
        return ""
    return ": each loads the quantised model whole first"


def _size(gpu: Gpu, method: str, offload: bool, count: int, fitting: Candidate) -> Size:
    nodes = max(1, count // gpu.max_gpus_per_node)
    return Size(gpu=gpu, method=method, offload=offload, gpus=count, nodes=nodes, candidate=fitting)


def _cluster(request: Request, gpu: Gpu, count: int) -> Cluster:
    return Cluster(
        gpu=gpu,
        gpus=count,
        nodes=max(1, count // gpu.max_gpus_per_node),
        host_ram_bytes=request.cluster.host_ram_bytes,
        network_bytes_per_second=request.cluster.network_bytes_per_second,
        nvme_path=request.cluster.nvme_path,
        margin=request.cluster.margin,
    )


def _fits_on(request: Request, gpu: Gpu, job: Job, pins: Pins, count: int) -> Candidate | None:
    """The fastest plan on ``count`` GPUs. Raises InputError: what is asked for cannot be on so many."""
    sized = replace(request, job=job, pins=pins, cluster=_cluster(request, gpu, count))
    space, _ = make_space(sized)
    check_pins(space)
    result = search(space, top=1)
    if not result.ranked:
        if result.unknown is not None:
            raise result.unknown[1]
        return None
    ranked = result.ranked
    chosen = ranked[0] if space.job.inference else simplest(space, ranked[0])
    none = measured_on_no_machine(space.timing, chosen.strategy)
    return replace(chosen, time=replace(chosen.time, measured_on_no_machine=none))


_SAME_TIME = 0.01


def distinct(ranked: Sequence[Candidate], count: int) -> list[Candidate]:
    """The first ``count`` that are worth a run each; what they leave over fills up.

    With nobody to share with, or with little to reduce, stages 0 to 2 are one strategy with three names: such
    a one is not run again while others wait.
    """
    chosen: list[Candidate] = []
    for candidate in ranked:
        if not any(_alike(candidate, other) for other in chosen):
            chosen.append(candidate)
    rest = [candidate for candidate in ranked if candidate not in chosen]
    return sorted([*chosen, *rest][:count], key=ranked.index)


def _alike(first: Candidate, second: Candidate) -> bool:
    first_stage, *rest = first.strategy.family
    second_stage, *also = second.strategy.family
    similar_time = abs(first.time.step_seconds / second.time.step_seconds - 1) < _SAME_TIME
    is_alone = first.strategy.data_parallel * first.strategy.sequence_parallel == 1
    return rest == also and 3 not in (first_stage, second_stage) and (is_alone or similar_time)
