"""How long a rank's host waits for its peers, by phase, from its first optimizer step on."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from zerokit.launcher.rank.gpu_waits import GpuWaits
from zerokit.launcher.rank.phase_record import PhaseRecord
from zerokit.launcher.rank_file import Record

_BEFORE_TRAINING = ("load", "init")


class Waits:
    """Seconds inside collectives. With NCCL the host does not wait there: then the GPU's own are told."""

    def __init__(self) -> None:
        self.gpu = GpuWaits()
        self.running = [0.0]
        """Since the phase began. Who waits adds to it directly: it happens some hundred times a step."""
        self._seconds: dict[str, float] = {}  # of the phases before
        self._before: dict[str, float] | None = None  # of each phase, until the first step was done

    def step_done(self, steps: int, phases: Mapping[str, PhaseRecord]) -> None:
        """The ``steps``-th is applied; what came before the first (loading, compiling) is no measure."""
        if steps == 1:
            self._seconds.clear()
            self.running[0] = 0.0
            self._before = {name: record.seconds for name, record in phases.items()}
        self.gpu.step_done(steps)

    def charge(self, phase: str) -> None:
        """That phase ends, or begins anew: what was waited since the last call is its own."""
        self._seconds[phase] = self._seconds.get(phase, 0.0) + self.running[0]
        self.running[0] = 0.0
        self.gpu.charge(phase)

    def account(self, phases: Mapping[str, PhaseRecord], running: str, since: float) -> Record:
        """``work``: of each phase its seconds and those that were waited; ``running`` began at ``since``.

        Where the ranks talk through NCCL, ``sampled_work`` (:meth:`GpuWaits.account`).
        """
        if self.gpu.in_charge:
            return self.gpu.account()
        if self._before is None:
            return {}
        work: dict[str, Any] = {}
        for name, record in phases.items():
            seconds = record.seconds - self._before.get(name, 0.0)
            waited = self._seconds.get(name, 0.0)
            if name == running:
                seconds += time.monotonic() - since
                waited += self.running[0]
            if name not in _BEFORE_TRAINING:
                work[name] = [round(seconds, 4), round(waited, 4)]
        return {"work": work}
