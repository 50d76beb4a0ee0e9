"""A machine laid out in a folder: its drivers' tools, devices and home, for the doctor to look at."""

from __future__ import annotations

from pathlib import Path

import pytest

from zerokit.doctor import DoctorFinding, examine, operators, software
from zerokit.doctor.finding import STATES

H100 = "GPU-{0}aaa, NVIDIA H100 80GB HBM3, 81559, {1}, {2}"


class Machine:
    """A machine laid out in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.root, self.bin = folder, folder / "root", folder / "bin"
        self.home, self.cwd = folder / "home", folder / "work"
        for path in (self.root / "dev/shm", self.bin, self.home, self.cwd):
            path.mkdir(parents=True)
        self.variables = {"PATH": str(self.bin), "HOME": str(self.home)}

    def tool(self, name: str, text: str) -> None:
        """A command that prints a text."""
        path = self.bin / name
        path.write_text(f"#!/bin/sh\n/bin/cat <<'END'\n{text}\nEND\n", encoding="utf-8")
        path.chmod(0o755)

    def gpus(self, count: int = 8, used: int = 4, driver: str = "580.95.05") -> None:
        lines = [f"{index}, {H100.format(index, used, driver)}" for index in range(count)]
        self.tool("nvidia-smi", "\n".join(lines))

    def findings(self) -> dict[str, DoctorFinding]:
        examination = examine(self.variables, cwd=self.cwd, home=self.home, root=self.root)
        assert {finding.state for finding in examination.findings} <= set(STATES)
        for finding in examination.findings:
            assert (finding.state in ("ok", "note")) or finding.fix, finding
        return {finding.check: finding for finding in examination.findings}


def pretend_torch(monkeypatch: pytest.MonkeyPatch, cuda: str | None) -> None:
    """Let the doctor find torch 2.13 as it is built for this CUDA; None: for CPUs."""
    result = software.TorchBuild(version="2.13.0", cuda=cuda, hip=None)
    monkeypatch.setattr(software, "torch_build", lambda: result)
    monkeypatch.setattr(operators, "torch_build", lambda: result)
