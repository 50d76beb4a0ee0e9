"""Tensors of collectives that nobody waits for."""

from __future__ import annotations

import weakref

import pytest

torch = pytest.importorskip("torch")

from zerokit.rehearsal.process.allocator_settings import AllocatorSettings  # noqa: E402
from zerokit.rehearsal.process.ledger import GpuMemory  # noqa: E402
from zerokit.rehearsal.process.unwaited import Unwaited  # noqa: E402


def test_a_steps_tensors_stay_until_the_next_steps_first_collective() -> None:
    unwaited = Unwaited(GpuMemory(AllocatorSettings.parse("")))
    tensor = torch.zeros(1 << 20)
    held = weakref.ref(tensor)
    unwaited.put([tensor])
    del tensor
    unwaited.collective_issued()
    assert held() is not None
    unwaited.step_done()
    assert held() is not None
    unwaited.collective_issued()
    assert held() is None


def test_every_phase_of_training_is_a_lower_bound_then() -> None:
    ledger = GpuMemory(AllocatorSettings.parse(""))
    unwaited = Unwaited(ledger)
    for phase in ("load", "forward", "step"):
        ledger.enter(phase)
    assert unwaited.note() is None and not ledger.lower_bounds
    for _ in range(2):
        unwaited.put([torch.zeros(1 << 20)])
        unwaited.step_done()
    note = unwaited.note()
    assert note is not None and "4.0 MiB for each step" in note
    assert set(ledger.lower_bounds) == {"forward", "step"}
