"""A recorded step played on the lanes it runs on: the host issues, the GPU follows, links work beside it.

The host is one lane: while autograd's thread issues, the script's waits in ``backward``. Kernels of one
stream run in their order; those of several share the GPU, so one that runs beside another delays it.
Collectives, messages to and from each other rank, and copies between host and GPU have lanes of their own
and hold up the stream that waits for them. The host is at most :data:`QUEUE` launches ahead of the GPU
(CUDA's launch queue).
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field

from zerokit.timing import operators
from zerokit.timing.operators import IssuedOperator

QUEUE = 1000
ARRIVAL_SECONDS = 4e-6
"""From the host's launch to the kernel's begin."""

_COPIES = (operators.TO_DEVICE, operators.TO_HOST)
_OF_THE_HOST = (operators.VIEW, operators.EMPTY, operators.HOST)
"""What lanes of the GPU know nothing of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """Seconds of one event in each part; pure functions.

    Attributes:
        host: to issue it.
        kernel: its kernels on the GPU.
        collective, copy: over the link; a message is priced as a collective.
        cpu_adam: of an optimizer step on the host.
        kernel_kind: what a reader calls it.
        slowed: how many times as long its kernels take beside a collective, whose kernels hold
            multiprocessors; no seconds.
    """

    host: Callable[[IssuedOperator], float]
    kernel: Callable[[IssuedOperator], float]
    collective: Callable[[IssuedOperator], float]
    copy: Callable[[IssuedOperator], float]
    cpu_adam: Callable[[IssuedOperator], float]
    kernel_kind: Callable[[IssuedOperator], str] = field(default=lambda event: event.kind)
    slowed: Callable[[IssuedOperator], float] = field(default=lambda event: 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """One step in its steady state. Seconds.

    Attributes:
        host_seconds: the host was busy; ``waited_seconds``: it waited for the GPU or the queue.
        gpu_seconds: kernels ran. collective_seconds, message_seconds, copy_seconds: the links worked.
        cpu_adam_seconds: of ``host_seconds``.
        parts: GPU and link seconds by kind.
        host_phases: the host's busy seconds by phase.
    """

    seconds: float
    host_seconds: float
    waited_seconds: float
    gpu_seconds: float
    collective_seconds: float
    message_seconds: float
    copy_seconds: float
    cpu_adam_seconds: float
    parts: Mapping[str, float]
    host_phases: Mapping[str, float]


def lane_of(event: IssuedOperator) -> Hashable:
    """The link that a collective or a message takes: two ranks have one in each direction."""
    return ("message", *event.ranks) if event.is_message else "collective"


_Priced = tuple[float, float, str, IssuedOperator]
"""What the host takes to issue it, its kernels, and their kind; the event, whose id is then no other's."""


class Lanes:
    """Where each lane has got to. Seconds. ``host``: the host's time."""

    def __init__(self, prices: Prices) -> None:
        self._prices = prices
        self._priced: dict[int, _Priced] = {}
        self.host = 0.0
        self._streams: dict[int, float] = defaultdict(float)
        self._kernels: dict[int, float] = defaultdict(float)
        self._links: dict[Hashable, float] = defaultdict(float)
        self._collectives_began = 0.0
        self._marks: dict[tuple[str, int], float] = {}
        self._queue: deque[tuple[float, int]] = deque()
        self._queued = 0
        self.begin()

    def begin(self) -> None:
        """A step begins: what lanes were busy with is counted from here."""
        self._waited = self._busy = self._adam = 0.0
        self._parts: dict[str, float] = defaultdict(float)
        self._phases: dict[str, float] = defaultdict(float)

    def done(self, stream: int) -> float:
        """When the stream has done all that was issued to it so far."""
        return self._streams[stream]

    def take(self, event: IssuedOperator) -> None:
        """The host issues an event; other ranks are taken to be as far as this one."""
        kind = event.kind
        if kind == operators.COLLECTIVE:
            self.carry(event, self.reach(event))
            return
        priced = self._price(event)
        self._issue(event, priced)
        if kind == operators.KERNEL:
            self._run(event, priced)
        elif kind in _OF_THE_HOST:
            pass
        elif kind in _COPIES:
            self._copy(event)
        elif kind == operators.RECORD:
            self._marks["event", event.handle] = self._streams[event.stream]
        elif kind == operators.WAIT_EVENT:
            self._hold(event.stream, self._marks.get(("event", event.handle), 0.0))
        elif kind == operators.JOIN:
            self._hold(event.stream, self._marks.get(("collective", event.handle), 0.0))
        elif kind == operators.WAIT_STREAM:
            self._hold(event.stream, self._streams[event.handle])
        if event.synchronizes:
            self._join(event)

    def _price(self, event: IssuedOperator) -> _Priced:
        """Prices of an object, asked for once: a step has a few hundred, and some ten thousand events."""
        priced = self._priced.get(id(event))
        if priced is None:
            prices, host = self._prices, self._prices.host(event)
            priced = (host, 0.0, "", event)
            if event.kind == operators.KERNEL:
                priced = (host, prices.kernel(event), prices.kernel_kind(event), event)
            self._priced[id(event)] = priced
        return priced

    def _issue(self, event: IssuedOperator, priced: _Priced) -> None:
        took = priced[0]
        if event.kind == operators.CPU_ADAM:
            adam = self._prices.cpu_adam(event)
            self._adam += adam
            took += adam
        self._busy += took
        self._phases[event.phase] += took
        self.host += took

    def _join(self, event: IssuedOperator) -> None:
        """The host waits: ``synchronize`` of the device for all streams, others for their own."""
        until = (
            max(self._streams.values(), default=0.0)
            if event.name == "synchronize"
            else self._marks.get(("event", event.handle), 0.0)
            if event.name == "event"
            else self._streams[event.stream]
        )
        self._wait(until)

    def _wait(self, until: float) -> None:
        if until > self.host:
            self._waited += until - self.host
            self.host = until

    def _hold(self, stream: int, until: float) -> None:
        self._streams[stream] = max(self._streams[stream], until)

    def _run(self, event: IssuedOperator, priced: _Priced) -> None:
        _, took, kind, _ = priced
        streams, kernels, stream = self._streams, self._kernels, event.stream
        begin, free = self.host + ARRIVAL_SECONDS, streams[stream]
        if free > begin:
            begin = free
        if self._links["collective"] > begin:
            took = self._beside_collectives(event, begin, took)
        for lane, busy_until in kernels.items():
            if lane != stream and busy_until > begin:
                kernels[lane] += took
                streams[lane] += took
        done = streams[stream] = kernels[stream] = begin + took
        self._parts[kind] += took
        self._enqueue(done, event.launches)

    def _beside_collectives(self, event: IssuedOperator, begin: float, took: float) -> float:
        """Seconds of a kernel of ``took`` seconds, of which those beside collectives do less."""
        alone = max(0.0, self._collectives_began - begin)
        together = self._links["collective"] - begin - alone
        if together <= 0 or alone >= took:
            return took
        slowed = self._prices.slowed(event)
        return alone + min((took - alone) * slowed, took - alone + together * (1 - 1 / slowed))

    def _enqueue(self, done: float, launches: int) -> None:
        self._queue.append((done, launches))
        self._queued += launches
        while self._queued > QUEUE and self._queue:
            first, count = self._queue.popleft()
            self._queued -= count
            self._wait(first)

    def reach(self, event: IssuedOperator) -> float:
        """The host issues a collective or a message: when it could begin, were it for this rank alone."""
        self._issue(event, self._price(event))
        return max(self._links[lane_of(event)], self._streams[event.stream], self.host + ARRIVAL_SECONDS)

    def carry(self, event: IssuedOperator, begin: float) -> None:
        """A collective or message that this rank has reached takes its link from ``begin`` on."""
        lane, took = lane_of(event), self._prices.collective(event)
        if lane == "collective" and begin > self._links[lane]:
            self._collectives_began = begin
        done = self._links[lane] = begin + took
        self._parts["message" if event.is_message else "collective"] += took
        if event.handle:
            self._marks["collective", event.handle] = done
        else:
            self._hold(event.stream, done)
        if event.synchronizes:
            self._join(event)

    def _copy(self, event: IssuedOperator) -> None:
        took = self._prices.copy(event)
        begin = max(self._links[event.kind], self._streams[event.stream], self.host + ARRIVAL_SECONDS)
        self._links[event.kind] = self._streams[event.stream] = begin + took
        self._parts["copy"] += took

    def result(self, seconds: float) -> Played:
        """What the lanes did since :meth:`begin`, in a step of so many seconds."""
        links = [self._parts.get(link, 0.0) for link in ("collective", "message", "copy")]
        return Played(
            seconds=seconds,
            host_seconds=self._busy,
            waited_seconds=self._waited,
            gpu_seconds=sum(self._parts.values()) - sum(links),
            collective_seconds=links[0],
            message_seconds=links[1],
            copy_seconds=links[2],
            cpu_adam_seconds=self._adam,
            parts=dict(self._parts),
            host_phases=dict(self._phases),
        )
