"""What is reserved although it is free: blocks of one stream that another one still works with.

After ``Tensor.record_stream`` a freed block can be used again only when the other stream has done what was
issued to it until then; the allocator asks at each request (``insert_events`` and ``process_events`` in
``c10/cuda/CUDACachingAllocator.cpp``). ``memory_allocated`` does not count such a block, and the next request
takes another one. ZeRO-3 frees its gathered weights and full gradients like this. How much this adds depends
on how far the host is ahead of the GPU, so the recorded step is timed while its requests are played again.
The requests before it are played without delays.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence

from zerokit.rehearsal.process.allocator import Block, CachingAllocator
from zerokit.rehearsal.process.allocator_settings import AllocatorSettings
from zerokit.rehearsal.process.ledger import BORN, DIED, History
from zerokit.timing.lanes import Lanes, Prices
from zerokit.timing.operators import IssuedOperator


def peak_reserved_bytes(
    history: History,
    settings: AllocatorSettings,
    events: Sequence[IssuedOperator],
    clocks: Sequence[int],
    prices: Prices,
) -> int:
    """The most that the allocator reserves.

    Args:
        events: of one step; ``clocks``: the history's, when each was issued.
        prices: of the host and the GPU.
    """
    player = _Player(history, settings, Lanes(prices))
    issued = 0
    first, last = (clocks[0], clocks[-1]) if events else (0, 0)
    for clock, kind, number in history.events():
        is_timed = first < clock <= last
        while is_timed and clocks[issued] < clock:
            player.lanes.take(events[issued])
            issued += 1
        if kind == BORN:
            player.request(number)
        elif kind == DIED:
            player.free(number, is_timed=is_timed)
        else:
            player.empty_cache()
    return player.allocator.peak_reserved_bytes


class _Player:
    """Requests and releases, with the blocks that are not back yet."""

    def __init__(self, history: History, settings: AllocatorSettings, lanes: Lanes) -> None:
        self.lanes = lanes
        self.allocator = CachingAllocator(settings)
        self._history = history
        self._blocks: dict[int, Block] = {}
        self._late: dict[int, deque[tuple[float, int]]] = defaultdict(deque)  # by stream: when, number
        self._waits_for: dict[int, int] = {}  # streams, by number

    def request(self, number: int) -> None:
        self._take_back(self.lanes.host)
        history = self._history
        block = self.allocator.allocate(history.requested_bytes[number], history.stream[number])
        self._blocks[number] = block

    def free(self, number: int, *, is_timed: bool) -> None:
        streams = self._history.other_streams.get(number)
        if not streams or not is_timed:
            self.allocator.release(self._blocks.pop(number))
            return
        self._waits_for[number] = len(streams)
        for stream in streams:
            self._late[stream].append((self.lanes.done(stream), number))

    def empty_cache(self) -> None:
        """It waits for all streams first (``synchronize_and_free_events``)."""
        self._take_back(float("inf"))
        self.allocator.empty_cache()

    def _take_back(self, now: float) -> None:
        for waiting in self._late.values():
            while waiting and waiting[0][0] <= now:
                _, number = waiting.popleft()
                self._waits_for[number] -= 1
                if not self._waits_for[number]:
                    del self._waits_for[number]
                    self.allocator.release(self._blocks.pop(number))
