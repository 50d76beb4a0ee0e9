"""One thing the doctor found, and where it looked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from zerokit.fields import as_options
from zerokit.machine.detect import Detected

STATES = ("ok", "note", "warning", "blocker")


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorFinding:
    """One finding.

    Attributes:
        check: what was looked at, a stable short name (``software.deepspeed``).
        state: ``ok``; ``note``: worth knowing; ``warning``: slows or breaks some runs;
            ``blocker``: no run can work.
        what: a sentence for a person.
        fix: what to do; ``None``: nothing.
    """

    check: str
    state: str
    what: str
    fix: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """Where the doctor looks; tests lay out another.

    Attributes:
        root: stands for ``/``.
    """

    environment: Mapping[str, str]
    cwd: Path
    home: Path
    root: Path
    detected: Detected

    @property
    def on_gpu(self) -> bool:
        """Whether a run here would be on GPUs."""
        return bool(self.detected.gpus)


def ok(check: str, what: str) -> DoctorFinding:
    """Nothing to fix."""
    return DoctorFinding(check=check, state="ok", what=as_options(what))


def note(check: str, what: str, fix: str | None = None) -> DoctorFinding:
    """Worth knowing."""
    return DoctorFinding(check=check, state="note", what=as_options(what), fix=fix)


def warning(check: str, what: str, fix: str) -> DoctorFinding:
    """Slows or breaks some runs."""
    return DoctorFinding(check=check, state="warning", what=as_options(what), fix=fix)


def blocker(check: str, what: str, fix: str) -> DoctorFinding:
    """No run can work."""
    return DoctorFinding(check=check, state="blocker", what=as_options(what), fix=fix)
