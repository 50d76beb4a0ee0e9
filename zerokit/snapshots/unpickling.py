"""Reads the pickle of a memory snapshot: dictionaries, lists, tuples, texts and numbers, and nothing else.

No class or function is ever looked up, so nothing of a file can run. A snapshot has millions of events that
are written alike (pickle protocol 4 or 5, as ``torch.cuda.memory._dump_snapshot`` writes it): once one was
read opcode by opcode, a regular expression takes the others whole, into columns. Stacks stay bytes until
somebody asks.
"""

from __future__ import annotations

import mmap
import re
import struct
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from zerokit.errors import InputError
from zerokit.files import open_regular
from zerokit.strictload.document import unreadable

_MOST_BYTES = 3 << 30
"""Of memory that a file's values may take, about."""
_MOST_WAITING = 2_000_000
_MOST_NESTED = 64
_MOST_TEXT = 1 << 20
_MOST_DIGITS = 16
_MOST_KEPT_NUMBERS = 1 << 20

ALLOC, FREE_REQUESTED, FREE_COMPLETED, SEGMENT_ALLOC, SEGMENT_FREE, SEGMENT_MAP, SEGMENT_UNMAP, OOM = range(
    1, 9
)
_ACTIONS = {
    "alloc": ALLOC, "free_requested": FREE_REQUESTED, "free_completed": FREE_COMPLETED,
    "segment_alloc": SEGMENT_ALLOC, "segment_free": SEGMENT_FREE, "segment_map": SEGMENT_MAP,
    "segment_unmap": SEGMENT_UNMAP, "oom": OOM,
}  # fmt: skip
"""As torch/csrc/cuda/memory_snapshot.cpp names them (2.6 to 2.13); others change no memory."""
NO_STACK = -1

_GET = rb"h.|j.{4}"
_LONG = rb"|".join(b"\\x8a\\x%02x.{%d}" % (n, n) for n in range(1, 10))
_INT = rb"K.|M.{2}|J.{4}|" + _LONG
_TEXT = rb"\x8c(?:" + rb"|".join(b"\\x%02x.{%d}" % (n, n) for n in range(64)) + rb")\x94"
_STACK = rb"\]\x94(?:\((?:" + _GET + rb"){1,2000}e|(?:" + _GET + rb")a)?"
_PAIR = rb"(?:" + _INT + rb"){2}\x86\x94"
_KINDS = {"get": _GET, "int": _INT, "text": _TEXT, "stack": _STACK, "pair": _PAIR}
_ITEM = re.compile(
    rb"(?P<key>%s)(?:%s)"
    % (_GET, b"|".join(b"(?P<%s>%s)" % (kind.encode(), form) for kind, form in _KINDS.items())),
    re.DOTALL,
)
"""A key, which was written before, and its value, by kind."""
_REFERENCES = re.compile(_GET, re.DOTALL)
_STACKS = re.compile(_STACK, re.DOTALL)
_COLUMNS = frozenset(("action", "addr", "size", "frames"))

_SIMPLE: dict[int, Callable[[], Any]] = {
    0x4E: lambda: None, 0x88: lambda: True, 0x89: lambda: False, 0x29: tuple, 0x7D: dict, 0x5D: list,
}  # fmt: skip
_FIXED = {
    code: struct.Struct(form) for code, form in {0x4B: "<B", 0x4D: "<H", 0x4A: "<i", 0x47: ">d"}.items()
}
_GETS = {code: struct.Struct(form) for code, form in {0x68: "<B", 0x6A: "<I"}.items()}
_PUTS = {code: struct.Struct(form) for code, form in {0x94: "<", 0x71: "<B", 0x72: "<I"}.items()}
_TEXTS = {code: struct.Struct(form) for code, form in {0x8C: "<B", 0x58: "<I", 0x8D: "<Q"}.items()}
_DICT, _MARK, _APPEND, _APPENDS, _SETITEM, _SETITEMS = 0x7D, 0x28, 0x61, 0x65, 0x73, 0x75
_TUPLES = {0x74: 0, 0x85: 1, 0x86: 2, 0x87: 3}
_COLLECTS = {**_TUPLES, _MARK: 0, _APPEND: 1, _APPENDS: 0, _SETITEM: 2, _SETITEMS: 0}
"""How many values each takes; 0: all since the last mark."""
_MEMOIZE, _LIST, _LONG1, _FRAME, _STOP = 0x94, 0x5D, 0x8A, 0x95, 0x2E
"""Of Python's pickletools, 3.11."""
_NO_FRAMES = "a stack is no list of frames"
_CUT = "the file is cut off or damaged"
_DAMAGED = (IndexError, struct.error, UnicodeDecodeError, OverflowError, TypeError, KeyError, ValueError)


class Frame(NamedTuple):
    """A line of a stack."""

    file: str
    line: int
    name: str


class Events(NamedTuple):
    """What an allocator did, oldest first, in columns: codes of actions, addresses (of ``OOM`` the bytes that
    the driver had free), bytes as asked for, and the number of each one's stack."""

    action: array[int]
    address: array[int]
    size: array[int]
    stack: array[int]


class _Shape(NamedTuple):
    """How one kind of event is written; ``before``, ``after``: groups that are memoized, before its stack and
    after it."""

    match: Callable[[Any, int], re.Match[bytes] | None]
    before: tuple[str, ...]
    after: tuple[str, ...]


class _Event:
    """Stands in the memo for an event that has its columns; nothing refers to one."""


class SnapshotReader:
    """Values of one file. ``value``: of the whole file; an event in it is the number of its row. ``events``:
    all rows."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.events = Events(array("b"), array("Q"), array("q"), array("q"))
        self._memo: list[Any] = []
        self._numbers_of_lists: dict[int, int] = {}
        self._shapes: dict[bytes, _Shape] = {}
        self._integers: dict[bytes, int] = {}
        self._actions: dict[bytes, int] = {}
        self._stacks: dict[bytes, int] = {}
        self._frames: dict[int, Frame] = {}
        self._spent = self._at = 0
        self._waiting: list[Any] = []
        self._marks: list[int] = []
        self._begun: list[int] = []  # where the dictionaries begin that are being read
        with _opened(path) as file:
            start = file.read(16)
            if start == b"SQLite format 3\0":
                raise InputError(
                    f"{path}: a database of SQLite, which no PyTorch from 2.6 to 2.13 writes; dump the "
                    "snapshot with torch.cuda.memory._dump_snapshot"
                )
            if len(start) < 3 or start[0] != 0x80 or not 2 <= start[1] <= 5:
                raise InputError(
                    f"{path}: not a memory snapshot; name a file that torch.cuda.memory._dump_snapshot wrote"
                )
            self._data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        try:
            self.value = self._read()
        except _DAMAGED as error:
            raise self.refused(_CUT) from error

    def __len__(self) -> int:
        """Bytes of the file."""
        return len(self._data)

    def frames(self, stack: int) -> tuple[Frame, ...]:
        """Give the lines of a stack by its number, innermost first; none for :data:`NO_STACK`."""
        if stack == NO_STACK:
            return ()
        value = self._memo[stack]
        try:
            return tuple(map(self._frame, self._listed(value) if type(value) is int else value))
        except _DAMAGED as error:
            raise self.refused(_NO_FRAMES) from error

    def _frame(self, written: dict[str, Any]) -> Frame:
        """A line, of which most are in many stacks."""
        known = self._frames.get(id(written))
        if known is None:
            known = Frame(written["filename"], written["line"], written["name"])
            if [type(part) for part in known] != [str, int, str]:
                raise self.refused(_NO_FRAMES)
            self._frames[id(written)] = known
        return known

    def stack_of(self, record: dict[str, Any]) -> int:
        """Give the number of a record's stack."""
        frames = record.get("frames")
        if not frames:
            return NO_STACK
        if type(frames) is not list:
            raise self.refused(_NO_FRAMES)
        if id(frames) not in self._numbers_of_lists:
            self._numbers_of_lists[id(frames)] = len(self._memo)
            self._memo.append(frames)
        return self._numbers_of_lists[id(frames)]

    def refused(self, what: str) -> InputError:
        """Make the error of a file that cannot be read, with how far it was."""
        return InputError(f"{self.path}: {what} (at byte {self._at:,})")

    def _spend(self, size_bytes: int) -> None:
        self._spent += size_bytes
        if self._spent > _MOST_BYTES:
            raise self.refused(f"its values take more than {_MOST_BYTES >> 30} GiB of memory")

    def _read(self) -> Any:
        """Read the file opcode by opcode, but for events, which are taken together."""
        data, stack, at = self._data, self._waiting, 2
        while True:
            self._at = at
            if len(stack) > _MOST_WAITING or len(self._marks) > _MOST_NESTED:
                raise self.refused("values are nested deeper than in a snapshot")
            op = data[at]
            if op == _DICT and self._shapes:
                taken = len(self.events.action)
                at = self._take_events(at)
                if len(self.events.action) > taken:
                    stack += range(taken, len(self.events.action))
                    continue
            if op == _STOP:
                if len(stack) != 1 or self._marks:
                    raise self.refused(_CUT)
                return stack[0]
            if op == _FRAME:
                at += 9
            elif op in _PUTS:
                at = self._keep(op, at + 1)
            elif op in _COLLECTS:
                at = self._collect(op, at + 1)
            else:
                at = self._push(op, at + 1)

    def _push(self, op: int, at: int) -> int:
        """Put a value on the stack, and say where the next opcode is."""
        data, stack = self._data, self._waiting
        if op in _SIMPLE:
            if op == _DICT:
                self._begun.append(at - 1)
            stack.append(_SIMPLE[op]())
            self._spend(64)
            return at
        if op in _FIXED:
            stack.append(_FIXED[op].unpack_from(data, at)[0])
            return at + _FIXED[op].size
        if op in _GETS:
            stack.append(self._referred(_GETS[op].unpack_from(data, at)[0]))
            return at + _GETS[op].size
        if op == _LONG1:
            size = data[at]
            if size > _MOST_DIGITS:
                raise self.refused("a number is larger than any of a snapshot")
            stack.append(int.from_bytes(self._bytes(at + 1, size), "little", signed=True))
            return at + 1 + size
        if op in _TEXTS:
            size = int(_TEXTS[op].unpack_from(data, at)[0])
            at += _TEXTS[op].size
            if size > _MOST_TEXT:
                raise self.refused("a text is longer than any of a snapshot")
            stack.append(self._bytes(at, size).decode("utf-8", "replace"))
            self._spend(64 + 4 * size)
            return at + size
        raise self.refused(
            f"opcode {bytes([op])!r}: a snapshot has none that make objects or call functions; none was run"
        )

    def _keep(self, op: int, at: int) -> int:
        """Keep the last value under a number."""
        value, memo = self._waiting[-1], self._memo
        number = len(memo) if op == _MEMOIZE else _PUTS[op].unpack_from(self._data, at)[0]
        if number > len(memo):
            raise self.refused("a value is kept under a number that is out of order")
        memo[number : number + 1] = [value]
        if type(value) is list:
            self._numbers_of_lists[id(value)] = number
        self._spend(64)
        return at + _PUTS[op].size

    def _collect(self, op: int, at: int) -> int:
        """Put what waits on the stack into a tuple, a list or a dictionary."""
        stack = self._waiting
        if op == _MARK:
            self._marks.append(len(stack))
            return at
        count = _COLLECTS[op]
        start = len(stack) - count if count else self._marks.pop()
        if start < (self._marks[-1] if self._marks else 0):
            raise self.refused(_CUT)
        values = stack[start:]
        del stack[start:]
        self._spend(64 + 64 * len(values))
        if op in _TUPLES:
            stack.append(tuple(values))
            return at
        target = stack[-1]
        if op in (_APPEND, _APPENDS):
            if type(target) is not list:
                raise self.refused("something is appended to what is no list")
            target.extend(values)
            return at
        if type(target) is not dict or not {type(key) for key in values[::2]} <= {str, int}:
            raise self.refused("a dictionary's keys are no texts and no numbers")
        target.update(zip(values[::2], values[1::2], strict=True))
        begun = self._begun.pop() if self._begun else at
        if "action" in target:
            stack[-1] = self._row(target)
            self._learn(begun, at)
        return at

    def _bytes(self, at: int, size: int) -> bytes:
        if at + size > len(self._data):
            raise self.refused(_CUT)
        return self._data[at : at + size]

    def _referred(self, number: int) -> Any:
        """What was kept under a number; of an event's own values only where they stand is known before."""
        value = self._memo[number]
        if value is _Event:
            raise self.refused("something refers to an event")
        if type(value) is int:
            value = self._memo[number] = self._written_at(value)
            if type(value) is list:
                self._numbers_of_lists[id(value)] = number
        return value

    def _written_at(self, at: int) -> Any:
        data = self._data
        if data[at] == 0x8C:
            return self._bytes(at + 2, data[at + 1]).decode("utf-8", "replace")
        if data[at] == _LIST:
            return self._listed(at)
        raise self.refused("something refers to a value that a snapshot has once")

    def _listed(self, at: int) -> list[Any]:
        """The frames of a stack, which all were written before it."""
        found = _STACKS.match(self._data, at)
        frames = [self._memo[_number(one)] for one in _REFERENCES.findall(found[0])] if found else [None]
        if not all(type(one) is dict for one in frames):
            raise self.refused(_NO_FRAMES)
        return frames

    # ------------------------------------------------------------------ events

    def _row(self, event: dict[Any, Any]) -> int:
        """Put an event into the columns."""
        columns = self.events
        action = _ACTIONS.get(event["action"], 0)
        columns.action.append(action)
        columns.address.append(event.get("device_free" if action == OOM else "addr", 0))
        columns.size.append(event["size"])
        columns.stack.append(self.stack_of(event))
        return len(columns.action) - 1

    def _learn(self, start: int, end: int) -> None:
        """Make an expression that takes events which are written as this one is."""
        data, items, at = self._data, [], start + 3
        if data[start : start + 3] != b"}\x94(" or len(self._shapes) >= 16:
            return
        while at < end - 1:
            found = _ITEM.match(data, at, end)
            if found is None:
                return
            items.append((found["key"], found.lastgroup or ""))
            at = found.end()
        names = [self._referred(_number(key)) for key, _ in items]
        kinds = dict(zip(names, (kind for _, kind in items), strict=True))
        known = [kinds.get(name) for name in ("action", "addr", "size")] == ["get", "int", "int"]
        if not known or len(kinds) < len(names):
            return
        expression, memoized, stack_at = rb"\}\x94\(", list[str](), -1
        for place, (name, (key, kind)) in enumerate(zip(names, items, strict=True)):
            form = _GET + rb"|" + _STACK if name == "frames" else _KINDS[kind]
            group = name if name in _COLUMNS else f"part_{place}"
            expression += re.escape(key) + b"(?P<%s>%s)" % (group.encode(), form)
            if name == "frames":
                stack_at = len(memoized)
            elif kind in ("text", "stack", "pair"):
                memoized.append(group)
        if stack_at < 0:
            expression, stack_at = expression + rb"(?P<frames>)", len(memoized)
        match = re.compile(expression + b"u", re.DOTALL).match
        self._shapes[expression] = _Shape(match, tuple(memoized[:stack_at]), tuple(memoized[stack_at:]))

    def _take_events(self, at: int) -> int:
        """Put all events that follow each other into the columns, and say where they end."""
        data, memo, stacks = self._data, self._memo, self._stacks
        actions, addresses, sizes, numbers = self.events
        add = memo.append
        while True:
            for shape in self._shapes.values():
                found = shape.match(data, at)
                if found is not None:
                    break
            else:
                return at
            match = shape.match
            while found is not None:
                action, address, size, stack = found.group("action", "addr", "size", "frames")
                actions.append(self._actions[action] if action in self._actions else self._action(action))
                addresses.append(self._integer(address))
                sizes.append(self._integer(size))
                add(_Event)
                for group in shape.before:
                    add(found.start(group))
                if not stack:
                    numbers.append(NO_STACK)
                elif stack[0] == _LIST:
                    numbers.append(stacks.setdefault(stack, len(memo)) if len(stack) > 2 else NO_STACK)
                    add(found.start("frames"))
                else:
                    numbers.append(self._canonical(_number(stack)))
                for group in shape.after:
                    add(found.start(group))
                at = found.end()
                found = match(data, at)

    def _action(self, reference: bytes) -> int:
        self._actions[reference] = _ACTIONS.get(self._referred(_number(reference)), 0)
        return self._actions[reference]

    def _integer(self, written: bytes) -> int:
        """A number, of which most come again: addresses and sizes."""
        known = self._integers.get(written)
        if known is None:
            if len(self._integers) > _MOST_KEPT_NUMBERS:
                self._integers.clear()
            start = 2 if written[0] == _LONG1 else 1
            signed = written[0] in (_LONG1, 0x4A)
            known = self._integers[written] = int.from_bytes(written[start:], "little", signed=signed)
        return known

    def _canonical(self, number: int) -> int:
        """The number of the first stack with the same lines."""
        value = self._memo[number]
        if type(value) is not int:
            return NO_STACK if value == [] else number
        found = _STACKS.match(self._data, value)
        return self._stacks.get(found[0], number) if found is not None and len(found[0]) > 2 else NO_STACK


def _opened(path: Path) -> BinaryIO:
    try:
        return open_regular(path, "/")
    except OSError as error:
        raise unreadable(path, error) from None


def _number(reference: bytes) -> int:
    return int.from_bytes(reference[1:], "little")
