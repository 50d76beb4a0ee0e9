"""Which calls of torch are a phase of their own."""

from __future__ import annotations

import io
import pickle

import pytest

from zerokit.launcher.rank import parts_hooks

torch = pytest.importorskip("torch")


class Phases:
    """Stands for the probe: the phases that were begun."""

    def __init__(self) -> None:
        self.begun: list[str] = []

    def begin(self, phase: str) -> str:
        self.begun.append(phase)
        return "load"

    def finish(self, before: str | None, error: BaseException | None = None) -> None:
        """Nothing is measured here."""


def test_saving_is_a_phase_and_pickling_a_tensor_is_none(tmp_path, monkeypatch):
    monkeypatch.setattr(torch, "save", torch.save)  # put back afterwards
    probe = Phases()
    parts_hooks.hook_torch(probe, torch)
    tensor = torch.arange(4)
    assert pickle.dumps({"input_ids": [tensor]})
    assert probe.begun == []
    torch.save({"weight": tensor}, tmp_path / "model.pt")
    torch.save(obj={"weight": tensor}, f=io.BytesIO())  # what Lightning writes to a remote disk
    assert probe.begun == ["save", "save"]
