"""The model of the caching allocator, against what ``CUDACachingAllocator.cpp`` says of each size."""

from __future__ import annotations

import gzip
import itertools
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zerokit.rehearsal.process.allocator import AllocatorSettings, Block, CachingAllocator, CardFull
from zerokit.rehearsal.process.ledger import STEP_BYTES, GpuMemory, History, smallest

HISTORY = Path(__file__).parents[1] / "data" / "h200" / "allocator-history.gz"
MIB = 1 << 20
EXPANDABLE = AllocatorSettings.parse("expandable_segments:True")


def make(settings: str = "", capacity: int | None = None) -> CachingAllocator:
    return CachingAllocator(AllocatorSettings.parse(settings), capacity)


@pytest.mark.parametrize(
    ("requested", "allocated", "reserved"),
    [
        (1, 512, 2 * MIB),
        (513, 1024, 2 * MIB),
        (MIB, MIB, 2 * MIB),
        (MIB + 1, MIB + 512, 20 * MIB),
        (10 * MIB - 512, 10 * MIB - 512, 20 * MIB),
        (10 * MIB, 10 * MIB, 10 * MIB),
        (11 * MIB, 11 * MIB, 12 * MIB),  # a remainder of 1 MiB is not split off, and not counted …
    ],
)
def test_sizes_of_blocks_and_segments(requested: int, allocated: int, reserved: int) -> None:
    allocator = make()
    allocator.allocate(requested)
    if requested == 11 * MIB:
        allocated = 12 * MIB  # … but the whole block is the request's
    assert (allocator.allocated_bytes, allocator.reserved_bytes) == (allocated, reserved)


def test_a_freed_block_is_taken_again_and_neighbours_join() -> None:
    allocator = make()
    first, second, third = (allocator.allocate(5 * MIB) for _ in range(3))
    assert allocator.reserved_bytes == 20 * MIB
    allocator.release(first)
    allocator.release(second)
    again = allocator.allocate(9 * MIB)
    assert again.address == first.address
    assert allocator.reserved_bytes == 20 * MIB
    allocator.release(again)
    allocator.release(third)
    allocator.empty_cache()
    assert (allocator.allocated_bytes, allocator.reserved_bytes) == (0, 0)


def test_streams_share_nothing() -> None:
    allocator = make()
    allocator.release(allocator.allocate(4 * MIB, stream=0))
    allocator.allocate(4 * MIB, stream=1)
    assert allocator.reserved_bytes == 40 * MIB


def test_expandable_segments_grow_by_pages_and_split_everything() -> None:
    allocator = CachingAllocator(EXPANDABLE)
    allocator.allocate(30 * MIB)
    assert (allocator.allocated_bytes, allocator.reserved_bytes) == (30 * MIB, 40 * MIB)
    allocator.allocate(10 * MIB)
    assert (allocator.allocated_bytes, allocator.reserved_bytes) == (40 * MIB, 40 * MIB)


def test_expandable_segments_give_back_whole_pages_in_the_middle() -> None:
    allocator = CachingAllocator(EXPANDABLE)
    blocks = [allocator.allocate(20 * MIB) for _ in range(4)]
    allocator.release(blocks[1])
    allocator.empty_cache()
    assert allocator.reserved_bytes == 60 * MIB
    again = allocator.allocate(20 * MIB)
    assert again.address == blocks[1].address
    assert allocator.reserved_bytes == 80 * MIB


def test_a_full_card_gives_back_what_is_cached_before_it_fails() -> None:
    allocator = make(capacity=100 * MIB)
    allocator.release(allocator.allocate(60 * MIB))
    allocator.allocate(70 * MIB)
    assert (allocator.retries, allocator.reserved_bytes) == (1, 70 * MIB)
    with pytest.raises(CardFull):
        allocator.allocate(40 * MIB)


def test_settings_that_are_not_modelled_are_named() -> None:
    parsed = AllocatorSettings.parse("max_split_size_mb:64,expandable_segments:True,backend:native,x:[a,b]")
    assert parsed.max_split_bytes == 64 * MIB
    assert parsed.expandable_segments
    assert parsed.unknown == ("x:[a,b]",)
    assert AllocatorSettings.parse("backend:cudaMallocAsync").unknown == ("backend:cudaMallocAsync",)


@given(st.integers(0, 10**6), st.booleans())
def test_every_byte_comes_back_and_blocks_never_overlap(seed: int, expandable: bool) -> None:
    rnd = random.Random(seed)
    allocator = CachingAllocator(EXPANDABLE if expandable else AllocatorSettings())
    live: list[Block] = []
    for _ in range(120):
        if live and rnd.random() < 0.45:
            allocator.release(live.pop(rnd.randrange(len(live))))
        elif rnd.random() < 0.05:
            allocator.empty_cache()
        else:
            live.append(allocator.allocate(int(2 ** rnd.uniform(0, 27)), rnd.randrange(2)))
        spans = sorted((block.address, block.address + block.size) for block in live)
        assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(spans))
        assert allocator.allocated_bytes == sum(block.size for block in live) <= allocator.reserved_bytes
    for block in live:
        allocator.release(block)
    allocator.empty_cache()
    assert (allocator.allocated_bytes, allocator.reserved_bytes) == (0, 0)


def test_of_equal_blocks_the_one_from_the_latest_segment_is_taken() -> None:
    """Best fit takes the lowest address, and cudaMalloc's addresses fall."""
    allocator = make()
    first, second = allocator.allocate(12 * MIB), allocator.allocate(12 * MIB)
    allocator.release(first)
    allocator.release(second)
    assert allocator.allocate(12 * MIB).address == second.address < first.address


def test_the_smallest_card_lies_between_what_lives_and_what_is_kept() -> None:
    """Blocks of 30 MiB come and go before one of 100 MiB: what is cached must be given back for it."""
    history, settings = History(), AllocatorSettings()
    allocator = CachingAllocator(settings)
    clock = 0
    for size in (30 * MIB, 30 * MIB, 30 * MIB, 100 * MIB):
        clock += 2
        history.born.append(clock)
        history.died.append(clock + 100 if size == 30 * MIB else -1)
        for column in (history.requested_bytes, history.block_bytes):
            column.append(size)
        history.stream.append(0)
    history.born[3], clock = 500, 500
    blocks = [allocator.allocate(size) for size in history.requested_bytes[:3]]
    for block in blocks:
        allocator.release(block)
    allocator.allocate(100 * MIB)
    assert allocator.peak_reserved_bytes == 190 * MIB
    least, allocated = smallest(history, settings, allocator.peak_reserved_bytes)
    assert allocated == 100 * MIB
    assert 100 * MIB <= least <= 100 * MIB + STEP_BYTES


def test_a_recorded_history_of_a_gpu_comes_out_to_the_byte() -> None:
    """``torch.cuda.memory._record_memory_history`` of run_swag.py on an H200, and what torch.cuda counted."""
    allocator, live, peak = make(), {}, 0
    for line in gzip.decompress(HISTORY.read_bytes()).decode().splitlines():
        action, address, size, stream = line.split()
        if action == "alloc":
            live[address] = allocator.allocate(int(size), int(stream, 16))
            peak = max(peak, allocator.allocated_bytes)
        elif action == "free_completed" and address in live:
            allocator.release(live.pop(address))
    assert (peak, allocator.peak_reserved_bytes) == (1029095424, 1163919360)


def test_a_copy_that_a_smaller_card_does_without_is_asked_for_only_at_its_end() -> None:
    memory = GpuMemory(AllocatorSettings(expandable_segments=True))
    weights = memory.hold(100 * MIB, "weights")
    since = len(memory.history.born)
    memory.hold(100 * MIB, "flat copy")
    memory.release(weights)
    memory.postpone(since)
    assert memory.peak.allocated_bytes == 200 * MIB
    least, allocated = smallest(memory.history, memory.allocator.settings, memory.peak_reserved_bytes)
    assert allocated == 100 * MIB
    assert least <= 100 * MIB + STEP_BYTES
