"""Which storages are on the fake GPU, and what was the most in each phase.

Every allocation and release has a number on one clock, and its birth and death stay in compact arrays:
what was live at a peak is then looked up afterwards, and the same sequence can be played again on a
smaller card.
"""

from __future__ import annotations

import functools
import os
import threading
import time
import weakref
from array import array
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from zerokit.domain.hardware import cublas_workspace_bytes
from zerokit.domain.phases import BEFORE_TRAINING
from zerokit.rehearsal.process.allocator import (
    MIB,
    AllocatorSettings,
    Block,
    CachingAllocator,
    CardFull,
    PlayedAllocator,
)
from zerokit.rehearsal.result import GATHERED
from zerokit.timing.lanes import Lanes, Prices
from zerokit.timing.operators import IssuedOperator

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
    """A storage with its block; ``number`` tells it from a later storage at the same address, ``watch`` sees
    it go."""

    number: int
    block: Block | None
    watch: Any = None


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

    def events(self) -> list[HistoryEvent]:
        """All that was asked of the allocator, in order."""
        born = [(self.postponed.get(number, clock), BORN, number) for number, clock in enumerate(self.born)]
        ended = [(clock, DIED, number) for number, clock in enumerate(self.died) if clock != STILL_LIVE]
        emptied = [(clock, EMPTIED, 0) for clock in self.emptied]
        return list(map(HistoryEvent._make, sorted(born + ended + emptied)))

    def live_at(self, clock: int) -> list[int]:
        """Numbers of the blocks that were in use at a time."""
        return [
            number
            for number, (born, died) in enumerate(zip(self.born, self.died, strict=True))
            if born <= clock and (died == STILL_LIVE or died > clock)
        ]


class GpuMemory:
    """The memory of one fake GPU."""

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
        self.entered: list[tuple[int, str]] = []  # phases, on the clock
        self.starts_of_backward: list[int] = []
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

    @contextmanager
    def gathering(self) -> Iterator[None]:
        """What this thread allocates here are parameters gathered from all ranks."""
        before = getattr(self.threads, "gathers", False)
        self.threads.gathers = True
        try:
            yield
        finally:
            self.threads.gathers = before

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
        blocks = [self.hold(size, why) for size in sizes if size]
        yield
        for block in reversed(blocks):
            self.release(block)

    def hold(self, size: int, why: str) -> tuple[int, Block]:
        """A block, with its number, that :meth:`release` gives back; a workspace is never given back."""
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

    def release(self, allocation: tuple[int, Block]) -> None:
        """The end of :meth:`hold`."""
        number, block = allocation
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
        number, block = self.hold(size, why) if size else (-1, None)
        holding = self._holdings[key] = Holding(number, block)
        holding.watch = weakref.ref(storage, functools.partial(self._died, key, holding))

    def resized(self, storage: Any, size: int) -> None:
        """A storage was resized (``UntypedStorage.resize_``): a new block, then the old one goes."""
        holding = self._holdings.get(storage._cdata)
        if holding is None:
            return
        number, block = self.hold(size, "resize_") if size else (-1, None)
        if holding.block is not None:
            self.release((holding.number, holding.block))
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

    def _died(self, key: int, holding: Holding, watch: Any) -> None:
        if self._holdings.get(key) is holding:
            del self._holdings[key]
        if holding.block is not None:
            self.release((holding.number, holding.block))
            holding.block = None

    # ---------------------------------------------------------------- phases and statistics

    def enter(self, phase: str) -> None:
        """A phase begins; what is in use now belongs to it too."""
        if self.phase == "backward" != phase:
            self.ends_of_backward.append(self.clock)
        if self.phase != "backward" == phase:
            self.starts_of_backward.append(self.clock)
        self.phase = phase
        self.entered.append((self.clock, phase))
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


Arguments = tuple[Any, ...]


_LT_WORKSPACE_KIB = 1024
"""``_getWorkspaceSize`` of cublasLt (``aten/src/ATen/cuda/CUDABlas.cpp``), CUBLASLT_WORKSPACE_SIZE."""


class Workspaces:
    """cuBLAS's and cublasLt's workspaces: kept for each thread that ever multiplied.

    A handle is kept for each thread, device and stream; autograd's backward runs in a thread of its own
    (``aten/src/ATen/cuda/CublasHandlePool.cpp``). ``addmm`` with a bias of one dimension runs in cublasLt
    (``native/cuda/Blas.cpp``, addmm_out_cuda_impl), whose handle is cuBLAS's with its workspace
    (``getCurrentCUDABlasLtHandle``): a thread of such products has both.
    """

    def __init__(self, ledger: GpuMemory, capability: tuple[int, int]) -> None:
        self._ledger = ledger
        self._have: set[tuple[int, bool]] = set()
        self._bytes = _configured(cublas_workspace_bytes(capability))
        self._lt_bytes = int(os.environ.get("CUBLASLT_WORKSPACE_SIZE", _LT_WORKSPACE_KIB)) << 10

    @property
    def in_use(self) -> bool:
        """Whether a product has run so far."""
        return bool(self._have)

    def product(self, name: str, args: Arguments, kwargs: dict[str, Any]) -> None:
        """A product is about to run in this thread."""
        self._keep(False, self._bytes)
        if name == "addmm" and _through_lt(args, kwargs):
            self._keep(True, self._lt_bytes)

    def _keep(self, is_lt: bool, size: int) -> None:
        key = threading.get_ident(), is_lt
        if key not in self._have:
            self._have.add(key)
            self._ledger.hold(size, "cuBLAS workspace")


def _through_lt(args: Arguments, kwargs: dict[str, Any]) -> bool:
    bias, _, right = args[:3]
    return (
        bias.dim() == 1
        and bias.dtype in (torch.bfloat16, torch.float16, torch.float32)
        and min(right.shape) > 1
        and kwargs.get("beta", 1) == 1
        and kwargs.get("alpha", 1) == 1
    )


def _configured(default: int) -> int:
    """``CUBLAS_WORKSPACE_CONFIG``: ``:KIB:COUNT`` pairs (``parseChosenWorkspaceSize``)."""
    text = os.environ.get("CUBLAS_WORKSPACE_CONFIG", "")
    numbers = [part for part in text.split(":") if part]
    if len(numbers) < 2 or len(numbers) % 2 or not all(part.isdigit() for part in numbers):
        return default
    return sum(int(size) * int(count) for size, count in zip(numbers[::2], numbers[1::2], strict=True)) << 10


def peak_reserved_bytes(
    history: History, settings: AllocatorSettings, events: Sequence[IssuedOperator], clocks: Sequence[int],
    prices: Prices,
) -> int:  # fmt: skip
    """The most that the allocator reserves.

    What is reserved although it is free: blocks of one stream that another one still works with.

    After ``Tensor.record_stream`` a freed block can be used again only when the other stream has done what
    was issued to it until then; the allocator asks at each request (``insert_events`` and ``process_events``
    in ``c10/cuda/CUDACachingAllocator.cpp``). ``memory_allocated`` does not count such a block, and the next
    request takes another one. ZeRO-3 frees its gathered weights and full gradients like this. How much this
    adds depends on how far the host is ahead of the GPU, so the recorded step is timed while its requests
    are played again. The requests before it are played without delays.

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
        self.allocator = PlayedAllocator(settings)
        self._history = history
        self._blocks: dict[int, Block] = {}
        self._late: dict[int, deque[tuple[float, int]]] = defaultdict(deque)  # by stream: when, number
        self._waits_for: dict[int, int] = {}  # streams, by number

    def request(self, number: int) -> None:
        self._take_back(self.lanes.host)
        size, stream = self._history.requested_bytes[number], self._history.stream[number]
        self._blocks[number] = self.allocator.allocate(size, stream)

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


class Unwaited:
    """Tensors of collectives that nobody waits for (``work.get_future()`` in a communication hook of DDP's).

    PyTorch's NCCL watchdog, which looks every 0.1 s, hands them over when the collective is done, and the
    next collective that the main thread issues frees them
    (``torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp`` of 2.11, runLoop and workEnqueue). How many steps
    end within 0.1 s is not known here: a step's tensors stay until the next step's first collective, and
    every phase of training takes at least its figure. Measured with accelerate's ddp_comm_hook.py on two
    H200s: eleven steps' tensors, 610 MB.
    """

    _NAME = "tensors of collectives that nobody waits for"

    def __init__(self, ledger: GpuMemory) -> None:
        self._ledger = ledger
        self._of_this_step: list[torch.Tensor] = []
        self._of_last_step: list[torch.Tensor] = []
        self._bytes = self._most_bytes = 0

    def put(self, tensors: list[torch.Tensor]) -> None:
        """The last reference to a collective's work is gone."""
        self._of_this_step += tensors
        self._bytes += sum(tensor.untyped_storage().nbytes() for tensor in tensors)
        self._most_bytes = max(self._most_bytes, self._bytes)

    def collective_issued(self) -> None:
        """What the last step left is freed."""
        self._of_last_step = []

    def step_done(self) -> None:
        """An optimizer step ended."""
        self._of_last_step += self._of_this_step
        self._of_this_step = []
        self._bytes = 0

    def note(self) -> str | None:
        """What to say of them, once the phases are known; None where every collective was waited for."""
        if not self._most_bytes:
            return None
        for phase in self._ledger.peaks:
            if phase not in BEFORE_TRAINING:
                self._ledger.lower_bounds.setdefault(phase, set()).add(self._NAME)
        return (
            "nobody waits for some asynchronous collectives (a communication hook of DDP's): PyTorch keeps "
            f"their tensors for 0.1 s and more, {self._most_bytes / 2**20:.1f} MiB for each step. One step's "
            "are counted; if a step takes less than 0.1 s, add as many again for each further step in 0.1 s"
        )


STEP_BYTES = 32 * MIB
"""The answer is no finer than this."""
LIMIT_SECONDS = 20.0


def runs_with(
    events: list[HistoryEvent], history: History, settings: AllocatorSettings, capacity: int
) -> bool:
    """Whether the same requests succeed with so many bytes of segments."""
    allocator = PlayedAllocator(settings, capacity)
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

    The least memory with which the allocator can serve the run: what was allocated and freed, played again.

    A full allocator gives back what it has cached and tries again, so a card smaller than what was reserved
    may do; how much smaller depends on how live blocks lie among free ones, which no formula knows.

    Args:
        reserved: what does.
    """
    began = time.monotonic()
    events = history.events()
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
