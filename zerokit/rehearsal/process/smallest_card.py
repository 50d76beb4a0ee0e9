"""The least memory with which the allocator can serve the run: what was allocated and freed, played again.

A full allocator gives back what it has cached and tries again, so a card smaller than what was reserved may
do; how much smaller depends on how live blocks lie among free ones, which no formula knows.
"""

from __future__ import annotations

import time

from zerokit.rehearsal.process.allocator import Block, CachingAllocator, CardFull
from zerokit.rehearsal.process.allocator_settings import MIB, AllocatorSettings
from zerokit.rehearsal.process.ledger import BORN, DIED, History, HistoryEvent

STEP_BYTES = 32 * MIB
"""The answer is no finer than this."""
LIMIT_SECONDS = 20.0


def runs_with(
    events: list[HistoryEvent], history: History, settings: AllocatorSettings, capacity: int
) -> bool:
    """Whether the same requests succeed with so many bytes of segments."""
    allocator = CachingAllocator(settings, capacity)
    live: dict[int, Block] = {}
    try:
        for event in events:
            number = event.number
            if event.kind == BORN:
                live[number] = allocator.allocate(history.requested_bytes[number], history.stream[number])
            elif event.kind == DIED:
                allocator.release(live.pop(number))
            else:
                allocator.empty_cache()
    except CardFull:
        return False
    return True


def smallest(history: History, settings: AllocatorSettings, reserved: int) -> tuple[int, int]:
    """(the least that is known to do, in bytes of segments; what is allocated at most on a card of it).

    Args:
        reserved: what does.
    """
    began = time.monotonic()
    events = list(history.events())
    peak = _most_allocated(events, history)
    fails, runs = peak - 1, reserved
    while runs - fails > STEP_BYTES and time.monotonic() - began < LIMIT_SECONDS:
        middle = (fails + runs) // 2
        if runs_with(events, history, settings, middle):
            runs = middle
        else:
            fails = middle
    return runs, peak


def _most_allocated(events: list[HistoryEvent], history: History) -> int:
    level = most = 0
    for event in events:
        if event.kind == BORN:
            level += history.block_bytes[event.number]
            most = max(most, level)
        elif event.kind == DIED:
            level -= history.block_bytes[event.number]
    return most
