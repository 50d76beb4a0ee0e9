"""What ranks send each other: point to point, and a few numbers that one broadcasts to all.

One rank is rehearsed at a time. It records what it sends: size, dtype, and the values where they are known. A
rank that is rehearsed later receives from these records. One that needs values of a rank without a record
(integers: the shapes of what comes next, positions, masks) stops and names that rank, so that it is rehearsed
first. Floats need no record: shapes and dtypes are those of the buffer that receives them, and values of
activations and gradients are not known anyway.

A broadcast's numbers are mostly what every rank holds anyway. Where a rank holds a single zero in their
place, it waits for what the first rank alone has computed, so that the first rank is rehearsed before it.
"""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict, deque
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import torch

from zerokit.rehearsal.process.endings import NeedsSenders, NotRehearsed, StopRehearsal

Channel = tuple[int, ...]
"""Tag and the group's ranks: messages of one channel between two ranks arrive in order."""
_BROADCAST = -1  # in place of a tag


class Message(NamedTuple):
    """One tensor from one rank to another; ``offset``: of its values in the file of values; None: they are
    not known."""

    size: int
    dtype: str
    shape: tuple[int, ...]
    offset: int | None


def _paths(folder: Path, rank: int) -> tuple[Path, Path]:
    return folder / f"from-{rank}.json", folder / f"from-{rank}.values"


class _Record:
    """What a rehearsed rank sent to this one."""

    def __init__(self, folder: Path, source: int, rank: int) -> None:
        path, self._values = _paths(folder, source)
        stored = json.loads(path.read_text())
        self.enough_after: int | None = stored["enough_after"]
        self._queues: dict[Channel, deque[Message]] = defaultdict(deque)
        for destination, channel, size, dtype, shape, offset in stored["messages"]:
            if destination == rank:
                self._queues[tuple(channel)].append(Message(size, dtype, tuple(shape), offset))

    def next(self, channel: Channel) -> Message | None:
        queue = self._queues[channel]
        return queue.popleft() if queue else None

    def value(self, message: Message, dtype: torch.dtype) -> torch.Tensor | None:
        if message.offset is None:
            return None
        with self._values.open("rb") as file:
            file.seek(message.offset)
            return torch.frombuffer(bytearray(file.read(message.size)), dtype=dtype)


class Messages:
    """From and to one rank.

    Args:
        folder: of the records; None: nothing is recorded.
        unknown: ranks whose messages nobody can know, as they wait for this one's.

    Attributes:
        course: how far training has got (:class:`zerokit.rehearsal.process.phases.Phases`), once followed.
        exchanged: whether there was one.
    """

    def __init__(self, folder: Path | None, rank: int, unknown: Collection[int] = ()) -> None:
        self._folder, self._rank, self._unknown = folder, rank, frozenset(unknown)
        self._records: dict[int, _Record] = {}
        self._sent: list[tuple[Any, ...]] = []
        self._offsets: dict[bytes, int] = {}
        self._file: BinaryIO | None = None
        self.course: Any = None
        self.exchanged = False

    # ---------------------------------------------------------------- sending

    def send(
        self, destination: int, channel: Channel, tensor: torch.Tensor, value: torch.Tensor | None
    ) -> None:
        """Record a tensor with its values, None where they are not known."""
        self.exchanged = True
        self._record_sent(destination, channel, tensor, value)

    def _record_sent(
        self, destination: int, channel: Channel, tensor: torch.Tensor, value: torch.Tensor | None
    ) -> None:
        if self._folder is None:
            return
        size = tensor.numel() * tensor.element_size()
        offset = self._keep(self._folder, value) if value is not None and size else None
        dtype = str(tensor.dtype).removeprefix("torch.")
        self._sent.append((destination, channel, size, dtype, tuple(tensor.shape), offset))

    def _keep(self, folder: Path, value: torch.Tensor) -> int:
        content = value.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        digest = hashlib.blake2b(content, digest_size=16).digest()
        offset = self._offsets.get(digest)
        if offset is None:
            if self._file is None:
                self._file = _paths(folder, self._rank)[1].open("wb")
            offset = self._offsets[digest] = self._file.tell()
            self._file.write(content)
        return offset

    def write(self, enough_after: int | None) -> None:
        """The script ended; ``enough_after``: the optimizer steps after which it was told to, if it was."""
        if self._folder is None:
            return
        if self._file is not None:
            self._file.close()
        record = {"enough_after": enough_after, "messages": self._sent}
        _paths(self._folder, self._rank)[0].write_text(json.dumps(record))

    def publish(self, ranks: tuple[int, ...], tensor: torch.Tensor, value: torch.Tensor | None) -> None:
        """Record what this rank broadcasts to a group, with its values, None where they are not known."""
        for rank in ranks:
            if rank != self._rank:
                self._record_sent(rank, (_BROADCAST, *ranks), tensor, value)

    # ---------------------------------------------------------------- receiving

    def published(
        self, source: int, ranks: tuple[int, ...], tensor: torch.Tensor, held: torch.Tensor | None
    ) -> torch.Tensor | None:
        """The values that ``source`` broadcasts next to a group; None where they are not known. ``held``:
        what this rank has in their place. Raises NeedsSenders: a zero, and the first rank has no record
        yet."""
        record = self._record(source)
        if record is None:
            if source == 0 and held is not None and held.numel() == 1 and not held.any():
                self.require([source])
            return None
        message = record.next((_BROADCAST, *ranks))
        if message is None or message.size != tensor.numel() * tensor.element_size():
            return None
        return record.value(message, tensor.dtype)

    def require(self, ranks: Iterable[int]) -> None:
        """This rank is going to receive values from ``ranks``. Raises NeedsSenders: some have no record
        yet."""
        missing = [rank for rank in ranks if rank not in self._unknown and self._record(rank) is None]
        if missing:
            raise NeedsSenders(missing)

    def receive(self, source: int, channel: Channel, tensor: torch.Tensor) -> torch.Tensor | None:
        """The values of the next message into ``tensor``; None where they are not known. Raises NeedsSenders:
        the sender has no record yet. Raises NotRehearsed: it sends nothing more, or something of another
        size. Raises StopRehearsal: it sends nothing more, and enough was seen."""
        self.exchanged = True
        record = self._record(source)
        if record is None:
            if not (tensor.dtype.is_floating_point or tensor.dtype.is_complex):
                self.require([source])
            return None
        message = record.next(channel)
        if message is None:
            if self.course is not None and self.course.enough:
                raise StopRehearsal
            raise NotRehearsed(
                "recv", f"rank {self._rank} waits for a message that rank {source} does not send"
            )
        size = tensor.numel() * tensor.element_size()
        if message.size != size:
            sent = f"{list(message.shape)} of {message.dtype}"
            taken = f"{list(tensor.shape)} of {str(tensor.dtype).removeprefix('torch.')}"
            raise NotRehearsed(
                "recv", f"rank {source} sends {sent}, where rank {self._rank} receives {taken}"
            )
        return record.value(message, tensor.dtype)

    def _record(self, source: int) -> _Record | None:
        record = self._records.get(source)
        if record is None and self._folder is not None and _paths(self._folder, source)[0].is_file():
            record = self._records[source] = _Record(self._folder, source, self._rank)
            if self.course is not None:
                self.course.follow(record.enough_after)
        return record
