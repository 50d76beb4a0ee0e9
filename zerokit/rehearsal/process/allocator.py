"""PyTorch's caching allocator for CUDA, as arithmetic on addresses.

Follows ``c10/cuda/CUDACachingAllocator.cpp`` (PyTorch 2.11 to 2.13; function names below are its own):
``round_size``, the small and the large pool, best fit by size and then address (``get_free_block``), when
a block is split (``should_split``), how large a segment is asked for (``get_allocation_size``), merging of
free neighbours (``try_merge_blocks``), expandable segments (``try_allocate_expandable_block``,
``map_block``, ``unmap_block``) and what ``empty_cache`` gives back (``release_cached_blocks``). Blocks
belong to the stream that asked for them. Freeing is immediate; what other streams use comes back later, which
:mod:`zerokit.rehearsal.process.ledger` plays.

Pure standard library.
"""

from __future__ import annotations

import bisect
import threading
from collections import deque
from dataclasses import dataclass

MIB = 1 << 20
MIN_BLOCK_BYTES = 512  # kMinBlockSize


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocatorSettings:
    """``PYTORCH_CUDA_ALLOC_CONF`` (``c10/core/AllocatorConfig.cpp``).

    Attributes:
        max_split_bytes: larger blocks are never split (``max_split_size_mb``).
        power2_divisions: requests are rounded up to so many steps between powers of two; 0: not.
        unknown: settings that are not modelled, as written.
    """

    expandable_segments: bool = False
    max_split_bytes: int | None = None
    power2_divisions: int = 0
    unknown: tuple[str, ...] = ()

    @classmethod
    def parse(cls, text: str) -> AllocatorSettings:
        """Of the variable's text; lists in brackets (``roundup_power2_divisions:[…]``) are not modelled."""
        expandable, max_split, divisions, unknown = False, None, 0, []
        for part in _split(text):
            key, _, value = part.partition(":")
            key, value = key.strip(), value.strip()
            if key == "expandable_segments":
                expandable = value == "True"
            elif key == "max_split_size_mb" and value.isdigit():
                max_split = int(value) * MIB
            elif key == "roundup_power2_divisions" and value.isdigit():
                divisions = int(value)
            elif key not in _WITHOUT_EFFECT and (key, value) != ("backend", "native"):
                unknown.append(part.strip())
        return cls(
            expandable_segments=expandable,
            max_split_bytes=max_split,
            power2_divisions=divisions,
            unknown=tuple(unknown),
        )

    def rounded(self, size: int) -> int:
        """What a request takes of a pool (``round_size``)."""
        if size < MIN_BLOCK_BYTES:
            return MIN_BLOCK_BYTES
        if self.power2_divisions > 1 and size > MIN_BLOCK_BYTES * self.power2_divisions:
            step = (1 << (size.bit_length() - 1)) // self.power2_divisions
            return -(-size // step) * step
        return -(-size // MIN_BLOCK_BYTES) * MIN_BLOCK_BYTES


_WITHOUT_EFFECT = (
    "", "garbage_collection_threshold", "pinned_use_cuda_host_register", "pinned_num_register_threads",
    "pinned_reserve_segment_size_mb", "pinned_free_catch_all", "release_lock_on_cudamalloc",
    "throw_on_cudamalloc_oom", "graph_capture_record_stream_reuse",
)  # fmt: skip
"""Settings that change no figure, or only what happens at a card's limit."""


def _split(text: str) -> list[str]:
    parts, depth, current = [], 0, ""
    for char in text:
        depth += (char == "[") - (char == "]")
        if char == "," and depth == 0:
            parts.append(current)
            current = ""
        else:
            current += char
    return [part for part in (*parts, current) if part.strip()]


SMALL_BYTES = MIB  # kSmallSize: the largest request of the small pool
SMALL_SEGMENT_BYTES = 2 * MIB  # kSmallBuffer
LARGE_SEGMENT_BYTES = 20 * MIB  # kLargeBuffer
MIN_LARGE_BYTES = 10 * MIB  # kMinLargeAlloc: from here on a segment of its own size
ROUND_LARGE_BYTES = 2 * MIB  # kRoundLarge
_FIRST_ADDRESS = 0x7F00_0000_0000
_EXPANDABLE_SPACE = 1 << 42  # addresses kept for one expandable segment; the real ones are 9/8 of the card


class CardFull(Exception):
    """The card has no room for a request. Bytes."""

    def __init__(self, requested: int, reserved: int, capacity: int) -> None:
        super().__init__(f"{requested} bytes asked for, {reserved} of {capacity} reserved")


class Block:
    """A stretch of a segment: in use, free, or (expandable segments) without memory behind it."""

    __slots__ = ("address", "is_free", "is_mapped", "next", "pool", "previous", "requested_bytes", "size")

    def __init__(self, address: int, size: int, pool: _Pool) -> None:
        self.address = address
        self.size = size
        self.pool = pool
        self.previous: Block | None = None
        self.next: Block | None = None
        self.is_free = True
        self.is_mapped = True
        self.requested_bytes = 0


class _Pool:
    """The free blocks of one stream, small or large."""

    __slots__ = ("by_address", "free", "is_small", "unmapped")

    def __init__(self, is_small: bool) -> None:
        self.is_small = is_small
        self.free: list[tuple[int, int]] = []  # (size, address), sorted
        self.unmapped: list[int] = []  # addresses, sorted
        self.by_address: dict[int, Block] = {}  # of free and unmapped blocks

    def insert(self, block: Block) -> None:
        bisect.insort(self.free, (block.size, block.address))
        self.by_address[block.address] = block

    def remove(self, block: Block) -> None:
        index = bisect.bisect_left(self.free, (block.size, block.address))
        del self.free[index]
        del self.by_address[block.address]

    def insert_unmapped(self, block: Block) -> None:
        bisect.insort(self.unmapped, block.address)
        self.by_address[block.address] = block

    def remove_unmapped(self, block: Block) -> None:
        del self.unmapped[bisect.bisect_left(self.unmapped, block.address)]
        del self.by_address[block.address]


class CachingAllocator:
    """Blocks and segments of one device.

    Args:
        settings: of the run.
        capacity_bytes: what all segments together may take; None: no limit.

    Attributes:
        allocated_bytes: ``torch.cuda.memory_allocated()``.
        reserved_bytes: ``torch.cuda.memory_reserved()``; ``peak_reserved_bytes`` its highest since it was
            last set.
        retries: how often cached memory had to be given back for a request.
    """

    def __init__(self, settings: AllocatorSettings, capacity_bytes: int | None = None) -> None:
        self.settings = settings
        self.capacity_bytes = capacity_bytes
        self.allocated_bytes = 0
        self.reserved_bytes = 0
        self.peak_reserved_bytes = 0
        self.retries = 0
        self._pools: dict[tuple[bool, int], _Pool] = {}
        self._next_address = _FIRST_ADDRESS
        self._expandable_address = _FIRST_ADDRESS
        self._lock = threading.Lock()
        self._waiting: deque[Block] = deque()

    # ---------------------------------------------------------------- from outside, from any thread

    def allocate(self, size: int, stream: int = 0) -> Block:
        """A block for ``size`` bytes. Raises OutOfMemory: beyond ``capacity_bytes`` even after cached memory
        was given back."""
        self._lock.acquire()
        try:
            return self._allocate(size, stream)
        finally:
            self._unlock()

    def release(self, block: Block) -> None:
        """Give a block back. A garbage collection inside of :meth:`allocate` may call this: it waits then."""
        self._waiting.append(block)
        if self._lock.acquire(blocking=False):
            self._unlock()

    def empty_cache(self) -> None:
        """Give back segments, and of expandable ones whole pages, that nothing uses."""
        self._lock.acquire()
        try:
            self._release_cached()
        finally:
            self._unlock()

    def _unlock(self) -> None:
        while True:
            while self._waiting:
                self._free(self._waiting.popleft())
            self._lock.release()
            if not self._waiting or not self._lock.acquire(blocking=False):
                return

    # ---------------------------------------------------------------- malloc

    def _allocate(self, size: int, stream: int = 0) -> Block:
        requested, size = size, self.settings.rounded(size)
        is_small = size <= SMALL_BYTES
        pool = self._pools.get((is_small, stream))
        if pool is None:
            pool = self._pools[is_small, stream] = _Pool(is_small)
        block = self._free_block(pool, size) or self._new_block(pool, size)
        if self._should_split(block, size):
            rest = _cut(block, size)
            block.pool.insert(rest)
        block.is_free = False
        block.requested_bytes = requested
        self.allocated_bytes += block.size
        return block

    def _free_block(self, pool: _Pool, size: int) -> Block | None:
        """``get_free_block``: best fit; an expandable block counts as large as it can become."""
        index = bisect.bisect_left(pool.free, (size, 0))
        if index == len(pool.free):
            return None
        block = pool.by_address[pool.free[index][1]]
        if self.settings.expandable_segments:
            while index + 1 < len(pool.free):
                following = pool.by_address[pool.free[index + 1][1]]
                if _expandable_size(following) >= _expandable_size(block):
                    break
                index, block = index + 1, following
        limit = self.settings.max_split_bytes
        if limit is not None:
            if size < limit <= block.size:
                return None
            if size >= limit and block.size >= size + LARGE_SEGMENT_BYTES:
                return None
        pool.remove(block)
        return block

    def _new_block(self, pool: _Pool, size: int) -> Block:
        if self.settings.expandable_segments:
            return self._expand(pool, size)
        segment_bytes = _segment_size(size)
        if not self._fits(segment_bytes):
            self.retries += 1
            self._release_cached()
            if not self._fits(segment_bytes):
                raise CardFull(size, self.reserved_bytes, self.capacity_bytes or 0)
        # Best fit takes the lowest of equal blocks. CUDA promises no order; falling addresses are inferred:
        # nanoGPT and MNIST are as measured (rising: up to 1.5 MiB off), grpo.olmo2 became 2.0 MB worse
        self._next_address -= segment_bytes
        block = Block(self._next_address, segment_bytes, pool)
        self._reserve(segment_bytes)
        return block

    def _fits(self, more: int) -> bool:
        return self.capacity_bytes is None or self.reserved_bytes + more <= self.capacity_bytes

    def _reserve(self, more: int) -> None:
        self.reserved_bytes += more
        self.peak_reserved_bytes = max(self.peak_reserved_bytes, self.reserved_bytes)

    def _should_split(self, block: Block, size: int) -> bool:
        rest = block.size - size
        if block.pool.is_small or self.settings.expandable_segments:
            return rest >= MIN_BLOCK_BYTES
        limit = self.settings.max_split_bytes
        return (limit is None or size < limit) and rest > SMALL_BYTES

    # ---------------------------------------------------------------- expandable segments

    def _expand(self, pool: _Pool, size: int) -> Block:
        """``try_allocate_expandable_block``: map pages behind a free block, or begin a segment."""
        page = SMALL_SEGMENT_BYTES if pool.is_small else LARGE_SEGMENT_BYTES
        for attempt in range(2):
            block = self._expandable_block(pool, size)
            have = block.size if block.is_mapped else 0
            if self._fits(-(-(size - have) // page) * page):
                break
            if attempt:
                raise CardFull(size, self.reserved_bytes, self.capacity_bytes or 0)
            self.retries += 1
            self._release_cached()
        if block.is_mapped:
            pool.remove(block)
        else:
            self._map(block, min(block.size, size), page)
            block = self._merged(block, with_unmapped=False)
        while block.size < size:
            following = block.next
            assert following is not None and not following.is_mapped
            self._map(following, min(size - block.size, following.size), page)
            _join(block, following)
            while block.next is not None and block.next.is_free and block.next.is_mapped:
                next_block = block.next
                pool.remove(next_block)
                _join(block, next_block)
        return block

    def _expandable_block(self, pool: _Pool, size: int) -> Block:
        """``find_expandable_block``: the lowest unmapped stretch with room, with a free block before it."""
        for address in pool.unmapped:
            block = pool.by_address[address]
            if block.previous is not None and block.previous.is_free and block.previous.is_mapped:
                block = block.previous
            room, candidate = 0, block
            while room < size and candidate is not None and candidate.is_free:
                room, candidate = room + candidate.size, candidate.next  # type: ignore[assignment]
            if room >= size:
                return block
        block = Block(self._expandable_address, _EXPANDABLE_SPACE, pool)
        self._expandable_address += 2 * _EXPANDABLE_SPACE
        block.is_mapped = False
        pool.insert_unmapped(block)
        return block

    def _map(self, block: Block, size: int, page: int) -> None:
        """``map_block``: memory for the first ``size`` bytes of an unmapped block, in whole pages."""
        pool = block.pool
        pool.remove_unmapped(block)
        mapped = min(-(-size // page) * page, block.size)
        if mapped < block.size:
            rest = _cut(block, mapped)
            rest.is_mapped = False
            pool.insert_unmapped(rest)
        block.is_mapped = True
        self._reserve(mapped)

    def _merged(self, block: Block, *, with_unmapped: bool) -> Block:
        """Join a block that is in no list with its free neighbours of the same kind."""
        pool = block.pool
        take = pool.remove_unmapped if with_unmapped else pool.remove
        before = block.previous
        if before is not None and before.is_free and before.is_mapped == block.is_mapped:
            take(before)
            _join(before, block)
            block = before
        after = block.next
        if after is not None and after.is_free and after.is_mapped == block.is_mapped:
            take(after)
            _join(block, after)
        return block

    # ---------------------------------------------------------------- free

    def _free(self, block: Block) -> None:
        self.allocated_bytes -= block.size
        block.is_free = True
        block = self._merged(block, with_unmapped=False)
        block.pool.insert(block)

    def _release_cached(self) -> None:
        for pool in self._pools.values():
            for _, address in list(pool.free):
                block = pool.by_address[address]
                if self.settings.expandable_segments:
                    self._unmap(block)
                elif block.previous is None and block.next is None:
                    pool.remove(block)
                    self.reserved_bytes -= block.size

    def _unmap(self, block: Block) -> None:
        """``unmap_block``: the whole pages inside of a free block go back."""
        pool = block.pool
        page = SMALL_SEGMENT_BYTES if pool.is_small else LARGE_SEGMENT_BYTES
        origin = block
        while origin.previous is not None:
            origin = origin.previous
        begin = origin.address + -(-(block.address - origin.address) // page) * page
        end = origin.address + (block.address + block.size - origin.address) // page * page
        if begin >= end:
            return
        pool.remove(block)
        if begin > block.address:
            rest = _cut(block, begin - block.address)
            pool.insert(block)
            block = rest
        if end < block.address + block.size:
            pool.insert(_cut(block, end - block.address))
        block.is_mapped = False
        self.reserved_bytes -= block.size
        block = self._merged(block, with_unmapped=True)
        pool.insert_unmapped(block)


class PlayedAllocator(CachingAllocator):
    """One that a single thread plays requests on, which come whole one after the other."""

    allocate = CachingAllocator._allocate
    release = CachingAllocator._free
    empty_cache = CachingAllocator._release_cached


def _segment_size(size: int) -> int:
    """``get_allocation_size``."""
    if size <= SMALL_BYTES:
        return SMALL_SEGMENT_BYTES
    if size < MIN_LARGE_BYTES:
        return LARGE_SEGMENT_BYTES
    return -(-size // ROUND_LARGE_BYTES) * ROUND_LARGE_BYTES


def _expandable_size(block: Block) -> int:
    following = block.next
    return block.size + (following.size if following is not None and not following.is_mapped else 0)


def _cut(block: Block, size: int) -> Block:
    """Shorten a block; what is behind becomes a block of its own, in no list."""
    rest = Block(block.address + size, block.size - size, block.pool)
    rest.previous, rest.next = block, block.next
    if block.next is not None:
        block.next.previous = rest
    block.next = rest
    block.size = size
    return rest


def _join(block: Block, following: Block) -> None:
    """Take the following block, which is in no list, into this one."""
    block.size += following.size
    block.next = following.next
    if following.next is not None:
        following.next.previous = block
