"""Diffusers' sampling loops: a few steps stand for all."""

from __future__ import annotations

from types import ModuleType, SimpleNamespace
from typing import Any

from zerokit.rehearsal.process.adapters import generation


def test_a_scheduler_makes_few_steps_and_keeps_its_other_arguments() -> None:
    stubbed: list[str] = []
    context: Any = SimpleNamespace(machine=SimpleNamespace(stub=stubbed.append))
    module = ModuleType("diffusers.schedulers.scheduling_utils")
    module.SchedulerMixin = type("SchedulerMixin", (), {})  # type: ignore[attr-defined]
    generation.sampling(context, module)

    class Scheduler(module.SchedulerMixin):  # type: ignore[name-defined,misc]
        def set_timesteps(self, num_inference_steps: int | None = None, device: str = "cpu") -> Any:
            return num_inference_steps, device

    assert Scheduler().set_timesteps(1000, device="cuda") == (4, "cuda")
    assert Scheduler().set_timesteps(3) == (3, "cpu")
    assert Scheduler().set_timesteps() == (None, "cpu")
    assert stubbed == ["sampling of 1000 steps: 4 are made"]
