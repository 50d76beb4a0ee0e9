"""A reference model's forward within a training step does not end the step's phase."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.packages import needs

torch = pytest.importorskip("torch")
needs("deepspeed")

from tests.support.rehearsals import rehearse  # noqa: E402
from zerokit.rehearsal import conduct  # noqa: E402
from zerokit.rehearsal.process.adapters import deepspeed as adapter  # noqa: E402
from zerokit.rehearsal.process.adapters import training  # noqa: E402
from zerokit.rehearsal.process.allocator import AllocatorSettings  # noqa: E402
from zerokit.rehearsal.process.ledger import GpuMemory  # noqa: E402
from zerokit.rehearsal.process.phases import (  # noqa: E402
    Context,
    Phases,
)

MIB = 1 << 20


class Engine:
    """What the adapter wraps of DeepSpeed's."""

    def __init__(self) -> None:
        self.training = True

    def forward(self) -> None:
        """A forward."""

    def backward(self) -> None:
        """A backward."""

    def step(self) -> None:
        """A step."""


def test_what_follows_a_reference_pass_is_of_the_training_forward(monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = GpuMemory(AllocatorSettings())
    phases = Phases(SimpleNamespace(ledger=ledger), 3)  # type: ignore[arg-type]
    monkeypatch.setattr(phases.observed, "training_forward", lambda *facts: None)
    phases.model = {}
    context: Any = SimpleNamespace(machine=SimpleNamespace(ledger=ledger), phases=phases)
    adapter.engine(context, SimpleNamespace(DeepSpeedEngine=Engine))  # type: ignore[arg-type]
    trained, reference = Engine(), Engine()
    reference.training = False
    ledger.enter("other")
    trained.forward()
    with torch.no_grad():
        reference.forward()
    loss = ledger.hold(8 * MIB, "loss")
    trained.backward()
    ledger.release(loss)
    trained.step()
    with torch.no_grad():
        reference.forward()  # of an evaluation
    assert phases.phase == "other"
    ledger.hold(MIB, "kept")
    assert ledger.peaks["forward"].allocated_bytes == 8 * MIB
    assert ledger.peaks["other"].allocated_bytes == MIB


def test_an_import_within_a_phase_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conduct, "QUIET_SECONDS", 1.0)
    (tmp_path / "lazy.py").write_text("import time; time.sleep(7)")
    (tmp_path / "train.py").write_text(
        "import torch\nweight = torch.ones(8, device='cuda', requires_grad=True)\n"
        "weight.sum().backward()\nimport lazy\ntorch.optim.SGD([weight]).step()\n"
    )
    code, _, err = rehearse(tmp_path, "--gpus", "1", "--gpu", "h200", "--no-cache", "train.py")
    assert code == 0, err
    assert "in backward, importing lazy" in err


def test_local_sgd_is_seen_until_the_step_after_the_weights_were_averaged() -> None:
    warned: list[str] = []
    machine: Any = SimpleNamespace(ledger=GpuMemory(AllocatorSettings()), warn=warned.append)
    phases = Phases(machine, 3)

    class LocalSGD:
        """Accelerate's, of two processes."""

        def __init__(self, steps: int) -> None:
            self.local_sgd_steps = steps

    training.local_sgd(Context(machine, phases), SimpleNamespace(LocalSGD=LocalSGD))  # type: ignore[arg-type]
    LocalSGD(4)
    done = []
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)])
    while not phases.enough:
        phases.step_done(optimizer)
        done.append(phases.repeats)
    assert done == [False] * 5 + [True] and not warned
    LocalSGD(500)
    assert "every 500 steps" in warned[0]
