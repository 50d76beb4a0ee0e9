"""A rehearsal's events as a course, and the ledger and the recorded step of a course with all layers."""

from __future__ import annotations

import hashlib
import itertools
from array import array
from collections import Counter
from typing import Any

import numpy as np

from zerokit.domain.phases import PHASES
from zerokit.rehearsal.process.allocator import PlayedAllocator
from zerokit.rehearsal.process.ledger import STILL_LIVE, GpuMemory, History
from zerokit.rehearsal.process.machine import Machine
from zerokit.rehearsal.process.recorder import Recorder
from zerokit.rehearsal.process.repetition import (
    BORN,
    DIED,
    EMPTIED,
    ENTERED,
    FOREVER,
    ISSUED,
    NOBODY,
    Course,
    Repetition,
    Unproved,
)
from zerokit.timing.operators import IssuedOperator

_GROW = ("flops", "bytes_read", "bytes_written", "launches", "python_calls", "c_calls")
"""What an operator has more of, where it works on a list with an entry for each layer."""
_TOTALS = ("peak_host_bytes", "managed_bytes", "written_bytes")
"""What the machine counts beside events, which every layer adds to."""


_Birth = tuple[int, int, np.ndarray | None]
_Row = tuple[int, int, int, int]
"""When, what kind, its place among those, and of what."""


def course_of(machine: Machine, recorder: Recorder | None) -> Course:
    """Return all that was asked of the ledger, with the operators of the recorded step."""
    ledger = machine.ledger
    history, numbers = ledger.history, _Numbers()
    rows: list[_Row] = [
        (clock, kind, at, number) for at, (clock, kind, number) in enumerate(history.events())
    ]
    rows += [(clock, ENTERED, at, at) for at, (clock, _) in enumerate(ledger.entered)]
    if recorder is not None:
        rows += [(clock, ISSUED, at, at) for at, clock in enumerate(recorder.clocks)]
    rows.sort()  # what happened at a time: the block, then phases, then operators
    rows = _in_one_order(rows, history)
    exact = np.zeros(len(rows), np.int64)
    alike = np.zeros(len(rows), np.int64)
    values = np.zeros((len(rows), len(_GROW)))
    births = [
        (ledger.origins[history.origin[number]], history.stream[number], ledger.contents.get(number),
         tuple(sorted(history.other_streams.get(number, ()))))
        for number in range(len(history.born))
    ]  # fmt: skip
    for at, (_, kind, _, subject) in enumerate(rows):
        what: Any = kind
        size: Any = None
        if kind in (BORN, DIED):
            what, size = (kind, births[subject]), history.requested_bytes[subject]
            if kind == BORN:
                values[at, 0] = size
        elif kind == ENTERED:
            what = kind, ledger.entered[subject][1]
        elif kind == ISSUED:
            assert recorder is not None
            event = recorder.events[subject]
            values[at] = [getattr(event, name) for name in _GROW]
            size = *values[at, :4].tolist(), event.shapes
            nothing: Any = dict.fromkeys(_GROW, 0)
            what = kind, event._replace(**nothing, shapes=())
        exact[at], alike[at] = numbers.of((what, size)), numbers.of(what)
    _, kinds, _, subjects = (np.asarray(column, np.int64) for column in zip(*rows, strict=True))
    on_host = [machine.host_phases.get(phase, 0) for phase in PHASES]
    totals = np.asarray([*(getattr(machine, name) for name in _TOTALS), *on_host], np.int64)
    return Course(kinds=kinds, exact=exact, alike=alike, subjects=subjects, values=values, totals=totals)


def _in_one_order(rows: list[_Row], history: History) -> list[_Row]:
    """Events, of which those without an order of their own come in one that is the same at every depth.

    Blocks that end one after another, as those of a cache, leave the same memory in any order: by birth. So
    do blocks that are asked for one after another and never end, as weights that a set of names gives: by
    size.
    """

    def group(row: _Row) -> int:
        _, kind, _, subject = row
        if kind == BORN and history.died[subject] == STILL_LIVE:
            return BORN
        return DIED if kind == DIED else NOBODY

    result: list[_Row] = []
    for kind, some in itertools.groupby(rows, group):
        if kind == BORN:
            result += sorted(some, key=lambda row: history.requested_bytes[row[3]])
        elif kind == DIED:
            result += sorted(some, key=lambda row: row[3])
        else:
            result += some
    return result


class _Numbers:
    """A number for each value, the same in every process."""

    def __init__(self) -> None:
        self._known: dict[Any, int] = {}

    def of(self, value: Any) -> int:
        number = self._known.get(value)
        if number is None:
            digest = hashlib.blake2b(repr(value).encode(), digest_size=8).digest()
            number = self._known[value] = int.from_bytes(digest, "little", signed=True)
        return number


def extend(
    machine: Machine, recorder: Recorder | None, fewer: Course, seen: Course, further: int, more: int
) -> None:
    """Make the machine's memory and the recorded step those of a run with all layers. ``seen``: of this
    rehearsal; ``fewer``: of one with ``further`` layers fewer. ``more``: layers that this one lacks. Raises
    Unproved: what the layers take does not follow from these two."""
    ledger = machine.ledger
    if ledger.history.postponed:
        raise Unproved("blocks that a smaller card sees later")
    player = _Player(ledger, recorder)
    kinds, subjects = seen.kinds.tolist(), seen.subjects.tolist()
    events = Repetition(fewer, seen, further).course(more)
    for stays, some in itertools.groupby(events, lambda one: one[1] == FOREVER):
        for event, ended, grown in _by_layer(list(some), seen) if stays else some:
            player.play(kinds[event], subjects[event], ended, grown)
    player.put_in_place()
    totals = (seen.totals + (seen.totals - fewer.totals) * more // further).tolist()
    for name, total in zip((*_TOTALS, *PHASES), totals, strict=True):
        if name in _TOTALS:
            setattr(machine, name, total)
        elif total:
            machine.host_phases[name] = total


def _by_layer(births: list[_Birth], seen: Course) -> list[_Birth]:
    """Blocks that stay, which :func:`course_of` has by size, layer after layer: how they lie on the card
    depends on that. What there is once comes where it came."""
    sizes = [int(seen.exact[event]) for event, _, _ in births]
    count, before = Counter(sizes), Counter[int]()
    first = min(int(seen.subjects[event]) for event, _, _ in births)
    most = max(int(seen.subjects[event]) for event, _, _ in births) - first + 1
    places = []
    for size, (event, _, _) in zip(sizes, births, strict=True):
        alone = (int(seen.subjects[event]) - first) / most
        places.append(alone if count[size] == 1 else (before[size] + 0.5) / count[size])
        before[size] += 1
    return [births[at] for at in sorted(range(len(births)), key=places.__getitem__)]


class _Player:
    """Plays events of a rehearsal, in another order and number, on a card of its own."""

    def __init__(self, ledger: GpuMemory, recorder: Recorder | None) -> None:
        self._seen, self._recorder = ledger, recorder
        self._ledger = GpuMemory(ledger.allocator.settings)
        self._ledger.allocator = PlayedAllocator(ledger.allocator.settings)
        self._blocks: list[tuple[int, Any]] = []
        self._events: list[IssuedOperator] = []
        self._clocks = array("q")

    def play(self, kind: int, subject: int, ended: int, grown: np.ndarray | None) -> None:
        """Play one event, as :meth:`Repetition.course` tells it."""
        ledger = self._ledger
        if kind == BORN:
            self._bear(subject, grown)
        elif kind == DIED:
            ledger.release(self._blocks[ended])
        elif kind == EMPTIED:
            ledger.empty_cache()
        elif kind == ENTERED:
            ledger.enter(self._seen.entered[subject][1])
        else:
            self._issue(subject, grown)

    def _bear(self, number: int, grown: np.ndarray | None) -> None:
        seen, ledger = self._seen, self._ledger
        history = seen.history
        origin = seen.origins[history.origin[number]]
        ledger.origin = lambda why, size: origin
        ledger.threads.stream = history.stream[number]
        size = history.requested_bytes[number] if grown is None else round(grown[0])
        block = ledger.hold(size, "")
        self._blocks.append(block)
        if number in seen.contents:
            ledger.contents[block[0]] = seen.contents[number]
        if number in history.other_streams:
            ledger.history.other_streams[block[0]] = history.other_streams[number]

    def _issue(self, number: int, grown: np.ndarray | None) -> None:
        assert self._recorder is not None
        issued = self._recorder.events[number]
        if issued.handle:
            raise Unproved("events that others wait for")
        if grown is not None:
            work = dict(zip(_GROW, grown.round().astype(int).tolist(), strict=True))
            issued = issued._replace(**work)
        self._events.append(issued)
        self._clocks.append(self._ledger.clock)

    def put_in_place(self) -> None:
        """Make what was played what was seen."""
        for name in ("lower_bounds", "dtypes", "origin"):
            setattr(self._ledger, name, getattr(self._seen, name))
        self._seen.__dict__.update(self._ledger.__dict__)
        if self._recorder is not None:
            self._recorder.events, self._recorder.clocks = self._events, self._clocks
