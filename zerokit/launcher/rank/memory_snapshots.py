"""Memory snapshots of PyTorch's, which a rank writes into the run's folder where its launch asked for them.

``zerokit explain`` reads them. Each names the class around every line of its stacks, so that the sources need
not be where it is read.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import sys
from typing import Any

from zerokit.instrument.scopes import scopes
from zerokit.launcher.rank.probe import Probe
from zerokit.launcher.rank_file import Record
from zerokit.launcher.secrets import redact

SNAPSHOT_VARIABLE = "ZEROKIT_SNAPSHOT"
"""When to write one: ``oom``, and numbers of optimizer steps, with commas between."""
_MOST_EVENTS = 100_000
"""Kept of the allocator's history, some 2 KB of host memory each."""
_MOST_TEXT = 500


class MemorySnapshots:
    """Writes this rank's snapshots; see the module."""

    def __init__(self, probe: Probe) -> None:
        self._probe = probe
        self._asked = set(filter(None, os.environ.get(SNAPSHOT_VARIABLE, "").split(",")))

    def begin(self, torch: Any) -> None:
        """Have PyTorch keep what its allocator does."""
        if self._asked:
            with contextlib.suppress(Exception):
                torch.cuda.memory._record_memory_history(stacks="python", max_entries=_MOST_EVENTS)
                self._probe.after_step = lambda step: self.write(torch, str(step))

    def write(self, torch: Any, when: str) -> None:
        """Write one, once for each moment that was asked for; the run goes on if that fails."""
        if when not in self._asked:
            return
        self._asked.discard(when)
        moment = when if when == "oom" else f"step-{when}"
        note: Record = {"type": "note", "kind": "memory_snapshot", "label": moment}
        try:
            snapshot = torch.cuda.memory._snapshot()
            snapshot["zerokit"] = {"scopes": _scopes(snapshot)}
            path = self._probe.run_dir / f"snapshot-{self._probe.identity.rank:05d}-{moment}.pickle"
            part = path.with_suffix(".part")
            with part.open("wb") as file:
                pickle.dump(snapshot, file, protocol=4)
            part.replace(path)
            note["file"] = path.name
        except Exception as error:
            note["error"] = redact(f"{type(error).__name__}: {error}"[:_MOST_TEXT], arguments=sys.argv)
        self._probe.event(note)


def _scopes(snapshot: dict[str, Any]) -> dict[str, dict[int, str]]:
    """The classes and functions of all Python lines in a snapshot's stacks, by file."""
    records = [event for trace in snapshot["device_traces"] for event in trace]
    records += [block for segment in snapshot["segments"] for block in segment["blocks"]]
    stacks = {id(frames): frames for record in records if (frames := record.get("frames"))}
    lines: dict[str, set[int]] = {}
    for frames in stacks.values():
        for frame in frames:
            if frame["filename"].endswith(".py"):
                lines.setdefault(frame["filename"], set()).add(frame["line"])
    return {file: scopes(file, numbers) for file, numbers in lines.items()}
