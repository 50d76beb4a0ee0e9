"""What a rehearsed process has seen, as plain values."""

from __future__ import annotations

import bisect
from typing import Any

import torch

from zerokit.rehearsal.process import smallest_card
from zerokit.rehearsal.process.guesses import Guess
from zerokit.rehearsal.process.ledger import STILL_LIVE, GpuMemory
from zerokit.rehearsal.process.machine import Machine
from zerokit.rehearsal.process.phases import Phases
from zerokit.rehearsal.result import BACKWARD, GRADIENTS, LOSS, WEIGHTS

MOST_HOLDINGS = 40

_WHAT = {
    "load": WEIGHTS,
    "init": "engine and its buffers",
    "forward": "activations",
    "backward": GRADIENTS,
    "step": "optimizer states",
    "eval": "no-gradient forward",
    "generate": "generation",
    "save": "saving",
    "other": "other",
}
"""What is live at a peak is told by the phase that allocated it, but for the weights of what is trained: an
engine moves them to the GPU as it begins. Of backward only what stays until its end is taken for gradients of
parameters, which ZeRO divides. What a cross-entropy's kernels write (as large as the logits, and
their gradients in backward) is the loss's."""
_OF_THE_LOSS = ("_log_softmax", "nll_loss")


def describe(machine: Machine, phases: Phases, stopped: dict[str, str] | None) -> dict[str, Any]:
    """The child's part of the result."""
    ledger = machine.ledger
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
        "smallest_reserved_bytes": smallest_card.smallest(
            ledger.history,
            ledger.allocator.settings,
            ledger.peak.allocated_bytes,
            ledger.peak_reserved_bytes,
        ),
        "expandable_segments": ledger.allocator.settings.expandable_segments,
        "at_peak": at_peak(ledger),
        "bf16": torch.bfloat16 in ledger.dtypes,
        "host_bytes": machine.peak_host_bytes,
        "managed_bytes": machine.managed_bytes,
        "written_bytes": machine.written_bytes,
        "guesses": [*_guesses(machine.guesses.shapes, True), *_guesses(machine.guesses.values, False)],
        "stubbed": sorted(machine.stubbed),
        "warnings": sorted(machine.warnings),
        "engine": phases.observed.news(),
        "model": phases.model,
        "config_files": sorted(phases.config_files),
        "data_parallel": phases.data_parallel,
        "fully_sharded": phases.fully_sharded,
        "gradient_checkpointing": phases.checkpointing,
        "batch_rows": phases.observed.loader_rows or int(phases.most_rows == 1),
    }


def at_peak(ledger: GpuMemory) -> list[dict[str, Any]]:
    """What was live when most was allocated, by what, module and line; the largest first."""
    totals: dict[tuple[str, str, str], int] = {}
    history = ledger.history
    for number in history.live_at(ledger.peak.clock):
        phase, operator, module, location = ledger.origins[history.origin[number]]
        component = ledger.contents.get(number) or _what(phase, operator)
        if component == GRADIENTS and _ends_with_backward(ledger, number):
            component = BACKWARD
        key = component, module, location
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


def _what(phase: str, operator: str) -> str:
    if operator == "cuBLAS workspace":
        return operator
    if phase in ("forward", "backward") and operator.startswith(_OF_THE_LOSS):
        return LOSS
    return _WHAT.get(phase, phase)


def _ends_with_backward(ledger: GpuMemory, number: int) -> bool:
    """Whether a block of a backward was freed before the end of it."""
    born, died = ledger.history.born[number], ledger.history.died[number]
    at = bisect.bisect_left(ledger.ends_of_backward, born)
    return died != STILL_LIVE and (at == len(ledger.ends_of_backward) or died <= ledger.ends_of_backward[at])


def _guesses(book: dict[tuple[str, str], Guess], decides_sizes: bool) -> list[dict[str, Any]]:
    return [
        {
            "location": location,
            "what": description,
            "value": guess.value,
            "times": guess.times,
            "decides_sizes": decides_sizes,
        }
        for (location, description), guess in sorted(book.items())
    ]
