"""Ends a rank after a number of optimizer steps, timed, and with a last line that says so.

For trials (``zerokit tune``): what follows in the script, such as a checkpoint or an evaluation, is not
reached. All ranks stop at the same step: they wait for each other, so that none leaves a collective
that a peer still runs. Kernels run behind the host, so the clock is read after a synchronisation, at
the end of the warm-up and at the last step only: the steps between run as they always do.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from typing import Any

from zerokit.launcher.rank.probe import Probe

STOP_VARIABLE = "ZEROKIT_STOP_AFTER_STEPS"
WARM_UP_STEPS = 2  # allocations, library choices and optimizer states that are made at first use


def of_environment(probe: Probe) -> StepLimit | None:
    """The limit that the launch set, if it set one."""
    text = os.environ.get(STOP_VARIABLE, "")
    return StepLimit(probe, int(text)) if text.isdigit() and int(text) > 0 else None


class StepLimit:
    """Counts this rank's steps; see the module."""

    def __init__(self, probe: Probe, steps: int) -> None:
        self.probe = probe
        self.steps = steps
        self._warm_up = max(1, min(WARM_UP_STEPS, steps - 1))
        self._began: float | None = None

    def step_done(self) -> None:
        """After an optimizer step; at the last one it does not return."""
        probe = self.probe
        if not probe.is_rank:
            return
        if probe.steps == self._warm_up:
            _synchronize()
            self._began = time.monotonic()
        if probe.steps >= self.steps:
            self._stop()

    def _stop(self) -> None:
        _synchronize()
        if self._began is not None and self.probe.steps > self._warm_up:
            count = self.probe.steps - self._warm_up
            seconds = (time.monotonic() - self._began) / count
            self.probe.event({"type": "timed", "steps": count, "step_seconds": round(seconds, 6)})
        _wait_for_peers()
        self.probe.end("stopped", 0)
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        os._exit(0)


def _cuda() -> Any:
    """``torch.cuda`` where this process has used it."""
    torch = sys.modules.get("torch")
    return torch.cuda if torch is not None and torch.cuda.is_initialized() else None


def _synchronize() -> None:
    cuda = _cuda()
    if cuda is not None:
        cuda.synchronize()


def _wait_for_peers() -> None:
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return
    cuda = _cuda()
    on_gpu = cuda is not None and "nccl" in str(distributed.get_backend())
    distributed.barrier(device_ids=[cuda.current_device()] if on_gpu else None)
    _synchronize()
