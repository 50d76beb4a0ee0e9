"""What a memory snapshot tells: the schema ``zerokit.explanation/1``."""

from __future__ import annotations

import functools
import json
from array import array
from bisect import bisect
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from zerokit.domain.hardware import CUBLAS_WORKSPACE_BYTES, HOPPER_CUBLAS_WORKSPACE_BYTES
from zerokit.domain.phases import BY_NAME, PHASES
from zerokit.errors import InputError
from zerokit.notes import Note, warning
from zerokit.rehearsal.baseline import grown_parts
from zerokit.rehearsal.result import SCHEMA as REHEARSAL_SCHEMA
from zerokit.rehearsal.result import GrownPart, HeldAtPeak, RankMemory
from zerokit.snapshots.attribution import Origin, Origins
from zerokit.snapshots.replay import BEFORE, Device, devices
from zerokit.snapshots.unpickling import SnapshotReader
from zerokit.strictload.document import read_text
from zerokit.units import counted, format_gib
from zerokit.values import frozen_dataclass

SCHEMA = "zerokit.explanation/1"
_LEAST_STEPS = 5
"""Steps in a history that show growth: in the first two, optimizer states and what engines make stay, too."""
_SETTLED = 1
_PHASES = ("", *PHASES)
_END = 1 << 62
_MODEL = BY_NAME["load"].holds
_KEPT = "kept from step to step"
_WORKSPACE = "cuBLAS workspace"
_WORKSPACES = (CUBLAS_WORKSPACE_BYTES, HOPPER_CUBLAS_WORKSPACE_BYTES)
"""Of a thread's first matrix product, which keeps it."""
_LATE = "allocated before the history begins"


@frozen_dataclass
class StaysBehind:
    """Memory of a line that is more after every step. Bytes; ``steps``: in how many of the history."""

    module: str
    location: str
    bytes_per_step: int
    bytes: int
    steps: int


@frozen_dataclass
class FailedAllocation:
    """What was asked for and could not be had. Bytes. ``driver_free_bytes``: free on the device, for anybody.
    ``free_bytes``: free in PyTorch's own memory; ``largest_free_bytes``: in one piece."""

    asked_bytes: int
    driver_free_bytes: int
    free_bytes: int
    largest_free_bytes: int
    phase: str
    module: str
    location: str
    reason: str
    fix: str


@frozen_dataclass
class DeviceMemory:
    """What one device held. Bytes.

    Attributes:
        memory: peaks by phase, and what was live at the largest, as a rehearsal has them; ``rank``: the
            device.
        given_bytes: of the peak, with a phase and a module; ``lined_bytes``: with a line.
        inferred_bytes: of the peak, allocated by backward without a line of Python; module and line are those
            whose inputs it freed next.
        before_bytes: allocated when the history begins; of them ``cut_bytes`` were once in it.
        events: of the history.
        steps: backward passes in it.
        stays: what grows from step to step, most first.
        allocated_bytes: at the moment of the snapshot, as all that follows. ``reserved_bytes``: taken from
            the driver; ``largest_free_bytes``: free in one piece; ``split_bytes``: free beside blocks in use,
            so that it cannot be given back.
    """

    memory: RankMemory
    given_bytes: int
    lined_bytes: int
    inferred_bytes: int
    before_bytes: int
    cut_bytes: int
    events: int
    steps: int
    stays: tuple[StaysBehind, ...]
    allocated_bytes: int
    reserved_bytes: int
    free_bytes: int
    largest_free_bytes: int
    split_bytes: int
    out_of_memory: FailedAllocation | None


@frozen_dataclass
class Explanation:
    """A memory snapshot of PyTorch's, explained.

    Attributes:
        path: of the file.
        devices: that hold memory or have a history.
        notes: what the file does not tell, and why.
        grown: by device, what is larger at the peak than in the snapshot ``before``; None: there was none.
        predicted: by phase, what a rehearsal found in bytes; empty: none was named.
    """

    path: str
    devices: tuple[DeviceMemory, ...]
    notes: tuple[Note, ...] = ()
    before: Explanation | None = None
    grown: dict[int, tuple[GrownPart, ...]] | None = None
    predicted: dict[str, int] | None = None

    def to_dict(self) -> dict[str, Any]:
        """Give what ``--json`` prints."""
        told = {"schema": SCHEMA, **asdict(self), "notes": [note.to_dict() for note in self.notes]}
        return told if self.before is None else {**told, "before": self.before.to_dict()}


def explain_file(path: Path) -> Explanation:
    """Read a snapshot and say what it tells. Raises InputError: it cannot be read, or is none."""
    reader = SnapshotReader(path)
    origins = Origins(reader)
    found = tuple(_Explained(device, origins).memory() for device in devices(reader))
    return Explanation(path=str(path), devices=found, notes=tuple(_notes(reader, origins, found)))


def explain(*snapshots: Path, rehearsal: Path | None = None) -> Explanation:
    """Explain a snapshot, or the later of two with what it holds more, beside what a rehearsal predicted.
    Raises InputError: a file cannot be read, or is no snapshot, or no rehearsal."""
    told = explain_file(snapshots[-1])
    if len(snapshots) > 1:
        told = compared(explain_file(snapshots[0]), told)
    return told if rehearsal is None else replace(told, predicted=_predicted(rehearsal))


def _predicted(path: Path) -> dict[str, int]:
    """The peaks by phase of a rehearsal's first rank."""
    try:
        document = json.loads(read_text(path))
        sizes = document["ranks"][0]["phases"]
        known = {phase: sizes[phase] for phase in PHASES if phase in sizes}
        is_complete = document["schema"] == REHEARSAL_SCHEMA and document["complete"] is True and known
        if not is_complete or not all(type(size) is int and size >= 0 for size in known.values()):
            raise ValueError
        return known
    except (ValueError, KeyError, TypeError, IndexError, RecursionError):
        raise InputError(
            f"⟨rehearsal⟩ {path}: not a complete result of `zerokit rehearse --json` ({REHEARSAL_SCHEMA})"
        ) from None


def compared(before: Explanation, after: Explanation) -> Explanation:
    """The later of two snapshots, with what it holds more at its peak. The only devices of both are compared
    whatever their numbers: ranks of one machine have each its own."""
    old = {one.memory.rank: one.memory.at_peak for one in before.devices}
    if len(before.devices) == len(after.devices) == 1:
        old = {after.devices[0].memory.rank: before.devices[0].memory.at_peak}
    notes, grown = [note.with_text(f"{before.path}: {note}") for note in before.notes], {}
    for one in after.devices:
        number = one.memory.rank
        if number in old:
            grown[number] = grown_parts(old[number], one.memory.at_peak)
        else:
            text = f"GPU {number} holds nothing in {before.path}: there is nothing to compare it with"
            notes.append(warning("snapshot-not-compared", text))
    return replace(after, before=before, grown=grown, notes=(*after.notes, *notes))


def _notes(reader: SnapshotReader, origins: Origins, found: tuple[DeviceMemory, ...]) -> Iterator[Note]:
    if not found:
        yield Note("snapshot-empty", "no memory was allocated on any GPU")
    elif not any(one.events > 1 for one in found):
        yield Note(
            "snapshot-without-history",
            "there is no history: only what was allocated at the moment of the snapshot is known, neither "
            "the peak nor phases; call torch.cuda.memory._record_memory_history(stacks='python') before the "
            "model is made",
        )
    elif not origins.has_stacks:
        yield Note(
            "snapshot-without-stacks",
            "there are no stacks: sizes and times are known, neither lines nor modules; call "
            "torch.cuda.memory._record_memory_history with context='all', its default",
        )
    for one in found:
        if one.events > 1 and one.before_bytes:
            cut = "its max_entries had cut the history" if one.cut_bytes else "recording began later"
            yield Note(
                "snapshot-history-late",
                f"GPU {one.memory.rank}: {format_gib(one.before_bytes)} were allocated before the first of "
                f"{counted(one.events, 'event')}: {cut}; an earlier peak is not in the file",
                "must",
            )


class _Explained:
    """One device while it is explained."""

    def __init__(self, device: Device, origins: Origins) -> None:
        self._device = device
        self._origins = origins
        self._phases = array("b")
        self._interval = array("q")
        self._intervals: list[tuple[int, str]] = []  # first row, phase
        self._follow()

    def _follow(self) -> None:
        """Give every allocation its phase: its stack's, or that of what came before."""
        now = "other" if self._device.before_bytes else "load" if self._origins.has_stacks else ""
        for start, stack in zip(self._device.made.start, self._device.made.stack, strict=True):
            origin = self._origins.of(stack)
            if start == BEFORE:
                phase = "load" if origin.what == _MODEL else origin.mark * bool(origin.location)
            else:
                now = phase = origin.mark or _after(now)
                if not self._intervals or self._intervals[-1][1] != phase:
                    self._intervals.append((start, phase))
            self._phases.append(_PHASES.index(phase))
            self._interval.append(BEFORE if start == BEFORE else len(self._intervals) - 1)

    def memory(self) -> DeviceMemory:
        """Put it all together."""
        device = self._device
        after = device.made.after
        peaks: dict[str, int] = {}
        peak_place = -1
        for place, (code, size) in enumerate(zip(self._phases, after, strict=True)):
            if device.made.start[place] == BEFORE:
                continue
            if size > peaks.get(_PHASES[code], 0):
                peaks[_PHASES[code]] = size
                if peak_place < 0 or size > after[peak_place]:
                    peak_place = place
        live = [block.size for block in device.blocks if block.is_live]
        if peak_place >= 0 and after[peak_place] >= device.before_bytes:
            row, peak_phase = device.made.start[peak_place], _PHASES[self._phases[peak_place]]
        else:  # nothing is known of a time before the history
            row, peak_phase = (BEFORE if device.events > 1 else _END), ""
        rows, inferred = self._held(row)
        peak = sum(rows.values())
        held: Counter[tuple[str, str, str]] = Counter()
        for (what, module, location, _), size in rows.items():
            held[what, module, location] += size
        return DeviceMemory(
            memory=RankMemory(
                rank=device.number,
                peak_allocated_bytes=peak,
                peak_phase=peak_phase,
                peak_reserved_bytes=device.peak_reserved_bytes,
                phases={phase: peaks[phase] for phase in PHASES if phase in peaks},
                at_peak=tuple(
                    HeldAtPeak(what=what, module=module, location=location, bytes=size)
                    for (what, module, location), size in held.most_common()
                ),
            ),
            given_bytes=sum(size for key, size in rows.items() if key[1] and key[3]),
            lined_bytes=sum(size for key, size in rows.items() if key[2]),
            inferred_bytes=inferred,
            before_bytes=device.before_bytes,
            cut_bytes=device.lost_bytes,
            events=device.events,
            steps=sum(phase == "backward" for _, phase in self._intervals),
            stays=tuple(self._stays()),
            allocated_bytes=sum(live),
            reserved_bytes=sum(segment.size for segment in device.segments),
            **self._free(),
        )

    # ------------------------------------------------------------------ what is live

    def _held(self, row: int) -> tuple[Counter[tuple[str, str, str, str]], int]:
        """Bytes live just after an event, by what, module, line and phase; and how many by inference."""
        rows: Counter[tuple[str, str, str, str]] = Counter()
        inferred = 0
        for place in self._device.live_at(row):
            origin, is_inferred = self._origin(place)
            size = self._device.made.size[place]
            inferred += size * is_inferred
            rows[self._what(place), origin.module, origin.location, _PHASES[self._phases[place]]] += size
        return rows, inferred

    def _origin(self, place: int) -> tuple[Origin, bool]:
        """An allocation's own origin; of one without lines in backward that of the operator whose inputs are
        freed next: what forward allocated just after them."""
        made = self._device.made
        origin = self._origins.of(made.stack[place])
        if origin.location or made.start[place] == BEFORE or _PHASES[self._phases[place]] != "backward":
            return origin, False
        computed, ends, freed = self._computed
        first, last = self._span(place)
        at = bisect(ends, made.start[place])
        if at < len(ends) and ends[at] <= last:
            after = bisect(computed, freed[at])
            is_same = after < len(computed) and self._interval[computed[after]] == self._interval[freed[at]]
            return self._origins.of(made.stack[computed[after] if is_same else freed[at]]), True
        if at and ends[at - 1] >= first:
            return self._origins.of(made.stack[freed[at - 1]]), True
        return origin, False

    @functools.cached_property
    def _computed(self) -> tuple[list[int], list[int], list[int]]:
        """Places of what forwards allocated, also again in backward; of these what backward freed: rows and
        places."""
        made = self._device.made
        computed = []
        for place, stack in enumerate(made.stack):
            origin, phase = self._origins.of(stack), _PHASES[self._phases[place]]
            if origin.location and (phase == "forward" or (phase == "backward" and origin.computes)):
                computed.append(place)
        freed = sorted(
            (end, place)
            for place in computed
            if (end := made.end[place]) != BEFORE and self._intervals[self._interval_at(end)][1] == "backward"
        )
        return computed, [end for end, _ in freed], [place for _, place in freed]

    def _interval_at(self, row: int) -> int:
        return bisect(self._intervals, row, key=lambda one: one[0]) - 1

    def _span(self, place: int) -> tuple[int, int]:
        """First and last row of an allocation's phase."""
        interval = self._interval[place]
        following = self._intervals[interval + 1][0] if interval + 1 < len(self._intervals) else _END
        return self._intervals[interval][0], following

    def _what(self, place: int) -> str:
        """What an allocation is, by its phase and whether it outlives that."""
        made = self._device.made
        phase = _PHASES[self._phases[place]]
        origin = self._origins.of(made.stack[place])
        if origin.what:
            return origin.what
        if not phase:
            return _LATE if made.start[place] == BEFORE else "not known"
        if phase in ("forward", "backward", "step"):
            if phase != "step" and self._outlives_step(place):
                size = made.size[place]
                return (
                    _WORKSPACE
                    if size in _WORKSPACES
                    else _KEPT
                    if phase == "forward"
                    else BY_NAME[phase].holds
                )
            if phase == "backward" and origin.computes:
                return BY_NAME["forward"].holds
            if made.start[place] != BEFORE != made.end[place] <= self._span(place)[1]:
                return "temporary"
        return BY_NAME[phase].holds

    def _outlives_step(self, place: int) -> bool:
        """Whether an allocation is there after the next step, or the next backward pass where steps allocate
        nothing."""
        end = self._device.made.end[place]
        ends = "step" if any(phase == "step" for _, phase in self._intervals) else "backward"
        following = self._interval[place] + 1
        for (_, phase), (start, after) in zip(
            self._intervals[following:], self._intervals[following + 1 :], strict=False
        ):
            if phase == ends and after in ("forward", "other"):
                return end == BEFORE or (end > start and after == "forward")
        return False

    # ------------------------------------------------------------------ what stays

    def _stays(self) -> list[StaysBehind]:
        """Lines whose memory is more at the beginning of each backward pass than at the one before."""
        starts = [row for row, phase in self._intervals if phase == "backward"]
        if len(starts) < _LEAST_STEPS:
            return []
        made = self._device.made
        changes: dict[int, Counter[int]] = defaultdict(Counter)
        shown: dict[int, int] = {}
        for place, start in enumerate(made.start):
            end = made.end[place]
            begin = bisect(starts, start)
            over = len(starts) if end == BEFORE else bisect(starts, end)
            if start != BEFORE and begin < over:
                stack = made.stack[place]
                changes[stack][begin] += made.size[place]
                changes[stack][over] -= made.size[place]
                shown[stack] = place
        by_line: dict[tuple[str, str], list[int]] = {}
        for stack, steps in changes.items():
            origin, _ = self._origin(shown[stack])
            held = by_line.setdefault((origin.module, origin.location), [0] * len(starts))
            now = 0
            for step in range(len(starts)):
                now += steps[step]
                held[step] += now
        found = []
        for (module, location), held in by_line.items():
            more = [
                later - earlier for earlier, later in zip(held[_SETTLED:], held[_SETTLED + 1 :], strict=False)
            ]
            if more and min(more) > 0:
                found.append(
                    StaysBehind(
                        module=module, location=location, bytes=held[-1],
                        bytes_per_step=sum(more) // len(more), steps=len(more),
                    )
                )  # fmt: skip
        return sorted(found, key=lambda one: -one.bytes)

    # ------------------------------------------------------------------ what is free

    def _free(self) -> dict[str, Any]:
        free = [block.size for block in self._device.blocks if not block.is_live]
        split = sum(
            block.size
            for segment in self._device.segments
            if any(one.is_live for one in segment.blocks)
            for block in segment.blocks
            if not block.is_live
        )
        total, largest = sum(free), max(free, default=0)
        return {
            "free_bytes": total,
            "largest_free_bytes": largest,
            "split_bytes": split,
            "out_of_memory": self._failed(total, largest),
        }

    def _failed(self, free: int, largest: int) -> FailedAllocation | None:
        failed = self._device.out_of_memory
        if failed is None:
            return None
        origin = self._origins.of(failed.stack)
        phase = origin.mark or _after(self._intervals[-1][1] if self._intervals else "load")
        asked, driver = failed.asked_bytes, failed.driver_free_bytes
        held = f"PyTorch held {format_gib(free)} free, {format_gib(largest)} of it in one piece"
        if driver >= asked:
            reason = (
                f"{held}; the device had {format_gib(driver)} free, which this process may not take: "
                "torch.cuda.set_per_process_memory_fraction limits it"
            )
        else:
            reason = f"{held}, and the device {format_gib(driver)}"
        if free >= asked:
            fix = (
                "set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True: enough is free, in pieces that are "
                "too small"
            )
        else:
            fix = (
                phase and BY_NAME[phase].lowers
            ) or "a smaller batch per GPU, or checkpointing of activations"
        return FailedAllocation(
            asked_bytes=asked, driver_free_bytes=driver, free_bytes=free, largest_free_bytes=largest,
            phase=phase, module=origin.module, location=origin.location, reason=reason, fix=fix,
        )  # fmt: skip


def _after(phase: str) -> str:
    """The phase of an allocation whose stack tells none, after one of ``phase``: a loss belongs to forward,
    what comes between backward and step, or after it, to none of the others."""
    return phase if phase in ("load", "forward", "") else "other"
