"""What one rank of a run without progress was doing, from its own record and its Python stack,
and the words in which ranks are named and shown to wait.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from zerokit.files import open_regular
from zerokit.launcher.rank_file import native_stacks_file, stacks_file
from zerokit.units import ranks_named

_LARGEST_STACKS = 1 << 20
_STACK_LINE = re.compile(r'  File "(.+)", line (\d+),? in (.+)$')  # faulthandler's, and a traceback's
_NATIVE_LINE = re.compile(r"    (\S.*?) \(")
_LIBRARIES = ("/site-packages/", "/dist-packages/", "/lib/python", "<frozen", "<string>",
              "/zerokit/launcher/", "/zerokit/instrument/", "/deepspeed/", "/torch/",
              "/transformers/", "/accelerate/")  # fmt: skip


class Frame(NamedTuple):
    """A line of Python that was running; ``text`` is empty where only the stack's file tells of it."""

    file: str
    line: int
    function: str
    text: str = ""

    def __str__(self) -> str:
        return f"{Path(self.file).name}:{self.line}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A collective that a rank entered; ``count``: its number among those of its group. Of PyTorch's flight
    recorder, whether it is ``pending``, and how many of its group were queued after it."""

    number: int
    count: int
    operation: str
    group: str
    step: int
    phase: str
    shape: tuple[int, ...] | None = None
    dtype: str | None = None
    module: str | None = None
    forward: bool = True
    inside: bool = False
    pending: bool = False
    from_end: int = 0

    def __str__(self) -> str:
        text = self.operation
        if self.shape is not None:
            text += f" of {list(self.shape)} {self.dtype}"
        return text + (f" for {self.module}" if self.module else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class RankView:
    """One rank: its collectives (``flight``: as PyTorch's flight recorder has them), its place, and what the
    system says of its process.

    ``native``: the functions that its main thread is in, innermost first, where py-spy could tell.
    ``kernel``: the kernel's function that it waits in. ``broken``: it has ended, because a collective lost
    its peer. ``left_at``: where it called ``os._exit``.
    """

    rank: int
    steps: int = 0
    exited: bool = False
    stopped: bool = False
    ending: bool = False
    activity: str | None = None
    calls: tuple[Call, ...] = ()
    frames: tuple[Frame, ...] = ()
    module: str | None = None
    visited: tuple[str, ...] = ()
    forward: tuple[int, ...] = ()
    groups: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    threads: tuple[tuple[str, Frame], ...] = ()
    recorded: bool = False
    flight: tuple[Call, ...] = ()
    native: tuple[str, ...] = ()
    kernel: str | None = None
    broken: bool = False
    left_at: str | None = None

    @property
    def script_frame(self) -> Frame | None:
        """The innermost line that belongs to no library and not to zerokit."""
        return next((p for p in self.frames if not any(part in p.file for part in _LIBRARIES)), None)

    def inside(self, *ends: str) -> Frame | None:
        """The innermost frame of a file whose path ends so (``file.py`` or ``file.py:function``)."""
        for frame in self.frames:
            for end in ends:
                name, _, function = end.partition(":")
                if frame.file.replace("\\", "/").endswith(name) and function in ("", frame.function):
                    return frame
        return None

    @property
    def waits_in(self) -> Call | None:
        """The collective that it waits in, or for: the first that never ended, else the last one entered."""
        if self.exited:
            return None
        stuck = next((call for call in self.flight if call.pending), None)
        if stuck is not None:
            return self._recorded(stuck)
        last = self.calls[-1] if self.calls else None
        if last is None:
            return None
        if last.inside or self.broken:
            return last
        return last if any(_waits(frame) for frame in self.frames[:12]) else None

    def _recorded(self, call: Call) -> Call:
        """Our own record of a call of the flight recorder, which knows its module, where there is one."""
        calls = [recorded_call for recorded_call in self.calls if recorded_call.group == call.group]
        if call.from_end < len(calls) and calls[-1 - call.from_end].shape == call.shape:
            return replace(calls[-1 - call.from_end], inside=True)
        return replace(call, step=self.steps)


def _waits(frame: Frame) -> bool:
    path = frame.file.replace("\\", "/")
    return "/torch/distributed/" in path or (
        frame.function == "wait" and "/deepspeed/" in path
    ) or "/deepspeed/comm/" in path  # fmt: skip


def view(
    run_dir: Path,
    known: RankView,
    record: Mapping[str, Any] | None,
    flight: Mapping[str, Any] | None = None,
) -> RankView:
    """What is known of a rank, with what the supervisor knows, its newest ``calls`` line and its newest
    ``flight`` line."""
    native = _read_stacks(native_stacks_file(run_dir, known.rank))  # as ``py-spy dump`` printed them
    known = replace(
        known,
        native=tuple(match[1] for match in _matches(_NATIVE_LINE, native.partition("\nThread "))),
        flight=tuple(_calls((flight or {}).get("calls"))),
    )
    if record is None:
        return replace(known, frames=_stack(stacks_file(run_dir, known.rank)))
    return recorded(known, record)


def recorded(known: RankView, record: Mapping[str, Any]) -> RankView:
    """What is known of a rank, and what it says of itself in a ``calls`` line."""
    groups = record.get("groups")
    return replace(
        known,
        ending=bool(record.get("ending")) or known.ending,
        calls=tuple(_calls(record.get("calls"))),
        frames=tuple(_frames_of(record.get("frames"))),
        module=_text(record.get("module")),
        kernel=_text(record.get("kernel")),
        visited=tuple(str(name) for name in _list(record.get("visited"))),
        forward=tuple(n for n in _list(record.get("forward")) if isinstance(n, int)),
        groups={
            str(name): tuple(r for r in _list(group.get("ranks")) if isinstance(r, int))
            for name, group in (groups.items() if isinstance(groups, dict) else ())
            if isinstance(group, dict)
        },
        threads=tuple(_threads(record.get("threads"))),
        recorded=True,
    )


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def _calls(value: object) -> Iterator[Call]:
    """The entries of a line; without those that are damaged."""
    for item in _list(value):
        with suppress(AttributeError, KeyError, TypeError, ValueError):
            shape = item.get("shape")
            yield Call(
                number=int(item.get("number", 0)), count=int(item["count"]), operation=str(item["operation"]),
                group=str(item["group"]), step=int(item.get("step", 0)), phase=str(item.get("phase", "")),
                shape=tuple(int(size) for size in shape) if isinstance(shape, list) else None,
                dtype=_text(item.get("dtype")), module=_text(item.get("module")),
                forward=bool(item.get("forward", True)), inside=bool(item.get("inside")),
                pending=bool(item.get("pending")), from_end=int(item.get("from_end", 0)),
            )  # fmt: skip


def _frames_of(value: object) -> list[Frame]:
    return [
        Frame(item[0], item[1], item[2], str(item[3]))
        for item in _list(value)
        if isinstance(item, list) and len(item) == 4 and isinstance(item[1], int)
        and isinstance(item[0], str) and isinstance(item[2], str)
    ]  # fmt: skip


def _threads(value: object) -> list[tuple[str, Frame]]:
    threads = []
    for item in _list(value):
        frames = _frames_of(item.get("frames")) if isinstance(item, dict) else []
        if frames:
            threads.append((str(item.get("name")), frames[0]))
    return threads


def _stack(path: Path) -> tuple[Frame, ...]:
    """The last stack that faulthandler wrote of the thread that trains: the one that gets the signals."""
    found = _matches(_STACK_LINE, _read_stacks(path).rpartition("Current thread "))
    return tuple(Frame(match[1], int(match[2]), match[3]) for match in found)


def _read_stacks(path: Path) -> str:
    with suppress(OSError), open_regular(path, path.parent) as file:
        return file.read(_LARGEST_STACKS).decode("utf-8", "replace")
    return ""


def _matches(pattern: re.Pattern[str], parted: tuple[str, str, str]) -> Iterable[re.Match[str]]:
    """The lines that match, from the line after the marker on, up to the first that does not."""
    _, marker, rest = parted
    lines = rest.splitlines()[1:] if marker else []
    return filter(None, itertools.takewhile(bool, map(pattern.match, lines)))


def traceback_frames(text: str) -> list[Frame]:
    """The frames of a traceback as Python prints it, innermost first."""
    matches = (_STACK_LINE.fullmatch(line) for line in text.splitlines())
    return [Frame(match[1], int(match[2]), match[3]) for match in matches if match][::-1]


def names(views: Sequence[RankView]) -> str:
    """``ranks 0, 3``, at most eight."""
    return ranks_named([view.rank for view in views])


def verb(views: Sequence[RankView], singular: str, plural: str) -> str:
    """The verb for so many ranks."""
    return singular if len(views) == 1 else plural


def ranks_of(views: Sequence[RankView]) -> tuple[int, ...]:
    """Their numbers."""
    return tuple(view.rank for view in views)


def waiting_in(views: Sequence[RankView]) -> list[RankView]:
    """Ranks that wait in a collective."""
    return [view for view in views if view.waits_in is not None]


def they_wait(views: Sequence[RankView], culprits: Sequence[RankView]) -> str:
    """``; rank 0 waits in all_reduce of [4] float32 (step 5, train.py:31)``: the others, and where."""
    waiting = [view for view in waiting_in(views) if view not in culprits]
    call = waiting[0].waits_in if waiting else None
    if call is None:
        return ""
    alike = [view for view in waiting if str(view.waits_in) == str(call)]
    return f"; {names(alike)} {verb(alike, 'waits', 'wait')} in {call}{when(call, alike[0])}"


def when(call: Call, view: RankView) -> str:
    """`` (step 5, train.py:31)``: without the step where there is no engine that counts them."""
    step = f"step {call.step + 1}" if call.phase not in ("", "load") else ""
    text = (step + at(view)).removeprefix(", ")
    return f" ({text})" if text else ""


def at(view: RankView) -> str:
    """``, train.py:31``: where in the user's script a rank is; empty where it is in none."""
    location = view.script_frame
    return "" if location is None else f", {location}"
