"""The step time of a rehearsal: recorded operators, the GPU's figures, the host's speed where it is known."""

from __future__ import annotations

import json
from pathlib import Path

from zerokit.domain.hardware import Gpu
from zerokit.planner.calibration import rates
from zerokit.timing import operators
from zerokit.timing.constants import Calibration
from zerokit.timing.host_speed import HostSpeed
from zerokit.timing.recorded_step import StepTime, step_time


def of_file(
    path: Path, gpu: Gpu, ranks: int, host: HostSpeed | None, *, too_long: bool = False, more: int = 0
) -> tuple[StepTime | None, str]:
    """The step time of what a rehearsed process recorded, and why there is none.

    Args:
        host: the speed of the machine that the run is for; None: this machine's, where it has such a GPU
            and was measured.
        more: micro-batches of the step beyond those that were rehearsed.
    """
    if too_long:
        return None, "no step time: a step has more operators than are recorded"
    try:
        events = list(operators.from_rows(json.loads(path.read_text())))
    except FileNotFoundError:
        return None, "no step time: no operators were recorded"
    if not events:
        return None, "no step time: fewer than three optimizer steps were seen"
    hardware, calibration = machine(gpu)
    try:
        timing = step_time(
            events, gpu, ranks, host=host or hardware, calibration=calibration, more_micro_steps=more
        )
    except ValueError as error:
        return None, f"no step time: {error}"
    return timing, timing.note


def machine(gpu: Gpu) -> tuple[HostSpeed | None, Calibration | None]:
    """What ``doctor --measure`` and launches found here, where this machine has the run's GPU."""
    calibration, _ = rates((gpu.title, *gpu.aliases))
    if calibration is None or calibration.host_factor is None:
        return None, calibration
    host = HostSpeed(
        factor=calibration.host_factor, source=calibration.host_source or "measured here",
        low=calibration.host_factor_low, high=calibration.host_factor_high,
    )  # fmt: skip
    return host, calibration
