"""What one rank of a run without progress was doing, from its own record and its Python stack."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from zerokit.launcher.rank_file import stacks_file

_LARGEST_STACKS = 1 << 20
_STACK_LINE = re.compile(r'  File "(.+)", line (\d+) in (.+)')
_LIBRARIES = ("/site-packages/", "/dist-packages/", "/lib/python", "<frozen", "<string>",
              "/zerokit/launcher/", "/zerokit/instrument/", "/deepspeed/", "/torch/",
              "/transformers/", "/accelerate/")  # fmt: skip


class Place(NamedTuple):
    """A line of Python that was running; ``text`` is empty where only the stack's file tells of it."""

    file: str
    line: int
    function: str
    text: str = ""

    def __str__(self) -> str:
        return f"{Path(self.file).name}:{self.line}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A collective that a rank entered; ``count``: the how-manieth of its group."""

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

    def __str__(self) -> str:
        text = self.operation
        if self.shape is not None:
            text += f" of {list(self.shape)} {self.dtype}"
        return text + (f" for {self.module}" if self.module else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class RankView:
    """One rank: its collectives, its place, and what the system says of its process."""

    rank: int
    steps: int = 0
    gone: bool = False
    stopped: bool = False
    ending: bool = False
    activity: str | None = None
    calls: tuple[Call, ...] = ()
    frames: tuple[Place, ...] = ()
    module: str | None = None
    visited: tuple[str, ...] = ()
    forward: tuple[int, ...] = ()
    groups: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    threads: tuple[tuple[str, Place], ...] = ()
    recorded: bool = False

    @property
    def script_place(self) -> Place | None:
        """The innermost line that belongs to no library and not to zerokit."""
        return next((p for p in self.frames if not any(part in p.file for part in _LIBRARIES)), None)

    def inside(self, *ends: str) -> Place | None:
        """The innermost frame of a file whose path ends so (``file.py`` or ``file.py:function``)."""
        for place in self.frames:
            for end in ends:
                name, _, function = end.partition(":")
                if place.file.replace("\\", "/").endswith(name) and function in ("", place.function):
                    return place
        return None

    @property
    def waits_in(self) -> Call | None:
        """The collective that it waits in, or for: the last one entered, while it is at torch's hands."""
        last = self.calls[-1] if self.calls else None
        if last is None or self.gone:
            return None
        if last.inside:
            return last
        top = self.frames[:12]
        waiting = any(_waits(place) for place in top)
        return last if waiting else None


def _waits(place: Place) -> bool:
    path = place.file.replace("\\", "/")
    return "/torch/distributed/" in path or (
        place.function == "wait" and "/deepspeed/" in path
    ) or "/deepspeed/comm/" in path  # fmt: skip


def view(run_dir: Path, rank: int, record: Mapping[str, Any] | None, **known: Any) -> RankView:
    """What is known of a rank: ``record`` is its newest ``calls`` line, ``known`` the supervisor's own."""
    if record is None:
        return RankView(rank=rank, frames=_stack(stacks_file(run_dir, rank)), **known)
    known["ending"] = bool(record.get("ending")) or bool(known.get("ending"))
    groups = record.get("groups")
    return RankView(
        rank=rank,
        calls=tuple(call for item in _list(record.get("calls")) if (call := _call(item)) is not None),
        frames=tuple(_places(record.get("frames"))),
        module=_text(record.get("module")),
        visited=tuple(str(name) for name in _list(record.get("visited"))),
        forward=tuple(n for n in _list(record.get("forward")) if isinstance(n, int)),
        groups={
            str(name): tuple(r for r in _list(group.get("ranks")) if isinstance(r, int))
            for name, group in (groups.items() if isinstance(groups, dict) else ())
            if isinstance(group, dict)
        },
        threads=tuple(_threads(record.get("threads"))),
        recorded=True,
        **known,
    )


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def _call(item: object) -> Call | None:
    """A line's entry; None for one that is damaged."""
    if not isinstance(item, dict):
        return None
    shape = item.get("shape")
    try:
        return Call(
            number=int(item["number"]), count=int(item["count"]), operation=str(item["operation"]),
            group=str(item["group"]), step=int(item["step"]), phase=str(item["phase"]),
            shape=tuple(int(size) for size in shape) if isinstance(shape, list) else None,
            dtype=_text(item.get("dtype")), module=_text(item.get("module")),
            forward=bool(item.get("forward", True)), inside=bool(item.get("inside")),
        )  # fmt: skip
    except (KeyError, TypeError, ValueError):
        return None


def _places(value: object) -> list[Place]:
    return [
        Place(item[0], item[1], item[2], str(item[3]))
        for item in _list(value)
        if isinstance(item, list) and len(item) == 4 and isinstance(item[1], int)
        and isinstance(item[0], str) and isinstance(item[2], str)
    ]  # fmt: skip


def _threads(value: object) -> list[tuple[str, Place]]:
    found = []
    for item in _list(value):
        places = _places(item.get("frames")) if isinstance(item, dict) else []
        if places:
            found.append((str(item.get("name")), places[0]))
    return found


def _stack(path: Path) -> tuple[Place, ...]:
    """The last stack that faulthandler wrote of the thread that trains: the one that gets the signals."""
    try:
        with path.open("rb") as file:
            text = file.read(_LARGEST_STACKS).decode("utf-8", "replace")
    except OSError:
        return ()
    _, found, rest = text.rpartition("Current thread ")
    places = []
    for line in rest.splitlines()[1:] if found else []:
        match = _STACK_LINE.fullmatch(line)
        if match is None:
            break
        places.append(Place(match[1], int(match[2]), match[3]))
    return tuple(places)
