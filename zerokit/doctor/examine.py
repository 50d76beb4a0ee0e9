"""Runs all checks and gathers what they found."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from zerokit.doctor import environment, operators, software, system
from zerokit.doctor.finding import STATES, DoctorFinding, Surroundings
from zerokit.machine.detect import Detected, detect
from zerokit.machine.versions import DECIDING, installed

_OF_A_GPU = ("index", "uuid", "name", "driver_vram_bytes", "used_bytes")


@dataclass(frozen=True, slots=True, kw_only=True)
class Examination:
    """What the machine has and what was found about it."""

    detected: Detected
    findings: tuple[DoctorFinding, ...]

    @property
    def blockers(self) -> tuple[DoctorFinding, ...]:
        """Findings with which no run can work."""
        return tuple(finding for finding in self.findings if finding.state == "blocker")

    def as_dict(self) -> dict[str, Any]:
        """For ``doctor --json``."""
        counts = Counter(finding.state for finding in self.findings)
        host = self.detected.host
        return {
            "schema": "zerokit.doctor/2",
            "can_run": not self.blockers,
            "counts": {state: counts[state] for state in STATES},
            "machine": {
                "gpus": [{name: getattr(gpu, name) for name in _OF_A_GPU} for gpu in self.detected.gpus],
                "hidden_gpus": self.detected.hidden_gpus,
                "catalogue_gpu": entry.name if (entry := self.detected.catalog_gpu()[0]) else None,
                "driver_version": self.detected.driver_version,
                "host_ram_bytes": host.ram_bytes,
                "host_ram_available_bytes": host.ram_available_bytes,
                "cores": host.cores,
            },
            "packages": {name: installed(name) for name in DECIDING},
            "findings": [
                # "mend": its name until zerokit.doctor/1; goes with the release after this one
                {**asdict(item), "mend": item.fix}
                for item in self.findings
            ],
        }


def examine(
    variables: Mapping[str, str] | None = None,
    *,
    cwd: Path | None = None,
    home: Path | None = None,
    root: Path = Path("/"),
) -> Examination:
    """Look at this machine and at what surrounds a run started from here."""
    variables = dict(os.environ if variables is None else variables)
    detected = detect(variables, root=root)
    around = Surroundings(
        environment=variables,
        cwd=cwd or Path.cwd(),
        home=home or Path(variables.get("HOME") or "/"),
        root=root,
        detected=detected,
    )
    parts = (system, software, operators, environment)
    findings = tuple(finding for part in parts for finding in part.findings(around))
    return Examination(detected=detected, findings=findings)
