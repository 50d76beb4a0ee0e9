"""What is known of this machine's speed: rates that the doctor measured, step times that ``tune`` kept."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from zerokit.doctor.examine import Examination
from zerokit.errors import INSTALL_TRAINING, InputError, ReportNotWritten
from zerokit.machine import host_speeds, tuned
from zerokit.machine import measured as measurements
from zerokit.machine.host_speeds import Reading
from zerokit.machine.measured import Measured
from zerokit.timing.calibration import Observation
from zerokit.timing.host_speed import HostSpeed


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """What later plans on this machine count with: measured rates, and where they are kept, or why there are
    none; step times of real runs, or why those that were kept cannot be used; the host's speed, by
    launches."""

    measured: Measured | None
    source: str
    tuned: tuple[Observation, ...]
    tuned_warning: str | None
    host_readings: tuple[Reading, ...] = ()

    @property
    def host_speed(self) -> HostSpeed | None:
        """What the newest readings say together."""
        return host_speeds.together(self.host_readings, str(host_speeds.path()))

    @property
    def tuned_jobs(self) -> int:
        """How many jobs the step times are of."""
        return len({(observation.gpu, observation.gpus, observation.job_key) for observation in self.tuned})

    def to_dict(self) -> dict[str, Any]:
        """``measured``, ``tuned`` and ``host_speed`` of ``doctor --json``."""
        return {
            "measured": self.measured.as_dict() if self.measured else None,
            "tuned": {
                "file": str(tuned.path()),
                "step_times": len(self.tuned),
                "warning": self.tuned_warning,
            },
            "host_speed": {
                "file": str(host_speeds.path()),
                "readings": [asdict(reading) for reading in self.host_readings],
            },
        }


def load() -> Rates:
    """What was measured and kept before; nothing is measured now."""
    return _with_tuned(*measurements.load())


def measure(examination: Examination, say: Callable[[str], None]) -> Rates:
    """Measure this machine and keep the rates for later plans. ``say`` hears first how long that takes.
    Raises InputError: torch is not installed. Raises RankFailed, RunHung: it did not come to an end. Raises
    ReportNotWritten: the rates cannot be kept."""
    from zerokit.doctor.measure import measure as measure_now

    if any(finding.check == "software.torch" for finding in examination.blockers):
        raise InputError(f"⟨measure⟩: torch is not installed; {INSTALL_TRAINING}")
    compiles = any(
        finding.check == "build.cpu_adam" and finding.state == "note" for finding in examination.findings
    )
    say("measuring takes about half a minute" + ("; DeepSpeed's CPU Adam is compiled first" * compiles))
    measured, path = measure_now(examination.detected, compiles=compiles), measurements.path()
    for part, why in measured.not_measured.items():
        say(f"not measured: {part}: {why}")
    try:
        measurements.save(measured, path)
    except OSError as error:
        raise ReportNotWritten(f"{path}: {error.strerror}") from error
    return _with_tuned(measured, f"kept in {path}")


def _with_tuned(measured: Measured | None, source: str) -> Rates:
    times, warning = tuned.load()
    return Rates(
        measured=measured, source=source, tuned=tuple(times), tuned_warning=warning,
        host_readings=host_speeds.load().readings,
    )  # fmt: skip
