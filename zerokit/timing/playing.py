"""Recorded steps played: one rank's alone, or those of ranks that exchange messages (a pipeline's stages).

Each rank has its own lanes. What it receives moves when the other rank has come to send it, and a collective
begins when the last of its ranks has come to it. Ranks wait for each other in both directions, so they are
played side by side: each goes on until it needs one that has not come so far.

DeepSpeed's stages call ``torch.distributed.send`` and ``recv`` (``deepspeed/runtime/pipe/p2p.py:60`` and
``:81``, DeepSpeed 0.19.8), which make the current stream wait for NCCL's. NCCL ends a send without its
receiver where the bytes fit into a buffer; other sends wait as receives do.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from zerokit.timing import operators
from zerokit.timing.lanes import Lanes, Played, Prices, lane_of
from zerokit.timing.operators import IssuedOperator

ROUNDS = 3
"""A step is played so often, one after the other: the host may be ahead of the GPU at its end."""
BUFFERED_BYTES = 1 << 20
"""The largest message whose send waits for no receiver: two sends of 512 KiB ended without one, a third did
not (https://github.com/NVIDIA/nccl/issues/544). It is a guess for other links and NCCL versions."""


def play(events: Sequence[IssuedOperator], prices: Prices) -> Played:
    """One rank's step after others like it; other ranks are taken to be as far as this one. Raises
    ValueError: there are no events."""
    return play_together({0: events}, prices)[0]


def play_together(streams: Mapping[int, Sequence[IssuedOperator]], prices: Prices) -> dict[int, Played]:
    """The step of several ranks, by rank; those that are not played are taken to be as far as these. Raises
    ValueError: a rank has no events, or waits for what no other one does."""
    if not streams or not all(streams.values()):
        raise ValueError("no operators were recorded")
    meetings = _Meetings(frozenset(streams))
    ranks = [_Rank(rank, events, Lanes(prices), meetings) for rank, events in streams.items()]
    going = {rank.number: rank.course() for rank in ranks}
    while going:
        before = meetings.progress
        done = [number for number, course in going.items() if next(course, None) is None]
        for number in done:
            del going[number]
        if going and not done and meetings.progress == before:
            waiting = ", ".join(str(number) for number in going)
            raise ValueError(f"ranks wait for messages or collectives that no other rank comes to: {waiting}")
    return {rank.number: rank.lanes.result(rank.seconds) for rank in ranks}


@dataclass(frozen=True, slots=True)
class _Arrival:
    """A rank that has come to a message or a collective; ``meeting``: which one; ``needed``: the ranks
    without which it does not begin."""

    event: IssuedOperator
    meeting: Hashable
    needed: frozenset[int]


class _Meetings:
    """Who has come to which message or collective. NCCL matches both by their order, whatever their tags.
    ``progress``: grows with all that happens."""

    def __init__(self, played: frozenset[int]) -> None:
        self._played = played
        self._came: dict[Hashable, dict[int, float]] = defaultdict(dict)
        self._numbers: Counter[Hashable] = Counter()
        self._joined: dict[tuple[int, ...], frozenset[int]] = {}
        self.progress = 0

    def joins(self, ranks: tuple[int, ...]) -> frozenset[int]:
        """Ranks of ``ranks`` that are played; one alone waits for nobody."""
        joined = self._joined.get(ranks)
        if joined is None:
            joined = self._joined[ranks] = self._played.intersection(ranks)
        return joined if len(joined) > 1 else frozenset()

    def come(self, rank: int, event: IssuedOperator, reached: float) -> _Arrival:
        """The rank's next one of this group or pair."""
        needed = self.joins(event.ranks)
        if event.is_message and rank == event.ranks[0] and event.bytes_read <= BUFFERED_BYTES:
            needed = frozenset((rank,))
        place = (event.is_message, event.ranks)
        self._numbers[rank, place] += 1
        meeting = (place, self._numbers[rank, place])
        self._came[meeting][rank] = reached
        self.progress += 1
        return _Arrival(event, meeting, needed)

    def begin(self, arrival: _Arrival) -> float | None:
        """When it begins; None while somebody has not come."""
        came = self._came[arrival.meeting]
        if not arrival.needed <= came.keys():
            return None
        self.progress += 1
        return max(came[rank] for rank in arrival.needed)


class _Rank:
    """One rank's way through its steps; ``seconds``: of the last step, once it is through."""

    def __init__(
        self, number: int, events: Sequence[IssuedOperator], lanes: Lanes, meetings: _Meetings
    ) -> None:
        self.number = number
        self.lanes = lanes
        self.seconds = 0.0
        self._events = events
        self._meetings = meetings
        self._pending: dict[Hashable, deque[_Arrival]] = defaultdict(deque)  # by link
        self._links: dict[int, Hashable] = {}  # by the handle of what is pending

    def course(self) -> Iterator[bool]:
        """Plays the steps; it yields where it waits for another rank."""
        lanes, joins = self.lanes, self._meetings.joins
        began = 0.0
        for _ in range(ROUNDS):
            lanes.begin()
            began = lanes.host
            for event in self._events:
                kind = event.kind
                if kind == operators.COLLECTIVE and joins(event.ranks):
                    yield from self._meet(event)
                    continue
                if kind == operators.JOIN and event.handle in self._links:
                    yield from self._settle(self._links[event.handle], event.handle)
                lanes.take(event)
        self.seconds = lanes.host - began

    def _meet(self, event: IssuedOperator) -> Iterator[bool]:
        """What the stream waits for at once holds up the rank here, anything else where it is waited for."""
        link = lane_of(event)
        yield from self._settle(link)
        arrival = self._meetings.come(self.number, event, self.lanes.reach(event))
        self._pending[link].append(arrival)
        if event.handle:
            self._links[event.handle] = link
        else:
            yield from self._settle(link)

    def _settle(self, link: Hashable, handle: int = 0) -> Iterator[bool]:
        """What is pending on a link begins, in its order: all of it, or up to ``handle``."""
        pending = self._pending[link]
        while pending and (not handle or handle in self._links):
            arrival = pending[0]
            begin = self._meetings.begin(arrival)
            if begin is None:
                yield True
                continue
            pending.popleft()
            self._links.pop(arrival.event.handle, None)
            self.lanes.carry(arrival.event, begin)
