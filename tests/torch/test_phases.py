"""Which calls of torch are a phase of their own."""

from __future__ import annotations

import io
import pickle
from contextlib import contextmanager

import pytest

from zerokit.instrument import phases

torch = pytest.importorskip("torch")


def test_saving_is_a_phase_and_pickling_a_tensor_is_none(tmp_path, monkeypatch):
    monkeypatch.setattr(torch, "save", torch.save)  # put back afterwards
    begun: list[str] = []

    @contextmanager
    def inside(phase):
        begun.append(phase)
        yield

    phases.hook(inside, torch)
    tensor = torch.arange(4)
    assert pickle.dumps({"input_ids": [tensor]})
    assert begun == []
    torch.save({"weight": tensor}, tmp_path / "model.pt")
    torch.save(obj={"weight": tensor}, f=io.BytesIO())  # what Lightning writes to a remote disk
    assert begun == ["save", "save"]
