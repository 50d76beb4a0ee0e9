"""The step time of a recorded operator stream on a GPU of the catalogue."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from zerokit.domain.hardware import Cluster, Gpu
from zerokit.timing import host_prices, kernel_prices, lanes, operators, playing
from zerokit.timing.constants import HUGGING_FACE, Calibration
from zerokit.timing.host_speed import FASTEST, SLOWEST, USUAL, HostSpeed, of_slowest
from zerokit.timing.operators import IssuedOperator
from zerokit.timing.spread import route
from zerokit.values import replace

_Price = TypeVar("_Price")
_PAGEABLE_BYTES_PER_SECOND = 9.5e9
"""Copies from and to memory that is not pinned go through the driver's staging buffer: the middle of six
readings on two hosts of H200s, 8.4 to 13.1 GB/s whatever the threads (``host-parts.json``,
``host-parts-fourth.json``)."""
_TWO_PASSES = ("allreduce",)
_ADAM_RATES = {"fast": 6.5e9, "": 4.9e9, "slow": 2.1e9}
"""Weights that CPU Adam steps a second, of a node. Usual: the middle of five hosts with 16 cores, 3.3 to
6.1e9 (``doctor-sixth.jsonl``, ``host-parts.json``, ``host-parts-fourth.json``); fast: 32 cores of an H200's
host (``host-parts.json``)."""
_MEMORY = {"fast": 460e9, "": 240e9}
"""Bytes a second, read and written, that elementwise operators on the host reach, of a node. What eight busy
ranks reached together (``Constants.cast_seconds``: 6 bytes a weight in 0.2 ns for each); fast: 32 cores of an
H200's host, on memory of both its processors (``host-parts.json``), where gradients that DeepSpeed had
pinned reached 187 GB/s (the trace of ``medium.offload``)."""
_RANKS_MEMORY = {"work": 120e9, "casts": 75e9}
"""The most of the usual rate that one rank's cores reach, in place and casting to narrower elements: 104 to
123 and 60 to 77 GB/s on three hosts with 16 cores and one GPU (``doctor-sixth.jsonl``), 110 GB/s with 16 of
32 (``doctor-fifth.json``)."""
_SLOW = 0.5
"""Of the usual rates, a slow host's: a guess."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayedRank:
    """One of the ranks whose steps were played together. Seconds. ``waiting_seconds``: how much longer the
    step is than this rank's would be, had it never to wait for the others (a pipeline's bubble, if stages are
    alike). ``paced_by``, ``parts``: as those of a step."""

    rank: int
    waiting_seconds: float
    paced_by: str
    parts: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTime:
    """Of one optimizer step, in steady state. Seconds.

    Attributes:
        seconds: on the host that is known, else on the usual one, the middle of the hosts measured.
        low, high: on the fastest and the slowest host measured; where the host is known, as its probe spread.
        paced_by: ``host``, ``gpu``, ``links`` or ``cpu_adam``: the lane that was busy longest.
        parts: busy seconds of each lane and of the GPU by kind of kernel. Lanes overlap: no sum.
        host_factor: the host's seconds over the reference host's; None: not known.
        note: what a reader must know of it.
        by_host_factor: seconds on the fastest and the slowest host measured, and on this one, with their
            factors, rising; empty where something else of the host is guessed too, or a run's steps take
            what these leave out.
        together: the ranks that were played together, since they exchange messages: the step is that of all
            of them; ``paced_by`` and ``parts`` are of the one that waits least. Empty: the rank alone.
        missing: ranks that it exchanges messages with and that were not played: the step counts no waiting
            for them.
    """

    seconds: float
    low: float
    high: float
    paced_by: str
    parts: Mapping[str, float]
    host_factor: float | None
    note: str
    by_host_factor: tuple[tuple[float, float], ...] = ()
    together: tuple[PlayedRank, ...] = ()
    missing: tuple[int, ...] = ()


def step_time(
    events: Sequence[IssuedOperator],
    gpu: Gpu,
    ranks: int,
    *,
    host: HostSpeed | None = None,
    calibration: Calibration | None = None,
    more_micro_steps: int = 0,
    rank: int = 0,
    others: Mapping[int, Sequence[IssuedOperator]] | None = None,
) -> StepTime:
    """Price the events and play them.

    Args:
        ranks: of the whole job; GPUs of one node up to ``gpu.max_gpus_per_node``, nodes beyond.
        host: the machine's speed; None gives a range over hosts measured.
        calibration: rates measured on the machine.
        more_micro_steps: the step has so many micro-batches more than were recorded, each like the first.
        rank: whose events they are.
        others: the same step of ranks that exchange messages with it (:func:`connected`), by rank.

    Raises:
        ValueError: there are no events, or no micro-batch among them to repeat; the ranks' messages do not
            match.
    """
    step = _Step({rank: events, **(others or {})}, gpu, ranks, calibration, more_micro_steps)
    guessed = step.is_guessed
    slowest = of_slowest(host, ranks, step.interval_seconds(rank, host.factor)) if host else USUAL
    played = step.at(slowest)
    seconds = _seconds(played)
    if host is None:
        low, high = _seconds(step.at(FASTEST, "fast")), _seconds(step.at(SLOWEST, "slow"))
        ends: tuple[float, ...] = (low, high)
        note = (
            f"the host's speed is not known: {FASTEST} to {SLOWEST} times the reference host's seconds, "
            f"{USUAL:.2f} taken; `zerokit doctor --measure` on the GPU machine measures it"
        )
    else:
        low = _seconds(step.at(host.low or host.factor, "fast")) if host.low or guessed else seconds
        beside = max(1.0, slowest / host.factor)  # its slow rounds wait for others', too
        high = (
            _seconds(step.at(beside * (host.high or host.factor), "slow"))
            if host.high or guessed
            else seconds
        )
        ends = () if guessed else (_seconds(step.at(FASTEST)), _seconds(step.at(SLOWEST)))
        spread = f", {host.low:.2f} to {host.high:.2f} while it was probed" if host.low and host.high else ""
        note = f"host speed {host.factor:.2f}{spread} ({host.source})"
        if slowest != host.factor:
            note += f"; of {ranks} ranks the slowest sets the pace: {slowest:.2f}"
    if step.is_offloaded:
        note += "; CPU Adam steps with an equal share of the node's cores for each rank (OMP_NUM_THREADS)"
    if guessed:
        note += "; how fast the host steps and copies offloaded states is not known either"
    together = _together(played, step, slowest) if others else ()
    pacing = min(together, key=lambda one: one.waiting_seconds).rank if together else rank
    return StepTime(
        seconds=seconds,
        low=low,
        high=high,
        paced_by=_pace(played[pacing]),
        parts=_parts(played[pacing]),
        host_factor=host.factor if host else None,
        note=note,
        by_host_factor=() if guessed else _rising(ends, slowest, seconds),
        together=together,
    )


class _Step:
    """A step of one or more ranks, by rank, on hosts of any speed; ``is_offloaded``: whether the host steps
    the optimizer; ``is_guessed``: whether nobody measured how fast."""

    def __init__(
        self,
        streams: Mapping[int, Sequence[IssuedOperator]],
        gpu: Gpu,
        ranks: int,
        calibration: Calibration | None,
        more_micro_steps: int,
    ) -> None:
        self._streams = streams
        self._longer = (
            {rank: _with_repeated(events) for rank, events in streams.items()} if more_micro_steps else {}
        )
        self._more = more_micro_steps
        self._prices = prices(gpu, ranks, calibration)
        self.is_offloaded = any(
            event.kind == operators.CPU_ADAM for events in streams.values() for event in events
        )
        self.is_guessed = self.is_offloaded and not (
            calibration
            and calibration.cpu_adam_parameters_per_second
            and calibration.host_memory_bytes_per_second
        )

    def at(self, factor: float, node: str = "") -> dict[int, lanes.Played]:
        """All ranks together; ``node``: ``fast`` or ``slow`` where what its host does is guessed."""
        return self._play(list(self._streams), factor, node)

    def interval_seconds(self, rank: int, factor: float) -> float | None:
        """Host time between two waits of the host's for what other ranks do; None: fewer than two a step.
        The host waits for a GPU that waits for a collective."""
        waits, issued = 0, False
        for event in self._streams[rank]:
            issued = issued or event.kind == operators.COLLECTIVE
            if event.synchronizes and issued:
                waits, issued = waits + 1, False
        return self.alone(rank, factor).host_seconds / waits if waits > 1 else None

    def alone(self, rank: int, factor: float) -> lanes.Played:
        """One rank, which waits for nobody."""
        return self._play([rank], factor, "")[rank]

    def _play(self, among: Sequence[int], factor: float, node: str) -> dict[int, lanes.Played]:
        node = node if self.is_guessed else ""
        priced = self._prices(factor, node)
        played = playing.play_together({rank: self._streams[rank] for rank in among}, priced)
        if not self._more:
            return played
        longer = playing.play_together({rank: self._longer[rank] for rank in among}, priced)
        return {rank: _extended(one, longer[rank], self._more / _REPEATED) for rank, one in played.items()}


def _seconds(played: Mapping[int, lanes.Played]) -> float:
    """Ranks that wait for each other take as long as the slowest."""
    return max(one.seconds for one in played.values())


def _together(played: Mapping[int, lanes.Played], step: _Step, factor: float) -> tuple[PlayedRank, ...]:
    seconds = _seconds(played)
    return tuple(
        PlayedRank(
            rank=rank,
            waiting_seconds=max(0.0, seconds - step.alone(rank, factor).seconds),
            paced_by=_pace(one),
            parts=_parts(one),
        )
        for rank, one in sorted(played.items())
    )


def connected(events: Iterable[IssuedOperator], rank: int) -> frozenset[int]:
    """The ranks that a rank exchanges messages with."""
    return frozenset(other for event in events if event.is_message for other in event.ranks) - {rank}


def _rising(ends: Sequence[float], factor: float, seconds: float) -> tuple[tuple[float, float], ...]:
    fastest, slowest = ends
    return tuple(sorted({FASTEST: fastest, SLOWEST: slowest, factor: seconds}.items()))


_REPEATED = 2


def _with_repeated(events: Sequence[IssuedOperator]) -> list[IssuedOperator]:
    """The step with its first micro-batch :data:`_REPEATED` times more: from one forward's begin to the next
    one's. Raises ValueError: fewer than two micro-batches were recorded."""
    phases = [event.phase for event in events]
    begins, was_backward = [], True
    for index, phase in enumerate(phases):
        if phase == "forward" and was_backward:
            begins.append(index)
            was_backward = False
        elif phase == "backward":
            was_backward = True
    if len(begins) < 2:
        raise ValueError("its micro-batches could not be told apart")
    first = events[begins[0] : begins[1]]
    return [*events[: begins[1]], *(list(first) * _REPEATED), *events[begins[1] :]]


def _extended(short: lanes.Played, longer: lanes.Played, times: float) -> lanes.Played:
    """What grows from one to the other, so many times."""

    def at(one: float, other: float) -> float:
        return max(0.0, one + times * (other - one))

    def each(one: Mapping[str, float], other: Mapping[str, float]) -> dict[str, float]:
        return {name: at(one.get(name, 0.0), took) for name, took in other.items()}

    return lanes.Played(
        seconds=at(short.seconds, longer.seconds),
        host_seconds=at(short.host_seconds, longer.host_seconds),
        waited_seconds=at(short.waited_seconds, longer.waited_seconds),
        gpu_seconds=at(short.gpu_seconds, longer.gpu_seconds),
        collective_seconds=at(short.collective_seconds, longer.collective_seconds),
        message_seconds=at(short.message_seconds, longer.message_seconds),
        copy_seconds=at(short.copy_seconds, longer.copy_seconds),
        cpu_adam_seconds=at(short.cpu_adam_seconds, longer.cpu_adam_seconds),
        parts=each(short.parts, longer.parts),
        host_phases=each(short.host_phases, longer.host_phases),
    )


def prices(
    gpu: Gpu, ranks: int, calibration: Calibration | None = None
) -> Callable[[float, str], lanes.Prices]:
    """All prices of one machine, by its host's seconds over the reference host's, and ``fast`` or ``slow``
    where its CPU Adam and memory are not known, else ``""``, the usual ones. What does not depend on the host
    is worked out once for each event."""
    known = calibration or Calibration()
    sharing = max(1, min(ranks, gpu.max_gpus_per_node))
    rate = kernel_prices.rates(gpu, known.matmul_flops)
    issue = _once(
        lambda event: (
            host_prices.issue_seconds(event),
            host_prices.moved_bytes(event),
            host_prices.narrows(event),
            host_prices.temporary_seconds(event),
        )
    )
    kernel = _once(lambda event: kernel_prices.seconds(event, rate))
    kind = _once(kernel_prices.kind)
    slowed = _once(lambda event: kernel_prices.slowed(event, ranks))

    def at(factor: float, node: str) -> lanes.Prices:
        adam = known.cpu_adam_parameters_per_second
        there = known if adam else replace(known, cpu_adam_parameters_per_second=_ADAM_RATES[node])
        memory, casts = _host_memory(there, sharing, node)
        links = _Links(gpu, ranks, there)

        def host(event: IssuedOperator) -> float:
            took, moved, narrows, temporary = issue(event)
            return factor * took + moved / (casts if narrows else memory) + temporary

        return lanes.Prices(
            host=host,
            kernel=kernel,
            collective=lambda event: links.collective(event, rate.vectorized),
            copy=links.copy,
            cpu_adam=links.cpu_adam,
            kernel_kind=kind,
            slowed=slowed,
        )

    return at


def _once(price: Callable[[IssuedOperator], _Price]) -> Callable[[IssuedOperator], _Price]:
    """The same, asked once for each object: a step is played some nine times."""
    known: dict[int, tuple[_Price, IssuedOperator]] = {}

    def priced(event: IssuedOperator) -> _Price:
        found = known.get(id(event))
        if found is None:
            found = known[id(event)] = price(event), event
        return found[0]

    return priced


def _host_memory(known: Calibration, sharing: int, node: str) -> tuple[float, float]:
    """A rank's bytes a second in host memory, read and written: in place, and casting."""
    measured, cast = known.host_memory_bytes_per_second, known.host_cast_bytes_per_second
    if node == "fast":  # a whole node's, whatever the ranks
        most = dict.fromkeys(_RANKS_MEMORY, _MEMORY[node] / sharing)
    else:
        share = _SLOW if node == "slow" else 1.0
        most = {work: share * min(_MEMORY[""] / sharing, rate) for work, rate in _RANKS_MEMORY.items()}
    memory = measured / sharing if measured else most["work"]
    return memory, cast / sharing if cast else min(memory, most["casts"])


class _Links:
    """What joins GPUs with each other and with their host."""

    def __init__(self, gpu: Gpu, ranks: int, calibration: Calibration | None) -> None:
        per_node = max(1, min(ranks, gpu.max_gpus_per_node))
        nodes = max(1, -(-ranks // per_node))
        self._cluster = Cluster(gpu=gpu, gpus=nodes * per_node, nodes=nodes)
        self._calibration = calibration
        constants = HUGGING_FACE
        pcie = gpu.pcie_bytes_per_second * constants.pcie_efficiency
        to_device, to_host = (
            constants.host_to_device_bytes_per_second,
            constants.device_to_host_bytes_per_second,
        )
        adam = constants.cpu_adam_parameters_per_second
        if calibration:
            to_device = calibration.host_to_device_bytes_per_second or to_device
            to_host = calibration.device_to_host_bytes_per_second or to_host
            adam = calibration.cpu_adam_parameters_per_second or adam
        self._rates = {
            operators.TO_DEVICE: min(pcie, to_device / per_node),
            operators.TO_HOST: min(pcie, to_host / per_node),
        }
        self._adam = adam / per_node

    def collective(self, event: IssuedOperator, copied_per_second: float) -> float:
        """A group of one copies, where input and output differ; all of a message from rank to rank takes its
        link, twice the half of a gathering of two."""
        passes = 2 if event.is_message or event.name.startswith(_TWO_PASSES) else 1
        if event.group_size < 2:
            return 0.0 if passes == 2 else 2 * event.bytes_read / copied_per_second
        inner = max(1, self._cluster.gpus // event.group_size)
        if event.is_message and len({rank // self._cluster.gpus_per_node for rank in event.ranks}) == 1:
            inner = 1  # neighbours of one node
        way = route(self._cluster, event.group_size, inner, HUGGING_FACE, self._calibration)
        return way.seconds(event.bytes_read, passes=passes)

    def copy(self, event: IssuedOperator) -> float:
        """Between host and GPU, all GPUs of the node at once."""
        rate = self._rates[event.kind]
        if event.layout == operators.PAGEABLE:
            rate = min(rate, _PAGEABLE_BYTES_PER_SECOND)
        return kernel_prices.LAUNCH_SECONDS + event.bytes_read / rate

    def cpu_adam(self, event: IssuedOperator) -> float:
        """All ranks of a node share its cores; ``bytes_read`` holds the number of weights."""
        return event.bytes_read / self._adam


def _pace(played: lanes.Played) -> str:
    links = max(played.collective_seconds, played.message_seconds, played.copy_seconds)
    seconds = {
        "host": played.host_seconds - played.cpu_adam_seconds,
        "gpu": played.gpu_seconds,
        "links": links,
        "cpu_adam": played.cpu_adam_seconds,
    }
    return max(seconds, key=lambda name: seconds[name])


def _parts(played: lanes.Played) -> dict[str, float]:
    kernels = {
        f"gpu {kind}": took
        for kind, took in played.parts.items()
        if kind not in ("collective", "message", "copy")
    }
    parts = {
        "host": played.host_seconds - played.cpu_adam_seconds,
        "host waiting": played.waited_seconds,
        "gpu": played.gpu_seconds,
        **dict(sorted(kernels.items(), key=lambda item: -item[1])),
        "collectives": played.collective_seconds,
        "messages": played.message_seconds,
        "copies": played.copy_seconds,
        "cpu adam": played.cpu_adam_seconds,
    }
    return {name: took for name, took in parts.items() if took > 0}
