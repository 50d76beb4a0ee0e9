"""A device's history played again: what was allocated when, to the byte of PyTorch's caching allocator."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from zerokit.snapshots.unpickling import (
    ALLOC,
    FREE_COMPLETED,
    FREE_REQUESTED,
    OOM,
    SEGMENT_ALLOC,
    SEGMENT_FREE,
    SEGMENT_MAP,
    SEGMENT_UNMAP,
    Events,
    SnapshotReader,
)

_ROUNDED_TO, _SMALL = 512, 1 << 20
"""``kMinBlockSize``, ``kSmallSize`` (c10/cuda/CUDACachingAllocator.cpp, torch 2.13): a hole's rest is split
off from 512 bytes on for small blocks and in expandable segments, else above 1 MiB."""
BEFORE = -1
"""As a row: before the history begins. Of an end: never."""


class Block(NamedTuple):
    """A piece of memory at the moment of the snapshot."""

    address: int
    size: int
    is_live: bool
    stack: int


class Segment(NamedTuple):
    """Memory that was taken from the driver, with its blocks in order of their addresses."""

    blocks: tuple[Block, ...]

    @property
    def size(self) -> int:
        """Bytes of all blocks."""
        return sum(block.size for block in self.blocks)


class OutOfMemory(NamedTuple):
    """An allocation that failed: bytes that were asked for, that the driver had free, and the stack."""

    asked_bytes: int
    driver_free_bytes: int
    stack: int


class Allocations(NamedTuple):
    """All that a device held at any time of its history, in columns: the row of the allocation, of its end,
    bytes, stack, and the bytes allocated on the device just after it."""

    start: array[int]
    end: array[int]
    size: array[int]
    stack: array[int]
    after: array[int]


class Device:
    """One device of a snapshot.

    Attributes:
        before_bytes: that were allocated when the history begins.
        lost_bytes: of those, what a stack in the snapshot's own blocks shows: the history is cut, not late.
        events: how many its history has.
        peak_reserved_bytes: taken from the driver at most, in it.
    """

    def __init__(
        self, number: int, segments: list[Segment], events: Events, rows: Iterable[int], expandable: bool
    ):
        self.number = number
        self.segments = segments
        self.events = 0
        self.before_bytes = self.lost_bytes = 0
        self.out_of_memory: OutOfMemory | None = None
        self.made = Allocations(array("q"), array("q"), array("q"), array("q"), array("q"))
        self._play(events, rows, expandable)

    @property
    def blocks(self) -> Iterator[Block]:
        """Yield all pieces of memory at the moment of the snapshot."""
        for segment in self.segments:
            yield from segment.blocks

    def live_at(self, row: int) -> Iterator[int]:
        """Yield the places in :attr:`made` of what is allocated just after an event."""
        starts, ends = self.made.start, self.made.end
        for place, start in enumerate(starts):
            if start <= row and (ends[place] > row or ends[place] == BEFORE):
                yield place

    def _play(self, events: Events, rows: Iterable[int], expandable: bool) -> None:
        starts, ends, sizes, stacks, after = self.made
        live: dict[int, int] = {}  # by address, the place of what is allocated there
        taken: dict[int, int] = {}  # bytes of blocks whose memory is not free yet
        holes = _Holes(expandable)
        now = reserved = most_reserved = 0
        earlier: list[tuple[int, int]] = []  # end and bytes of what was there before
        requests_free = any(action == FREE_REQUESTED for action in events.action)
        frees = FREE_REQUESTED if requests_free else FREE_COMPLETED
        row = -1
        for row, index in enumerate(rows):
            action, address, size = events.action[index], events.address[index], events.size[index]
            if action == ALLOC:
                size = holes.take(address, max(_ROUNDED_TO, -(-size // _ROUNDED_TO) * _ROUNDED_TO))
                live[address] = len(starts)
                taken[address] = size
                now += size
                starts.append(row)
                ends.append(BEFORE)
                sizes.append(size)
                stacks.append(events.stack[index])
                after.append(now)
            elif action in (FREE_REQUESTED, FREE_COMPLETED):
                if action == frees:
                    place = live.pop(address, BEFORE)
                    if place != BEFORE:
                        ends[place] = row
                        now -= sizes[place]
                    else:
                        size = max(_ROUNDED_TO, -(-size // _ROUNDED_TO) * _ROUNDED_TO)
                        earlier.append((row, size))
                        now -= size
                if action == FREE_COMPLETED and address in taken:
                    holes.give(address, taken.pop(address))
            elif action in (SEGMENT_ALLOC, SEGMENT_MAP):
                holes.add(address, size, action == SEGMENT_MAP)
                reserved += size
                most_reserved = max(most_reserved, reserved)
            elif action in (SEGMENT_FREE, SEGMENT_UNMAP):
                holes.remove(address)
                reserved -= size
            elif action == OOM:
                self.out_of_memory = OutOfMemory(size, address, events.stack[index])
        self.events = row + 1
        self.peak_reserved_bytes = sum(one.size for one in self.segments) - reserved + most_reserved
        self._add_earlier(live, earlier)

    def _add_earlier(self, live: dict[int, int], earlier: list[tuple[int, int]]) -> None:
        """What the history does not show being made: freed in it, or live at its end."""
        starts, ends, sizes, stacks, after = self.made
        rows = [(end, size, -1) for end, size in earlier]
        for block in self.blocks:
            if block.is_live and block.address not in live:
                rows.append((BEFORE, block.size, block.stack))
                self.lost_bytes += block.size if block.stack != -1 and self.events else 0
        self.before_bytes = sum(size for _, size, _ in rows)
        for place, size in enumerate(after):
            after[place] = size + self.before_bytes
        for end, size, stack in rows:
            starts.append(BEFORE)
            ends.append(end)
            sizes.append(size)
            stacks.append(stack)
            after.append(self.before_bytes)


class _Holes:
    """Free memory of the allocator by address, to know how much of a hole a block takes."""

    def __init__(self, expandable: bool) -> None:
        self._least = _ROUNDED_TO if expandable else _SMALL + 1
        self._sizes: dict[int, int] = {}
        self._starts: dict[int, int] = {}  # by where a hole ends
        self._segments: set[int] = set()

    def add(self, address: int, size: int, mapped: bool) -> None:
        """Take memory from the driver; what is mapped grows the segment before it."""
        if not mapped:
            self._segments.add(address)
        self.give(address, size)

    def remove(self, address: int) -> None:
        """Give a free segment back."""
        size = self._sizes.pop(address, None)
        if size is not None:
            self._starts.pop(address + size, None)
        self._segments.discard(address)

    def take(self, address: int, size: int) -> int:
        """Put a block into the hole at an address, and say how many bytes it takes of it."""
        hole = self._sizes.pop(address, 0)
        self._starts.pop(address + hole, None)
        rest = hole - size
        if rest <= 0:
            return size
        if rest >= (_ROUNDED_TO if size <= _SMALL else self._least):
            self._sizes[address + size] = rest
            self._starts[address + hole] = address + size
            return size
        return hole

    def give(self, address: int, size: int) -> None:
        """Free a block, which joins the holes beside it in its segment."""
        if address not in self._segments and (before := self._starts.pop(address, None)) is not None:
            size += self._sizes.pop(before)
            address = before
        behind = address + size
        if behind not in self._segments and (more := self._sizes.pop(behind, None)) is not None:
            self._starts.pop(behind + more, None)
            size += more
        self._sizes[address] = size
        self._starts[address + size] = address


def devices(reader: SnapshotReader) -> list[Device]:
    """Play the history of each device that holds memory or has a history."""
    value = reader.value
    whole = {"segments": value} if isinstance(value, list) else value
    if not isinstance(whole, dict) or not isinstance(whole.get("segments"), list):
        raise reader.refused("it has no segments: no snapshot of PyTorch's CUDA memory")
    try:
        by_device: dict[int, list[Segment]] = {}
        budget = [len(reader)]
        expandable = bool(whole.get("allocator_settings", {}).get("expandable_segments"))
        for one in whole["segments"]:
            expandable = expandable or bool(one.get("is_expandable"))
            by_device.setdefault(int(one["device"]), []).append(_segment(reader, one, budget))
        traces = whole.get("device_traces", [])
        numbers = sorted({*by_device, *(number for number, rows in enumerate(traces) if rows)})
        return [
            Device(
                number,
                by_device.get(number, []),
                reader.events,
                _checked(reader, traces[number] if number < len(traces) else []),
                expandable,
            )
            for number in numbers
        ]
    except (KeyError, TypeError, AttributeError, IndexError, ValueError, OverflowError) as error:
        raise reader.refused("it lacks what a snapshot of PyTorch's CUDA memory has") from error


def _segment(reader: SnapshotReader, segment: dict[str, Any], budget: list[int]) -> Segment:
    address, blocks = int(segment["address"]), []
    budget[0] -= 1 + len(segment["blocks"])
    if budget[0] < 0:
        raise reader.refused("its segments hold more blocks than the file has bytes")
    for one in segment["blocks"]:
        size = int(one["size"])
        blocks.append(
            Block(int(one.get("address", address)), size, one["state"] != "inactive", reader.stack_of(one))
        )
        address += size
    return Segment(tuple(blocks))


def _checked(reader: SnapshotReader, rows: list[Any]) -> list[int]:
    known = len(reader.events.action)
    if len(rows) > len(reader) or not all(type(row) is int and 0 <= row < known for row in rows):
        raise reader.refused("its history holds what are no events")
    return rows
