"""How long a rank's host waits for its peers, by phase, from its first optimizer step on."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from zerokit.launcher.rank.phase_record import PhaseRecord
from zerokit.launcher.rank_file import Record

_BEFORE_TRAINING = ("load", "init")


class Waits:
    """Seconds inside collectives. With NCCL the host does not wait there: then there is nothing to tell."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        """By phase. Who waits adds to it directly: it happens some hundred times a step."""
        self._before: dict[str, float] | None = None  # of each phase, until the first step was done

    def begin(self, phases: Mapping[str, PhaseRecord]) -> None:
        """The first step is done: what came before (loading, compiling) is no measure of the others."""
        self.seconds.clear()
        self._before = {name: record.seconds for name, record in phases.items()}

    def account(self, phases: Mapping[str, PhaseRecord], running: str, since: float) -> Record:
        """``work``: of each phase its seconds and those that were waited; ``running`` began at ``since``."""
        if self._before is None:
            return {}
        work: dict[str, Any] = {}
        for name, record in phases.items():
            seconds = record.seconds - self._before.get(name, 0.0)
            seconds += time.monotonic() - since if name == running else 0.0
            if name not in _BEFORE_TRAINING:
                work[name] = [round(seconds, 4), round(self.seconds.get(name, 0.0), 4)]
        return {"work": work}
