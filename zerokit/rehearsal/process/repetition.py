"""From a course of allocations with few layers to that with all: what comes once for each layer is repeated.

Two rehearsals that differ by some layers alone differ by what each of these layers adds, in every place where
layers come one after another: built, moved to the GPU, run forward and backward, clipped, stepped. Where the
longer course is the shorter one with further copies of what comes before them, still further copies give the
course of any depth. What a block's end belongs to (the same layer, the layer's backward, a place after all of
them) follows from how it moves between the two. Where anything else differs, nothing follows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

BORN, DIED, EMPTIED, ENTERED, ISSUED = range(5)
"""Kinds of events: of blocks, ``empty_cache``, the beginning of a phase, an operator of the recorded step."""
NOBODY, FOREVER = -1, -2
_WINDOW, _GROWING = 64, 3
"""So many events are compared after a place with further layers, and how many of them may have grown."""


class Unproved(Exception):
    """What the two courses differ by is not so many copies of what a layer does."""


class Place(NamedTuple):
    """Where an event is: in ``run``, ``copy`` and ``offset`` say where in it; else so many after a run's end.
    ``run``: that holds it, or that it comes after. ``copy``: which layer's; None: none's."""

    run: int
    copy: int | None
    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """All events of a rehearsal's memory, in order.

    Attributes:
        kinds, exact, alike: of each event: its kind, and what it is, with and without its sizes, as numbers
            that are the same in two processes.
        subjects: of each: the block's number, or an operator's, or a phase's.
        values: of each, what may grow with the number of layers: bytes asked for; an operator's work and
            calls. Shape (events, columns).
        totals: further figures that grow with the number of layers.
    """

    kinds: np.ndarray
    exact: np.ndarray
    alike: np.ndarray
    subjects: np.ndarray
    values: np.ndarray
    totals: np.ndarray

    def lives(self) -> Iterator[tuple[int, int | None]]:
        """Where each block begins and ends, in the order of their births; None: never."""
        (at,) = np.nonzero(self.kinds == DIED)
        ends = dict(zip(self.subjects[at].tolist(), at.tolist(), strict=True))
        for birth in np.nonzero(self.kinds == BORN)[0].tolist():
            yield birth, ends.get(int(self.subjects[birth]))

    def save(self, path: str) -> None:
        """Write it for another process."""
        with open(path, "wb") as file:  # noqa: PTH123
            np.savez(file, **{name: getattr(self, name) for name in self.__slots__})

    @classmethod
    def load(cls, path: str) -> Course:
        """Read what :meth:`save` wrote."""
        with np.load(path) as arrays:
            return cls(**{name: arrays[name] for name in cls.__slots__})


class _Run(NamedTuple):
    """Copies of one period, one for each layer. ``begin``, ``end``: in the longer course. ``period``: events
    of a layer."""

    begin: int
    end: int
    period: int

    def copies(self, more: int = 0) -> int:
        """How many there are, the first perhaps in part; ``more``: than in the longer course."""
        return -(-(self.end - self.begin) // self.period) + more


class Repetition:
    """What layers repeat. ``fewer``, ``more``: the same rehearsal with ``further`` layers between them.
    Raises Unproved: they differ by something else."""

    def __init__(self, fewer: Course, more: Course, further: int) -> None:
        self._fewer, self._more, self._further = fewer, more, further
        self._runs = self._found()
        self._first = [_from_start(run.copies(-further)) for run in self._runs]
        self._places = _Places(self._runs, 0, len(more.kinds))
        self._places_of_fewer = _Places(self._runs, -further, len(fewer.kinds))

    # ---------------------------------------------------------------- runs

    def _found(self) -> list[_Run]:
        a, b = self._fewer, self._more
        runs: list[_Run] = []
        i = j = 0
        while i < len(a.exact) or j < len(b.exact):
            same = _common(a.exact[i:], b.exact[j:])
            i, j = i + same, j + same
            if i == len(a.exact) and j == len(b.exact):
                break
            earliest = runs[-1].end if runs else 0
            added = self._added(i, j, earliest)
            if added is not None:
                period = added // self._further
                begin = j
                while begin > earliest and b.exact[begin - 1] == b.exact[begin - 1 + period]:
                    begin -= 1
                runs.append(_Run(begin, j + added, period))
                j += added
            elif self._grows(i, j):
                i, j = i + 1, j + 1
            else:
                raise Unproved(f"event {j} of {len(b.exact)} has no like")
        return runs

    def _grows(self, i: int, j: int) -> bool:
        """Whether two events are one that has more to do with more layers."""
        a, b = self._fewer, self._more
        in_both = i < len(a.alike) and j < len(b.alike) and a.alike[i] == b.alike[j]
        return bool(in_both and (a.values[i] <= b.values[j]).all())

    def _added(self, i: int, j: int, earliest: int) -> int | None:
        """How many events the further layers add here: as many as make the courses alike for longest after
        them; None: none."""
        b = self._more
        best, longest = None, 0
        most = min(len(b.exact) - j, (j - earliest) * self._further)
        for size in range(self._further, most + 1, self._further):
            period = size // self._further
            if self._follows(i, j + size, 1) and np.array_equal(
                b.exact[j - period : j + size - period], b.exact[j : j + size]
            ):
                follows = self._follows(i, j + size, _WINDOW)
                if follows > longest:
                    best, longest = size, follows
        return best

    def _follows(self, i: int, j: int, most: int) -> int:
        """How many events the courses have in common from here on, with few among them that grow."""
        a, b = self._fewer, self._more
        if i == len(a.exact) or j == len(b.exact):
            return most * ((i, j) == (len(a.exact), len(b.exact)))
        count = grown = 0
        while count < most and i + count < len(a.exact) and j + count < len(b.exact):
            if a.exact[i + count] != b.exact[j + count]:
                grown += 1
                if grown > _GROWING or not self._grows(i + count, j + count):
                    break
            count += 1
        return count

    # ---------------------------------------------------------------- all layers

    def course(self, further: int) -> Iterator[tuple[int, int, np.ndarray | None]]:
        """The events with so many layers more than the longer course has: each as the event of that one which
        it is like, the number of the block that it ends where it ends one (in order of their births), and its
        values where they are others. Of a block that never ends :data:`FOREVER` stands in its number's place.

        Raises:
            Unproved: a block's end does not follow from the layer that made it.
        """
        added = sum(run.period for run in self._runs) * further
        target = _Places(self._runs, further, len(self._more.kinds) + added)
        places = target.places
        like = [self._like(place, further) for place in places]
        number_at = self._ends(target, places, like, further)
        ending, born = set(number_at.values()), 0
        for at, (place, event) in enumerate(zip(places, like, strict=True)):
            ended = number_at.get(at, NOBODY)
            if self._more.kinds[event] == BORN:
                ended = NOBODY if born in ending else FOREVER
                born += 1
            yield event, ended, self._grown(place, event, further)

    def _ends(
        self, target: _Places, places: Sequence[Place], like: Sequence[int], further: int
    ) -> dict[int, int]:
        """Which block, by number, ends at a position. Each end is one block's, and of one like it."""
        more = self._more
        ends = _Ends(self._fewer, more, self._places_of_fewer, self._places, self._runs, self._further)
        kinds, alike = more.kinds.tolist(), more.alike.tolist()
        death_of = {alike[birth]: alike[end] for birth, end in more.lives() if end is not None}
        result: dict[int, int] = {}
        births = (at for at, event in enumerate(like) if kinds[event] == BORN)
        for number, at in enumerate(births):
            end = ends.of(places[at], further)
            if end is None:
                continue
            died = target.position(end)
            if not at < died < len(like) or died in result:
                raise Unproved("a block's end is not its layer's")
            if alike[like[died]] != death_of.get(alike[like[at]]):
                raise Unproved("a block's end is another one's")
            result[died] = number
        if len(result) != sum(kinds[event] == DIED for event in like):
            raise Unproved("blocks end that nothing made")
        return result

    def _like(self, place: Place, further: int) -> int:
        """The event of the longer course that one is like."""
        run, copy, offset = place
        if copy is not None:
            first = self._first[run]
            copy = copy if copy < first else max(first, copy - further)
        return self._places.position((run, copy, offset))

    def _grown(self, place: Place, event: int, further: int) -> np.ndarray | None:
        """The values of an event that grows with the layers; None: they are its like's."""
        if place.copy is not None:
            return None
        before = self._fewer.values[self._places_of_fewer.position(place)]
        now = self._more.values[event]
        if np.array_equal(before, now):
            return None
        grown: np.ndarray = now + (now - before) * further / self._further
        return grown


def _from_start(copies: int) -> int:
    """Number of so many copies that are counted from the first on; the others from the last."""
    return copies // 2


class _Places:
    """Places and positions of a course with so many layers more than the longer one has; ``places``: by
    position."""

    def __init__(self, runs: list[_Run], further: int, length: int) -> None:
        periods = np.asarray([run.period for run in runs], np.int64)
        moved = np.cumsum(periods) * further
        ends = np.asarray([run.end for run in runs], np.int64) + moved
        begins = np.asarray([run.begin for run in runs], np.int64) + moved - periods * further
        self._last = [(run.copies(further) - 1, run.period) for run in runs]
        self._ends: list[int] = [*ends.tolist(), 0]  # what comes before all runs is after none
        at = np.arange(length)
        run = np.searchsorted(ends, at, side="right")
        in_run = at >= np.append(begins, length)[run]
        back = np.append(ends, 0)[run] - 1 - at
        self.places: list[Place] = []
        for number, is_copy, behind, position in zip(
            run.tolist(), in_run.tolist(), back.tolist(), range(length), strict=True
        ):
            if is_copy:
                last, period = self._last[number]
                before, offset = divmod(behind, period)
                self.places.append(Place(number, last - before, period - 1 - offset))
            else:
                self.places.append(Place(number - 1, None, position - self._ends[number - 1]))

    def position(self, place: tuple[int, int | None, int]) -> int:
        """Return the position of a place."""
        run, copy, offset = place
        if copy is None:
            return offset + self._ends[run]
        last, period = self._last[run]
        return self._ends[run] - (last - copy + 1) * period + offset


class _Ends:
    """Where blocks end, by where they begin, in two courses."""

    def __init__(
        self, fewer: Course, more: Course, of_fewer: _Places, of_more: _Places, runs: list[_Run], further: int
    ) -> None:
        self._runs, self._further = runs, further
        self._fewer, self._more = _by_birth(fewer, of_fewer), _by_birth(more, of_more)
        self._middle: dict[tuple[int, int], tuple[Place | None, int]] = {}

    def of(self, birth: Place, further: int) -> Place | None:
        """Where a block ends with so many layers more; None: never. Raises Unproved: the two courses do not
        tell."""
        if birth.copy is None:
            return self._moved(birth, birth, further)
        run = self._runs[birth.run]
        few, many, count = (run.copies(more) for more in (-self._further, 0, further))
        first = _from_start(few)
        back = count - 1 - birth.copy
        if birth.copy < first:
            return self._moved(birth, birth, further)
        if back < few - first:
            fewer, more = (birth._replace(copy=copies - 1 - back) for copies in (few, many))
            return self._moved(fewer, more, further)
        key = birth.run, birth.offset
        if key not in self._middle:
            self._middle[key] = self._between(birth, first, first + further, further)
        end, step = self._middle[key]
        if end is None or end.copy is None:
            return end
        return Place(end.run, end.copy + step * (birth.copy - first), end.offset)

    def _seen(self, ends: Mapping[Place, Place | None], birth: Place) -> Place | None:
        if birth not in ends:
            raise Unproved("a block is not made by every layer")
        return ends[birth]

    def _moved(self, of_fewer: Place, of_more: Place, further: int) -> Place | None:
        """The end of a block that both courses have: the same from the first layer on, or from the last."""
        fewer, more = self._seen(self._fewer, of_fewer), self._seen(self._more, of_more)
        if fewer == more:
            return more
        if fewer is None or more is None or fewer.copy is None or more.copy is None:
            raise Unproved("a block ends elsewhere with more layers")
        if fewer._replace(copy=more.copy) != more or more.copy - fewer.copy != self._further:
            raise Unproved("a block ends in another place with more layers")
        return more._replace(copy=more.copy + further)

    def _between(self, birth: Place, first: int, last: int, further: int) -> tuple[Place | None, int]:
        """The end of a block of the first layer that is neither among the first nor among the last, and by
        how many layers that of the next one is further on: as those that the longer course has between these,
        from that of a neighbour of theirs. ``first``: copy of such a layer; ``last``: the last of all."""
        after = first + self._further
        seen = [self._seen(self._more, birth._replace(copy=copy)) for copy in range(first, after)]
        one = seen[0]
        if one is None or one.copy is None:
            if any(end != one for end in seen):
                raise Unproved("blocks of some layers end elsewhere")
            return one, 0
        step = (seen[1].copy or 0) - one.copy if seen[1] is not None else 0
        if not step or seen != [one._replace(copy=one.copy + step * at) for at in range(self._further)]:
            raise Unproved("blocks of layers end out of order")
        for neighbour, of_all in ((first - 1, first - 1), (after, last + self._further)):
            there = birth._replace(copy=neighbour)
            like = one._replace(copy=one.copy + step * (neighbour - first))
            if there in self._more and self._more[there] == like:
                end = self.of(birth._replace(copy=of_all), further)
                assert end is not None
                assert end.copy is not None
                return end._replace(copy=end.copy + step * (first - of_all)), step
        raise Unproved("too few layers repeat")


def _by_birth(course: Course, places: _Places) -> dict[Place, Place | None]:
    return {
        places.places[birth]: None if end is None else places.places[end] for birth, end in course.lives()
    }


def _common(one: np.ndarray, other: np.ndarray) -> int:
    """How many events both begin with."""
    length = min(len(one), len(other))
    unlike = np.nonzero(one[:length] != other[:length])[0]
    return int(unlike[0]) if unlike.size else length
