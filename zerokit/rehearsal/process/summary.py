"""What a rehearsed process has seen, as plain values."""

from __future__ import annotations

import bisect
from dataclasses import asdict
from typing import Any

import numpy as np
import torch

from zerokit.domain.phases import BY_NAME
from zerokit.rehearsal.process.guesses import Guess
from zerokit.rehearsal.process.ledger import STILL_LIVE, GpuMemory, smallest
from zerokit.rehearsal.process.machine import Machine
from zerokit.rehearsal.process.phases import Phases
from zerokit.rehearsal.result import ACTIVATIONS, BACKWARD, GATHERED, GRADIENTS, LOSS

MOST_HOLDINGS = 40

_OF_THE_LOSS = ("_log_softmax", "nll_loss")


def describe(machine: Machine, phases: Phases, stopped: dict[str, str] | None) -> dict[str, Any]:
    """The child's part of the result."""
    ledger = machine.ledger
    segments, required = smallest(ledger.history, ledger.allocator.settings, ledger.peak_reserved_bytes)
    phase_peaks = {name: peak.allocated_bytes for name, peak in ledger.peaks.items() if peak.allocated_bytes}
    return {
        "complete": stopped is None,
        "stopped": stopped,
        "fed": phases.feed.to_dict(),
        "steps": phases.steps,
        "repeats": phases.repeats,
        "last_steps_differ_by": phases.last_steps_differ_by,
        "phases": phase_peaks,
        "lower_bounds": {name: sorted(what) for name, what in ledger.lower_bounds.items()},
        "peak_allocated_bytes": ledger.peak.allocated_bytes,
        "peak_phase": max(phase_peaks, key=lambda name: phase_peaks[name], default=""),
        "smallest_reserved_bytes": segments,
        "required_allocated_bytes": required,
        "communicators": list(machine.communicators.values()),
        "expandable_segments": ledger.allocator.settings.expandable_segments,
        "at_peak": at_peak(ledger, ledger.peak.clock),
        "at_peaks": {name: at_peak(ledger, ledger.peaks[name].clock) for name in phase_peaks},
        "bf16": torch.bfloat16 in ledger.dtypes,
        "host_bytes": machine.peak_host_bytes,
        "host_phases": machine.host_phases,
        "managed_bytes": machine.managed_bytes,
        "written_bytes": machine.written_bytes,
        "guesses": [*_guesses(machine.guesses.shapes, True), *_guesses(machine.guesses.values, False)],
        "stubbed": sorted(machine.stubbed),
        "warnings": sorted(machine.warnings),
        "engine": phases.depth.engine(phases.observed.news()),
        "model": phases.depth.model(phases.model),
        "depth": phases.depth.to_dict(),
        "config_files": sorted(phases.config_files),
        "data_parallel": phases.data_parallel,
        "fully_sharded": phases.fully_sharded,
        "peers": phases.peers,
        "unwrapped": phases.unwrapped,
        "freed": freed(ledger),
        "gradient_checkpointing": phases.checkpointing,
        "batch_rows": phases.observed.loader_rows or int(phases.most_rows == 1),
    }


def at_peak(ledger: GpuMemory, clock: int) -> list[dict[str, Any]]:
    """What was live at a time on the clock, by what, module and line; the largest first."""
    totals: dict[tuple[str, str, str], int] = {}
    history = ledger.history
    for number in history.live_at(clock):
        _, _, module, location = ledger.origins[history.origin[number]]
        key = _component(ledger, number), module, location
        totals[key] = totals.get(key, 0) + history.block_bytes[number]
    ordered = sorted(totals.items(), key=lambda item: -item[1])
    rows = [
        {"what": component, "module": module, "location": location, "bytes": size}
        for (component, module, location), size in ordered[:MOST_HOLDINGS]
    ]
    rest = sum(size for _, size in ordered[MOST_HOLDINGS:])
    if rest:
        rows.append({"what": "smaller ones", "module": "", "location": "", "bytes": rest})
    return rows


def freed(ledger: GpuMemory) -> dict[str, int]:
    """By how much the run's peak would be lower, at whatever instant it then is: without activations that
    backward needs, and with half of what the batch takes."""
    history = ledger.history
    sizes, born, died = (
        np.asarray(part, np.int64) for part in (history.block_bytes, history.born, history.died)
    )
    if not sizes.size:
        return {}
    kinds = np.asarray([_component(ledger, number) for number in range(len(sizes))])
    starts = np.append(ledger.starts_of_backward, np.iinfo(np.int64).max)
    is_kept = (died == STILL_LIVE) | (died > starts[np.searchsorted(starts[:-1], born)])
    without = sizes * (is_kept & (kinds == ACTIVATIONS))
    # as large as gathered weights: their gradients before they are reduced, which no batch makes smaller
    requested = np.asarray(history.requested_bytes, np.int64)
    of_weights = (kinds == BACKWARD) & np.isin(requested, requested[kinds == GATHERED])
    half = sizes // 2 * (np.isin(kinds, (ACTIVATIONS, LOSS, BACKWARD)) & ~of_weights)
    return {
        name: ledger.peak.allocated_bytes - _peak(sizes - less, born, died, ledger.clock)
        for name, less in (("checkpointing", without), ("batch", half))
    }


def _peak(sizes: Any, born: Any, died: Any, clock: int) -> int:
    """The most that is live at once."""
    changes = np.zeros(clock + 1, np.int64)
    np.add.at(changes, born, sizes)
    ended = died != STILL_LIVE
    np.subtract.at(changes, died[ended], sizes[ended])
    return int(changes.cumsum().max())


def _component(ledger: GpuMemory, number: int) -> str:
    """What is live at a peak is told by the phase that allocated it, but for the weights of what is
    trained: an engine moves them to the GPU as it begins. Of backward only what stays until its end is taken
    for gradients of parameters, which ZeRO divides. What a cross-entropy's kernels write (as large as the
    logits, and
    their gradients in backward) is the loss's."""
    phase, operator, _, _ = ledger.origins[ledger.history.origin[number]]
    component = ledger.contents.get(number) or _what(phase, operator)
    return BACKWARD if component == GRADIENTS and _ends_with_backward(ledger, number) else component


def _what(phase: str, operator: str) -> str:
    if operator == "cuBLAS workspace":
        return operator
    if phase in ("forward", "backward") and operator.startswith(_OF_THE_LOSS):
        return LOSS
    row = BY_NAME.get(phase)
    return row.holds if row is not None else phase


def _ends_with_backward(ledger: GpuMemory, number: int) -> bool:
    """Whether a block of a backward was freed before the end of it."""
    born, died = ledger.history.born[number], ledger.history.died[number]
    at = bisect.bisect_left(ledger.ends_of_backward, born)
    return died != STILL_LIVE and (at == len(ledger.ends_of_backward) or died <= ledger.ends_of_backward[at])


def _guesses(book: dict[tuple[str, str], Guess], decides_sizes: bool) -> list[dict[str, Any]]:
    return [
        {"location": location, "what": what, **asdict(guess), "decides_sizes": decides_sizes}
        for (location, what), guess in sorted(book.items())
    ]
