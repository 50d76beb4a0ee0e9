"""Which storages are on the fake GPU, and what was the most in each phase.

Every allocation and release has a number on one clock, and its birth and death stay in compact arrays:
what was live at a peak is then looked up afterwards, and the same sequence can be played again on a
smaller card (:mod:`zerokit.rehearsal.process.smallest_card`).
"""

from __future__ import annotations

import heapq
import threading
import weakref
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from zerokit.rehearsal.process.allocator import Block, CachingAllocator
from zerokit.rehearsal.process.allocator_settings import AllocatorSettings
from zerokit.rehearsal.result import GATHERED

STILL_LIVE = -1
BORN, DIED, EMPTIED = 0, 1, 2

Origin = tuple[str, str, str, str]
"""Phase, operator, module and location of an allocation."""

NOWHERE: Origin = ("", "", "", "")


@dataclass(slots=True)
class Peak:
    """The most that was allocated in a phase, and when on the clock."""

    allocated_bytes: int = 0
    clock: int = 0


@dataclass(slots=True)
class Holding:
    """A storage with its block; ``number`` tells it from a later storage at the same address."""

    number: int
    block: Block | None


class HistoryEvent(NamedTuple):
    """A request (``BORN``) or release (``DIED``) of a block, or ``EMPTIED``."""

    clock: int
    kind: int
    number: int


@dataclass(slots=True)
class History:
    """Births and deaths of all blocks, by number.

    Attributes:
        emptied: clocks of ``empty_cache``.
        postponed: number -> clock of the end of a block's births that a smaller card would see only then.
        other_streams: those that used a block beside the one that asked for it (``Tensor.record_stream``).
    """

    born: array[int] = field(default_factory=lambda: array("q"))
    died: array[int] = field(default_factory=lambda: array("q"))
    requested_bytes: array[int] = field(default_factory=lambda: array("q"))
    block_bytes: array[int] = field(default_factory=lambda: array("q"))
    stream: array[int] = field(default_factory=lambda: array("q"))
    origin: array[int] = field(default_factory=lambda: array("q"))
    emptied: array[int] = field(default_factory=lambda: array("q"))
    postponed: dict[int, int] = field(default_factory=dict)
    other_streams: dict[int, set[int]] = field(default_factory=dict)

    def events(self) -> Iterator[HistoryEvent]:
        """All that was asked of the allocator, in order."""
        born = sorted(
            (self.postponed.get(number, clock), BORN, number) for number, clock in enumerate(self.born)
        )
        ended = sorted((clock, DIED, number) for number, clock in enumerate(self.died) if clock != STILL_LIVE)
        emptied = ((clock, EMPTIED, 0) for clock in self.emptied)
        for clock, kind, number in heapq.merge(born, ended, emptied):
            yield HistoryEvent(clock, kind, number)

    def live_at(self, clock: int) -> list[int]:
        """Numbers of the blocks that were in use at a time."""
        return [
            number
            for number, (born, died) in enumerate(zip(self.born, self.died, strict=True))
            if born <= clock and (died == STILL_LIVE or died > clock)
        ]


class GpuMemory:
    """The memory of one fake GPU.

    Args:
        settings: of the allocator.
    """

    def __init__(self, settings: AllocatorSettings) -> None:
        self.allocator = CachingAllocator(settings)
        self.history = History()
        self.origins: list[Origin] = [NOWHERE]
        self.phase = "load"
        self.peaks: dict[str, Peak] = {}
        self.peak = Peak()
        self.lower_bounds: dict[str, set[str]] = {}  # by phase, what is not counted in it
        self.recent_peaks: dict[str, int] = {}  # by phase, since somebody last emptied it
        self.peak_reserved_bytes = 0
        self.peak_since_reset_bytes = 0
        self.clock = 0
        self.threads = threading.local()  # .stream: the current stream of each thread
        self.origin: Callable[[str, int], Origin] | None = None
        """Says where an allocation of so many bytes by an operator comes from."""
        self.starts_of_backward: list[int] = []  # on the clock
        self.ends_of_backward: list[int] = []
        self.dtypes: set[Any] = set()  # of all tensors that were counted
        self.contents: dict[int, str] = {}  # what a block holds, by its number, where that is known
        self._origin_numbers: dict[Origin, int] = {NOWHERE: 0}
        self._holdings: dict[int, Holding] = {}

    # ---------------------------------------------------------------- blocks

    @property
    def allocated_bytes(self) -> int:
        """In use now."""
        return self.allocator.allocated_bytes

    @property
    def stream(self) -> int:
        """The current thread's stream, as a number."""
        number: int = getattr(self.threads, "stream", 0)
        return number

    def reserve(self, size: int, why: str) -> int:
        """A block that is nobody's storage (a workspace); returns its number."""
        number, _ = self._take(size, why)
        return number

    @contextmanager
    def gathering(self) -> Iterator[None]:
        """What this thread allocates here are parameters gathered from all ranks."""
        before = getattr(self.threads, "gathers", False)
        self.threads.gathers = True
        try:
            yield
        finally:
            self.threads.gathers = before

    def hold(self, size: int, why: str) -> tuple[int, Block]:
        """A block that :meth:`release` gives back."""
        return self._take(size, why)

    def release(self, allocation: tuple[int, Block]) -> None:
        """The end of :meth:`hold`."""
        self._give_back(*allocation)

    def pass_through(self, sizes: Sequence[int], why: str) -> None:
        """A kernel's temporaries: taken in this order, and given back at once in the reverse one."""
        with self.holding(sizes, why):
            pass

    def postpone(self, since: int) -> None:
        """What was asked for from a number on, and is still in use, a smaller card is asked for only now."""
        self.clock += 1
        died = self.history.died
        self.history.postponed |= {
            number: self.clock for number in range(since, len(died)) if died[number] == STILL_LIVE
        }

    @contextmanager
    def holding(self, sizes: Sequence[int], why: str) -> Iterator[None]:
        """Temporaries that a kernel has while it does something else."""
        blocks = [self._take(size, why) for size in sizes if size]
        yield
        for block in reversed(blocks):
            self._give_back(*block)

    def _take(self, size: int, why: str) -> tuple[int, Block]:
        stream = self.stream
        block = self.allocator.allocate(size, stream)
        self.clock += 1
        history, number = self.history, len(self.history.born)
        history.born.append(self.clock)
        history.died.append(STILL_LIVE)
        history.requested_bytes.append(size)
        history.block_bytes.append(block.size)
        history.stream.append(stream)
        history.origin.append(self._number_of_origin(why, size))
        if getattr(self.threads, "gathers", False):
            self.contents[number] = GATHERED
        self._raise_peaks()
        return number, block

    def _number_of_origin(self, why: str, size: int) -> int:
        origin = self.origin(why, size) if self.origin is not None else NOWHERE
        number = self._origin_numbers.get(origin)
        if number is None:
            number = self._origin_numbers[origin] = len(self.origins)
            self.origins.append(origin)
        return number

    def _give_back(self, number: int, block: Block) -> None:
        self.clock += 1
        self.history.died[number] = self.clock
        self.allocator.release(block)

    def _raise_peaks(self) -> None:
        now = self.allocator.allocated_bytes
        self.peak_since_reset_bytes = max(self.peak_since_reset_bytes, now)
        self.peak_reserved_bytes = max(self.peak_reserved_bytes, self.allocator.reserved_bytes)
        if now > self.recent_peaks.get(self.phase, 0):
            self.recent_peaks[self.phase] = now
        phase = self.peaks.get(self.phase)
        if phase is None:
            phase = self.peaks[self.phase] = Peak()
        if now > phase.allocated_bytes:
            phase.allocated_bytes, phase.clock = now, self.clock
            if now > self.peak.allocated_bytes:
                self.peak.allocated_bytes, self.peak.clock = now, self.clock

    # ---------------------------------------------------------------- storages

    def track(self, tensor: Any, why: str) -> None:
        """Count a tensor's storage, unless it is counted already."""
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._holdings:
            return
        self.dtypes.add(tensor.dtype)
        size = storage.nbytes()
        number, block = self._take(size, why) if size else (-1, None)
        holding = self._holdings[key] = Holding(number, block)
        weakref.finalize(storage, self._died, key, holding)

    def resized(self, storage: Any, size: int) -> None:
        """A storage was resized (``UntypedStorage.resize_``): a new block, then the old one goes."""
        holding = self._holdings.get(storage._cdata)
        if holding is None:
            return
        number, block = self._take(size, "resize_") if size else (-1, None)
        if holding.block is not None:
            self._give_back(holding.number, holding.block)
        holding.number, holding.block = number, block

    def used_by(self, storage: Any, stream: int) -> None:
        """``Tensor.record_stream``: another stream uses a storage as well."""
        holding = self._holdings.get(storage._cdata)
        if holding is not None and holding.block is not None:
            number = holding.number
            if self.history.stream[number] != stream:
                self.history.other_streams.setdefault(number, set()).add(stream)

    def holds(self, storage: Any, what: str) -> None:
        """Tell what is in a storage, whichever phase allocated it; one that is not here is none of it."""
        holding = self._holdings.get(storage._cdata)
        if holding is not None and holding.block is not None:
            self.contents[holding.number] = what

    def address(self, storage: Any) -> int | None:
        """Where a storage lies on the card; None for one that is not there."""
        holding = self._holdings.get(storage._cdata)
        return holding.block.address if holding is not None and holding.block is not None else None

    def _died(self, key: int, holding: Holding) -> None:
        if self._holdings.get(key) is holding:
            del self._holdings[key]
        if holding.block is not None:
            self._give_back(holding.number, holding.block)
            holding.block = None

    # ---------------------------------------------------------------- phases and statistics

    def enter(self, phase: str) -> None:
        """A phase begins; what is in use now belongs to it too."""
        if self.phase == "backward" != phase:
            self.ends_of_backward.append(self.clock)
        if self.phase != "backward" == phase:
            self.starts_of_backward.append(self.clock)
        self.phase = phase
        self._raise_peaks()

    def empty_cache(self) -> None:
        """``torch.cuda.empty_cache()``."""
        self.clock += 1
        self.history.emptied.append(self.clock)
        self.allocator.empty_cache()

    def reset_peaks(self) -> None:
        """``torch.cuda.reset_peak_memory_stats()``: what the script sees; the phases' peaks stay."""
        self.peak_since_reset_bytes = self.allocator.allocated_bytes
        self.allocator.peak_reserved_bytes = self.allocator.reserved_bytes
