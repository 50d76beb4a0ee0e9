"""One thing the doctor found, and where it looked."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from zerokit.fields import as_options
from zerokit.machine.detect import Detected

STATES = ("ok", "note", "warning", "blocker")


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorFinding:
    """One finding: what was looked at, a stable short name (``software.deepspeed``); ``ok``, ``note`` (worth
    knowing), ``warning`` (slows or breaks some runs) or ``blocker`` (no run can work); a sentence for a
    person; and what to do."""

    check: str
    state: str
    what: str
    fix: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """Where the doctor looks (``root`` stands for ``/``); tests lay out another."""

    environment: Mapping[str, str]
    cwd: Path
    home: Path
    root: Path
    detected: Detected


def _finding(state: str) -> Callable[..., DoctorFinding]:
    def made(check: str, what: str, fix: str | None = None) -> DoctorFinding:
        return DoctorFinding(check=check, state=state, what=as_options(what), fix=fix)

    return made


ok, note, warning, blocker = map(_finding, STATES)
"""A finding of each state: its check, what is so, and what to do about it."""
