"""What a rehearsal tells beside its verdict, in tables that the terminal and the page both show."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from zerokit.rehearsal.result import MANAGED, RankMemory, Rehearsal, waiting
from zerokit.timing.recorded_step import StepTime
from zerokit.units import counted, format_gib, format_seconds, times

_MOST_ROWS, _MOST_CHANGES, _MOST_GUESSES = 12, 5, 10
_NOT_ONLY_EVALUATION = "forwards without gradients: evaluation, or a reference model"
_LOADED = "weights of from_pretrained"
_PACED = {"host": "host", "gpu": "GPU", "links": "links", "cpu_adam": "host's optimizer"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """Sentences and a table below a title.

    Attributes:
        heads: names of the columns.
        right: the column of figures, which end flush.
        most: rows that a terminal shows; None: all.
        rank: whose peaks by phase it has; None: another section.
    """

    title: str
    lines: tuple[str, ...] = ()
    heads: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    right: int = 0
    most: int | None = None
    rank: RankMemory | None = None


def sections(done: Rehearsal) -> Iterator[Section]:
    """Yield memory by rank, what would lower it, the step's time, guesses, and what was stood in for."""
    for rank in done.ranks:
        if rank.phases or done.steps:
            yield from _of_rank(rank, done)
    if done.changes:
        yield Section(
            title="what would lower the peak, by at most", heads=("by at most", "change"), most=_MOST_CHANGES,
            rows=tuple((format_gib(change.saves_bytes), change.what) for change in done.changes),
        )  # fmt: skip
    if done.step is not None:
        yield _of_step(done.step)
    if done.guesses:
        sizes = sum(guess.decides_sizes for guess in done.guesses)
        count = counted(len(done.guesses), "guess", "guesses")
        yield Section(
            title=f"{count}, of which {sizes or 'none'} decide{'' if sizes > 1 else 's'} sizes",
            heads=("times", "what", "taken as", "line"), most=_MOST_GUESSES,
            rows=tuple(
                (times(one.times), one.what + ", which decides sizes" * one.decides_sizes, str(one.value),
                 one.location)
                for one in done.guesses
            ),
        )  # fmt: skip
    if done.stubbed:
        yield Section(title="stood in for", lines=done.stubbed)


def _of_rank(rank: RankMemory, done: Rehearsal) -> Iterator[Section]:
    rows = []
    for phase, size in rank.phases.items():
        missing = rank.lower_bounds.get(phase)
        told = ["← peak"] if phase == rank.peak_phase else []
        told += [_NOT_ONLY_EVALUATION] if phase == "eval" else []
        told += [f"at least; not modelled: {', '.join(missing)}"] if missing else []
        rows.append((phase, size, "  ".join(told)))
    is_tight = rank.smallest_reserved_bytes < rank.peak_reserved_bytes
    kept = "on a card with memory enough, where caches stay" if is_tight else ""
    rows.append(("reserved", rank.peak_reserved_bytes, kept))
    loaded = "; loaded weights are pages of their file, taken back when memory is short"
    given_back = "reserved on the smallest card that runs it: the allocator gives caches back"
    totals = (
        ("smallest", rank.smallest_reserved_bytes * is_tight, given_back),
        ("fragmented", rank.fragmented_bytes, "of that, reserved and not allocated at the peak"),
        ("host", rank.host_bytes, f"tensors in host memory{loaded if _LOADED in done.stubbed else ''}"),
        ("managed", rank.managed_bytes, MANAGED),
        ("written", rank.written_bytes, "tensors on disk"),
    )
    rows += [row for row in totals if row[1]]
    yield Section(
        title=f"rank {rank.rank} of {done.gpus} on {done.gpu}, {done.training}", rank=rank, right=1,
        heads=("phase", "peak", "note"),
        rows=tuple((name, format_gib(size), text) for name, size, text in rows),
    )  # fmt: skip
    if rank.at_peak:
        yield live_at_peak(rank, f", rank {rank.rank}" if len(done.ranks) > 1 else "")


def live_at_peak(rank: RankMemory, of: str = "") -> Section:
    """What was live at the largest peak of a rank, row by row."""
    held = ((format_gib(row.bytes), row.what, row.module, row.location) for row in rank.at_peak)
    return Section(
        title=f"live at the peak{of}",
        heads=("bytes", "what", "module", "line"),
        rows=tuple(held),
        most=_MOST_ROWS,
    )


def live_in_sum(rank: RankMemory, of: str) -> Iterator[Section]:
    """Yield what is live at a peak by module, and by line; the largest first."""
    modules, lines = Counter[str](), Counter[str]()
    for row in rank.at_peak:
        modules[row.module or "outside of modules"] += row.bytes
        lines[row.location or "smaller than 1 MiB each"] += row.bytes
    for kind, totals in (("module", modules), ("line", lines)) if rank.at_peak else ():
        rows = tuple((format_gib(size), what) for what, size in totals.most_common())
        yield Section(title=f"live at the peak of {of}, by {kind}", heads=("bytes", kind), rows=rows)


def _of_step(step: StepTime) -> Section:
    """Its time, its range, and where it goes."""
    low, high = format_seconds(step.low), format_seconds(step.high)
    spread = f", {low} to {high} on other hosts" if low != high else ""
    least = min(step.together, key=lambda one: one.waiting_seconds, default=None)
    told = f"{waiting(step)}; rank {least.rank}, which waits least:" if least is not None else ""
    return Section(
        title=f"a step takes {format_seconds(step.seconds)}{spread}, paced by the {_PACED[step.paced_by]}",
        lines=tuple(filter(None, (step.note, told))), heads=("time", "part"),
        rows=tuple((format_seconds(seconds), name) for name, seconds in step.parts.items()),
    )  # fmt: skip
