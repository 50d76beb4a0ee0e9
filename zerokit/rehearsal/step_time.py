"""The step time of a rehearsal: recorded operators, the GPU's figures, the host's speed where it is known."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from zerokit.domain.hardware import Gpu
from zerokit.planner.calibration import rates
from zerokit.timing import operators
from zerokit.timing.constants import Calibration
from zerokit.timing.host_speed import HostSpeed
from zerokit.timing.operators import IssuedOperator
from zerokit.timing.recorded_step import StepTime, connected, step_time


def recorded(folder: Path, rank: int) -> Path:
    """Where the operators of a rank's step are, in a folder of one run's ranks."""
    return folder / f"operators-{rank}.json"


def of_rank(
    folder: Path, rank: int, gpu: Gpu, ranks: int, host: HostSpeed | None, *, too_long: bool = False,
    more: int = 0, steps: int = 0,
) -> tuple[StepTime | None, str]:  # fmt: skip
    """The step time of what a rehearsed process recorded, and why there is none.

    It is that of all ranks that exchange messages with this one, and with each other, where all of them were
    recorded.

    Args:
        folder: of the run's recorded ranks.
        host: the speed of the machine that the run is for; None: this machine's, where it has such a GPU
            and was measured.
        more: micro-batches of the step beyond those that were rehearsed.
        steps: that the optimizer took.
    """
    if too_long:
        return None, "a step has more operators than are recorded"
    events = _events(folder, rank)
    if events is None:
        return None, "no operators were recorded"
    if any(event.phase == "generate" for event in events):
        return None, "a step generates, and most of its tokens are not made in a rehearsal"
    if not events:
        return None, f"a step is timed from the third on, and the script took {steps or 'none'}"
    others, missing = _others(folder, rank, events)
    hardware, calibration = machine(gpu)
    try:
        timing = step_time(
            events, gpu, ranks, host=host or hardware, calibration=calibration, more_micro_steps=more,
            rank=rank, others={} if missing else others,
        )  # fmt: skip
    except ValueError as error:
        return None, str(error)
    return replace(timing, missing=missing), timing.note


def _events(folder: Path, rank: int) -> list[IssuedOperator] | None:
    try:
        return list(operators.from_rows(json.loads(recorded(folder, rank).read_text())))
    except FileNotFoundError:
        return None


def _others(
    folder: Path, rank: int, events: Sequence[IssuedOperator]
) -> tuple[Mapping[int, Sequence[IssuedOperator]], tuple[int, ...]]:
    """The ranks whose steps depend on this one's, and those of them that were not recorded, as far as is
    known: whom these exchange messages with they would say."""
    found: dict[int, Sequence[IssuedOperator]] = {rank: events}
    missing: set[int] = set()
    unseen = [*connected(events, rank)]
    while unseen:
        other = unseen.pop()
        if other in found:
            continue
        of_other = _events(folder, other)
        if not of_other:
            missing.add(other)
            continue
        found[other] = of_other
        unseen += connected(of_other, other) - missing
    del found[rank]
    return found, tuple(sorted(missing))


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
