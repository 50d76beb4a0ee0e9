"""From traces at a few (micro-batch, sequence) points to one that holds for all.

The operators run are the same at every point, so event k of one trace is event k of
the others, and each storage's size is an exact polynomial through its sizes there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from fractions import Fraction
from types import MappingProxyType

from zerokit.domain.activations import ActivationTrace, ColumnSum, Mark, Polynomial, Run, evaluate
from zerokit.errors import ZerokitError
from zerokit.trace.building.build import LayerList
from zerokit.trace.recording.storage import TraceEvent
from zerokit.values import replace

MICRO_BATCHES = (2, 3)
ONE = (1,)
"""Of a trace that holds for micro-batches of one sequence alone: see :func:`holds_for_one`."""
_GRID = [(b, s) for b in (1, 2, 4, 16, 64) for s in (64, 512, 2048, 8192, 65536)]
_ZERO: Polynomial = (0, 0, 0, 0, 0, 0)


class TraceMismatch(ZerokitError):
    """The model ran different operators at different sizes, so no polynomial holds."""


def points(lengths: Sequence[int], micro_batches: Sequence[int] = MICRO_BATCHES) -> list[tuple[int, int]]:
    """The (micro_batch, seq_len) points to trace: two micro-batches × three lengths."""
    return [(b, s) for b in micro_batches for s in lengths]


def plain_points(sizes: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Points of :func:`points` at which the pass without ZeRO-3's hooks is traced too: its tensors are alike,
    freed at other times, and two sizes tell them apart, since batch and length grow differently."""
    return [sizes[0], sizes[-1]]


def _quadratic(xs: Sequence[int], ys: Sequence[Fraction]) -> list[Fraction]:
    """Coefficients (1, x, x²) through three points, or (1, x, 0) and (1, 0, 0) through two or one."""
    if len(xs) == 1:
        return [ys[0], Fraction(0), Fraction(0)]
    if len(xs) == 2:
        slope = (ys[1] - ys[0]) / (xs[1] - xs[0])
        return [ys[0] - slope * xs[0], slope, Fraction(0)]
    (x0, x1, x2), (y0, y1, y2) = xs, ys
    d1 = (y1 - y0) / (x1 - x0)
    d2 = ((y2 - y1) / (x2 - x1) - d1) / (x2 - x0)
    return [y0 - d1 * x0 + d2 * x0 * x1, d1 - d2 * (x0 + x1), d2]


def _polynomial(sizes: Sequence[int], lengths: Sequence[int], micro_batches: Sequence[int]) -> Polynomial:
    count = len(lengths)
    rows = [[Fraction(n) for n in sizes[i * count : (i + 1) * count]] for i in range(len(micro_batches))]
    b0, b1 = micro_batches[0], micro_batches[-1]
    slopes = [(high - low) / max(1, b1 - b0) for low, high in zip(rows[0], rows[-1], strict=True)]
    fixed = [low - slope * b0 for low, slope in zip(rows[0], slopes, strict=True)]
    c0, c1, c2 = _quadratic(lengths, fixed)
    d0, d1, d2 = _quadratic(lengths, slopes)
    numbers = (int(v) if v.denominator == 1 else float(v) for v in (c0, d0, c1, d1, c2, d2))
    return tuple(numbers)  # type: ignore[return-value]


def _sum(a: Polynomial, b: Polynomial, sign: int = 1) -> Polynomial:
    return tuple(x + sign * y for x, y in zip(a, b, strict=True))  # type: ignore[return-value]


def _envelope(candidates: list[Polynomial]) -> tuple[Polynomial, ...]:
    """Polynomials that are the largest somewhere on a wide grid of micro-batches and lengths."""
    unique = list(dict.fromkeys(candidates))
    if len(unique) == 1:
        return (unique[0],)
    best = {max(unique, key=lambda p: evaluate(p, b, s)) for b, s in _GRID}
    return tuple(p for p in unique if p in best)


def _align(traces: Sequence[Sequence[TraceEvent]]) -> None:
    first = traces[0]
    for trace in traces[1:]:
        is_aligned = len(trace) == len(first) and all(
            a.kind == b.kind and (a.key == b.key or a.kind == "sum")
            for a, b in zip(first, trace, strict=True)
        )
        if not is_aligned:
            raise TraceMismatch(
                "the model runs different operators at different batch sizes or sequence lengths; "
                "its activations cannot be given as polynomials"
            )


def _left_behind(traces: Sequence[Sequence[TraceEvent]], stacks: Sequence[LayerList]) -> dict[int, int]:
    """Storages that a layer makes, as large at every point, and that die together at the end of the forward
    pass (weights that autocast has cast) -> for how many layers of the full model each stands."""
    events = traces[0]
    allocated = (group for group in zip(*traces, strict=True) if group[0].kind == "alloc")
    as_large = {group[0].key for group in allocated if len({event.size_bytes for event in group}) == 1}
    following: tuple[str, int] | None = None
    owners: dict[int | str, tuple[str, int] | None] = {}
    freed: dict[int | str, tuple[str, int] | None] = {}
    forward = next(i for i, e in enumerate(events) if e.kind == "phase" and e.key == "backward")
    for event in reversed(events[:forward]):
        if event.kind == "alloc":
            owners[event.key] = following
        elif event.kind == "free":
            freed[event.key] = following
        elif event.kind not in ("held", "sum"):
            following = _owner(str(event.key), stacks)
    lengths = {stack.path: Counter(stack.stands_for) for stack in stacks}
    return {
        key: lengths[owner[0]][owner[1]]
        for key, owner in owners.items()
        if isinstance(key, int) and owner is not None and key in as_large and freed.get(key, owner) is None
    }


def _polynomials(
    traces: Sequence[Sequence[TraceEvent]],
    lengths: Sequence[int],
    micro_batches: Sequence[int],
    kinds: tuple[str, ...] = ("alloc", "held"),
) -> dict[tuple[int, ...], Polynomial]:
    """A storage's sizes at the points -> its size anywhere; of ``sum`` events, the rows of matrices that have
    as many columns at each point."""
    _align(traces)
    groups = zip(*traces, strict=True)
    alike = (group for group in groups if group[0].kind in kinds and len({e.key for e in group}) == 1)
    keys = {tuple(e.size_bytes for e in group) for group in alike}
    return {key: _polynomial(key, lengths, micro_batches) for key in keys}


def holds_for_one(
    traces: Sequence[Sequence[TraceEvent]], lengths: Sequence[int], one: Sequence[TraceEvent]
) -> bool:
    """Whether the trace through ``traces``, at ``points(lengths)``, gives ``one``, recorded with one sequence
    of ``lengths[-1]`` tokens: the same events, of the same sizes.

    Where a dimension is 1, a reshape needs no copy that it makes of larger batches: of Falcon's single key
    head, expanded to as many as there are query heads, in the product of queries and keys.
    """
    try:
        _align([traces[0], one])
    except TraceMismatch:
        return False
    polynomials = _polynomials(traces, lengths, MICRO_BATCHES)
    return all(
        evaluate(polynomials[tuple(e.size_bytes for e in group)], ONE[0], lengths[-1]) == single.size_bytes
        for *group, single in zip(*traces, one, strict=True)
        if single.kind in ("alloc", "held")
    )


def _flatten(
    traces: Sequence[Sequence[TraceEvent]],
    polynomials: Mapping[tuple[int, ...], Polynomial],
    only: frozenset[int] | None = None,
    layers: Mapping[int, int] = MappingProxyType({}),
    rows: Mapping[tuple[int, ...], Polynomial] = MappingProxyType({}),
) -> tuple[list[Mark], list[Mark]]:
    """Marks of the forward and of the backward pass, with all bytes that the trace has alive.

    ``only``: of all storages count these; ``layers``: with these die their like of so many layers; ``rows``:
    of sums, which are left out where it is not there.
    """
    sizes: dict[int, Polynomial] = {}
    live = _ZERO
    pending = [live]
    phases: dict[str, list[Mark]] = {"forward": [], "backward": []}
    phase = "forward"
    sums: list[ColumnSum] = []
    events = list(zip(*traces, strict=True))
    for position, group in enumerate(events):
        event = group[0]
        if event.kind in ("alloc", "held", "free") and only is not None and event.key not in only:
            continue
        if event.kind in ("alloc", "held"):
            size = sizes[event.key] = polynomials[tuple(e.size_bytes for e in group)]
            if event.kind == "held":
                continue
            live = _sum(live, size)
            pending.append(live)
        elif event.kind == "free":
            live = _sum(live, sizes.pop(event.key), -layers.get(event.key, 1))
        elif event.kind == "sum":
            count = rows.get(tuple(e.size_bytes for e in group))
            if count is not None and len({e.key for e in group}) == 1:
                columns, element_bytes = map(int, str(event.key).split())
                sums.append(ColumnSum(level=live, rows=count, columns=columns, element_bytes=element_bytes))
        elif event.kind == "phase":
            if event.key != "forward":
                phases[phase].append(
                    Mark(kind="end", name=phase, peaks=_envelope([*pending, live]), level=live, after=live,
                         sums=tuple(sums))
                )  # fmt: skip
                phase = event.key if event.key != "end" else phase
            pending, sums = [live], []
        else:
            after = live
            if event.kind == "grad":  # the hook drops the gradient: its free follows at once
                later = events[position + 1][0] if position + 1 < len(events) else None
                if later is not None and later.kind == "free":
                    after = _sum(live, sizes[later.key], -1)
            phases[phase].append(
                Mark(kind=event.kind, name=event.key, peaks=_envelope([*pending, live]), level=live,
                     after=after, sums=tuple(sums))
            )  # fmt: skip
            pending, sums = [after], []
    return phases["forward"], phases["backward"]


def _owner(name: str, stacks: Sequence[LayerList]) -> tuple[str, int] | None:
    for stack in stacks:
        if name.startswith(stack.path + "."):
            return stack.path, int(name[len(stack.path) + 1 :].split(".", 1)[0])
    return None


def _blocks(
    marks: Sequence[Mark], stacks: Sequence[LayerList]
) -> list[tuple[tuple[str, int] | None, list[Mark]]]:
    """Cut a pass into what runs before, in each layer, and after. A mark outside the layers that
    lies between two layers of one stack goes with the earlier."""
    blocks: list[tuple[tuple[str, int] | None, list[Mark]]] = []
    marks_seen: set[tuple[str, int]] = set()
    owners = [_owner(mark.name, stacks) for mark in marks]
    for position, (mark, owner) in enumerate(zip(marks, owners, strict=True)):
        current = blocks[-1][0] if blocks else None
        if owner is not None and owner not in marks_seen:
            marks_seen.add(owner)
            blocks.append((owner, []))
        elif not blocks:
            blocks.append((None, []))
        elif owner is None and current is not None:
            rest = owners[position:]
            if not any(o is not None and o[0] == current[0] for o in rest):
                blocks.append((None, []))
        blocks[-1][1].append(mark)
    return blocks


def _segment(marks: Sequence[Mark], start: Polynomial, owner: tuple[str, int] | None) -> tuple[Mark, ...]:
    def relative(name: str) -> str:
        if owner is None or not name.startswith(owner[0] + "."):
            return name
        index, dot, rest = name[len(owner[0]) + 1 :].partition(".")
        return f"{{{int(index) - owner[1]}}}{dot}{rest}"

    return tuple(
        replace(
            mark,
            name=relative(mark.name),
            peaks=tuple(_sum(p, start, -1) for p in mark.peaks),
            level=_sum(mark.level, start, -1),
            after=_sum(mark.after, start, -1),
            sums=tuple(replace(one, level=_sum(one.level, start, -1)) for one in mark.sums),
        )
        for mark in marks
    )


class _Segments:
    def __init__(self) -> None:
        self.numbers: dict[tuple[Mark, ...], int] = {}

    def add(self, marks: tuple[Mark, ...]) -> int:
        return self.numbers.setdefault(marks, len(self.numbers))


def _runs(
    marks: Sequence[Mark], stacks: Sequence[LayerList], segments: _Segments, start: Polynomial
) -> tuple[Run, ...]:
    """Put the traced blocks in the full model's order, each layer by the kept one it is like."""
    traced: dict[tuple[str, int], int] = {}
    order: list[tuple[str, int] | int] = []
    level = start
    for owner, block in _blocks(marks, stacks):
        number = segments.add(_segment(block, level, owner))
        level = block[-1].after
        if owner is None:
            order.append(number)
        else:
            traced[owner] = number
            order.append(owner)
    by_path = {stack.path: stack for stack in stacks}
    runs: list[Run] = []
    done: set[str] = set()
    for position, item in enumerate(order):
        if isinstance(item, int):
            runs.append(Run(segment=item))
            continue
        path = item[0]
        if path in done:
            continue
        done.add(path)
        stack = by_path[path]
        following = [o[1] for o in order[position:] if isinstance(o, tuple) and o[0] == path]
        backwards = len(following) > 1 and following[0] > following[-1]
        indexes = range(stack.length - 1, -1, -1) if backwards else range(stack.length)
        for index in indexes:
            number = traced[(path, stack.stands_for[index])]
            last = runs[-1] if runs else None
            step = -1 if backwards else 1
            if last is not None and last.stack == path and last.segment == number:
                runs[-1] = Run(segment=number, stack=path, start=last.start, count=last.count + 1, step=step)
            else:
                runs.append(Run(segment=number, stack=path, start=index, count=1, step=step))
    return tuple(runs)


def fit(
    traces: Sequence[Sequence[TraceEvent]],
    lengths: Sequence[int],
    stacks: Sequence[LayerList],
    max_seq_len: int | None = None,
    kept: frozenset[int] = frozenset(),
    autocast: bool = False,
    plain: Sequence[Sequence[TraceEvent]] = (),
    min_seq_len: int = 0,
    copies: Sequence[Sequence[TraceEvent]] = (),
    micro_batches: Sequence[int] = MICRO_BATCHES,
) -> ActivationTrace:
    """One activation trace from traces at ``points(lengths, micro_batches)``, for the full number of layers.

    ``kept``: storages of the key-value cache, whose share is worked out by itself; ``autocast``: weights
    that were cast die when the forward pass ends; ``plain``: the passes at ``plain_points`` of these without
    ZeRO-3's hooks around modules; ``copies``: of activations on the host, at the points of ``traces``.

    Raises:
        TraceMismatch: the operators differ between the points.
    """
    polynomials = _polynomials(traces, lengths, micro_batches)
    layers = _left_behind(traces, stacks) if autocast else {}
    rows = _polynomials(traces, lengths, micro_batches, ("sum",))
    forward, backward = _flatten(traces, polynomials, layers=layers, rows=rows)
    segments = _Segments()
    forward_runs = _runs(forward, stacks, segments, _ZERO)
    backward_runs = _runs(backward, stacks, segments, forward[-1].after)
    cache: tuple[Run, ...] = ()
    if kept:
        cache = _runs(_flatten(traces, polynomials, kept)[0], stacks, segments, _ZERO)
    if copies:
        sizes_of_copies = _polynomials(copies, lengths, micro_batches)
        cache = _runs(_flatten(copies, sizes_of_copies)[0], stacks, segments, _ZERO)
    gradients: tuple[Run, ...] = ()
    if plain:
        sizes, counts = (_at_both_ends(known) for known in (polynomials, rows))
        gradients = _gradients(plain, sizes, counts, stacks, segments, backward_runs)
    return ActivationTrace(
        segments=tuple(segments.numbers),
        forward=forward_runs,
        backward=backward_runs,
        max_seq_len=max_seq_len,
        min_seq_len=min_seq_len,
        of_one_sequence=tuple(micro_batches) == ONE,
        cache=cache,
        gradients=gradients,
    )


def _at_both_ends(polynomials: Mapping[tuple[int, ...], Polynomial]) -> dict[tuple[int, ...], Polynomial]:
    """A storage's sizes at the first and the last point -> its size anywhere; left out where kinds share
    them."""
    kinds: dict[tuple[int, ...], set[Polynomial]] = {}
    for sizes, polynomial in polynomials.items():
        kinds.setdefault((sizes[0], sizes[-1]), set()).add(polynomial)
    return {sizes: found.pop() for sizes, found in kinds.items() if len(found) == 1}


def _gradients(
    plain: Sequence[Sequence[TraceEvent]],
    sizes: Mapping[tuple[int, ...], Polynomial],
    rows: Mapping[tuple[int, ...], Polynomial],
    stacks: Sequence[LayerList],
    segments: _Segments,
    backward: Sequence[Run],
) -> tuple[Run, ...]:
    """The backward pass without hooks around modules. Empty where a size is not told from another, or where
    layers without a gradient leave no mark to tell them by."""
    try:
        _align(plain)
        events, marks = _flatten(plain, sizes, rows=rows)
    except (TraceMismatch, KeyError):
        return ()
    layers = {owner for mark in marks if (owner := _owner(mark.name, stacks)) is not None}
    passed = {run.stack for run in backward if run.stack}
    for stack in stacks:
        if stack.path in passed and any((stack.path, layer) not in layers for layer in set(stack.stands_for)):
            return ()
    return _runs(marks, stacks, segments, events[-1].after)
