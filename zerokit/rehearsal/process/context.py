"""What adapters get: the machine and the run's phases."""

from __future__ import annotations

from dataclasses import dataclass

from zerokit.rehearsal.process.machine import Machine
from zerokit.rehearsal.process.phases import Phases


@dataclass(frozen=True, slots=True)
class Context:
    """One rehearsed process."""

    machine: Machine
    phases: Phases
