"""What a snapshot tells, in tables that the terminal and the page both show."""

from __future__ import annotations

from collections.abc import Iterator

from zerokit.rehearsal.sections import Section, live_at_peak
from zerokit.snapshots.explanation import DeviceMemory, Explanation
from zerokit.units import counted, format_gib

_MOST_LINES = 10
_KEEPERS = "kept by a list, a cache, a closure, an exception or a graph; .item() and .detach() keep no graph"


def answer(told: Explanation) -> list[str]:
    """What a reader wants first: what failed and what to do, the peak and where, what grows."""
    lines = []
    for one in told.devices:
        memory, failed = one.memory, one.out_of_memory
        if failed is not None:
            at = f" in {failed.phase}" if failed.phase else ""
            at += f" at {failed.location}" if failed.location else ""
            lines.append(f"GPU {memory.rank} had no room for {format_gib(failed.asked_bytes)}{at}")
            lines += [failed.reason, f"fix: {failed.fix}"]
        elif one.events > 1:
            phase = f" in {memory.peak_phase}" if memory.peak_phase else ""
            lines.append(
                f"GPU {memory.rank}: peak allocated {format_gib(memory.peak_allocated_bytes)}{phase}"
            )
        if one.stays:
            most = one.stays[0]
            lines.append(
                f"GPU {memory.rank}: {format_gib(sum(stay.bytes_per_step for stay in one.stays))} more stay "
                f"with every step, most of them from {most.location}"
            )
    return lines


def sections(told: Explanation) -> Iterator[Section]:
    """Yield of each device its peaks, what is live at the largest, what stays, what is free, and what
    grew."""
    for one in told.devices:
        yield _peaks(one, told.predicted or {})
        if one.memory.at_peak:
            yield live_at_peak(one.memory, f", GPU {one.memory.rank}" if len(told.devices) > 1 else "")
        yield from _stays(one)
        grown = (told.grown or {}).get(one.memory.rank)
        if grown is not None and told.before is not None:
            rows = tuple(
                (f"+{format_gib(part.bytes)}", part.what, part.module, part.location) for part in grown
            )
            yield Section(
                title=f"more than in {told.before.path}", heads=("bytes", "what", "module", "line"),
                rows=rows, lines=() if rows else ("nothing is larger at the peak",),
            )  # fmt: skip


def _peaks(one: DeviceMemory, predicted: dict[str, int]) -> Section:
    """Peaks by phase, beside those of a rehearsal where there is one, and what is reserved and free."""
    memory = one.memory
    rows = []
    for phase in dict.fromkeys((*memory.phases, *predicted)):
        size, expected = memory.phases.get(phase), predicted.get(phase)
        told = ["← peak"] if phase == memory.peak_phase else []
        if expected is not None and size is not None:
            off = f", {(size - expected) / expected:+.1%} seen" if expected else ""
            told.append(f"predicted {format_gib(expected)}{off}")
        elif predicted:
            told.append(
                "not rehearsed" if expected is None else f"predicted {format_gib(expected)}, not seen"
            )
        rows.append((phase, format_gib(size) if size is not None else "–", "  ".join(told)))
    rows += [
        (name, format_gib(size), text)
        for name, size, text in (
            ("allocated", one.allocated_bytes, "when the snapshot was taken, as all below"),
            ("reserved", one.reserved_bytes, _most(one)),
            ("free", one.free_bytes, f"of that, {format_gib(one.largest_free_bytes)} in one piece"),
            ("split", one.split_bytes, "free beside blocks in use: it cannot be given back"),
        )
        if size or name == "allocated"
    ]
    history = counted(one.events, "event") if one.events > 1 else "no history"
    steps = f", {counted(one.steps, 'backward pass', 'backward passes')}" if one.steps else ""
    return Section(
        title=f"GPU {memory.rank}, {history}{steps}", rank=memory, right=1, heads=("phase", "peak", "note"),
        rows=tuple(rows), lines=tuple(_shares(one)),
    )  # fmt: skip


def _most(one: DeviceMemory) -> str:
    most = one.memory.peak_reserved_bytes
    earlier = f"; {format_gib(most)} at most" if most > one.reserved_bytes else ""
    return f"taken from the driver{earlier}"


def _shares(one: DeviceMemory) -> Iterator[str]:
    """How much of the peak is given to a line, and how."""
    peak = one.memory.peak_allocated_bytes
    if not peak:
        return
    if one.given_bytes < peak:
        yield f"{(peak - one.given_bytes) / peak:.1%} of the peak has no known phase and module"
    if one.inferred_bytes:
        yield (
            f"{one.inferred_bytes / peak:.1%} of the peak was allocated by backward, whose stacks hold no "
            "Python: its module and line are those whose inputs it freed next"
        )


def _stays(one: DeviceMemory) -> Iterator[Section]:
    if one.stays:
        rows = tuple(
            (f"+{format_gib(stay.bytes_per_step)}", format_gib(stay.bytes), stay.module, stay.location)
            for stay in one.stays
        )
        yield Section(
            title=f"more after each of {counted(one.stays[0].steps, 'step')}, GPU {one.memory.rank}",
            lines=(_KEEPERS,),
            rows=rows, heads=("each step", "in all", "module", "line"), most=_MOST_LINES,
        )  # fmt: skip
