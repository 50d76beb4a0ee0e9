"""Which checkpoints a rank tells of, and when."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from zerokit.launcher.rank.checkpoints import Checkpoints


class Engine:
    """As DeepSpeed's, whose decoupled engine commits with the next step."""

    global_steps = 4

    def __init__(self, decoupled: bool) -> None:
        self.checkpoint_engine = SimpleNamespace(is_decoupled=lambda: decoupled)

    def save_checkpoint(self, save_dir: str, tag: str | None = None) -> None: ...

    def _commit_decoupled_checkpoint(self) -> None: ...


class Accelerator:
    """Saves by the engine that it has prepared."""

    engine: Any = None

    def save_state(self, folder: str) -> str:
        self.engine.save_checkpoint(folder, "pytorch_model")
        return folder


@pytest.mark.parametrize("decoupled", [False, True])
@pytest.mark.parametrize("by_accelerate", [False, True])
def test_one_that_is_still_written_is_told_of_when_it_is_committed(
    decoupled: bool, by_accelerate: bool
) -> None:
    engine_class = type("AnEngine", (Engine,), dict(Engine.__dict__))
    accelerator_class = type("AnAccelerator", (Accelerator,), dict(Accelerator.__dict__))
    told: list[dict[str, Any]] = []
    checkpoints = Checkpoints(SimpleNamespace(steps=4, event=told.append))  # type: ignore[arg-type]
    checkpoints.hook_engine(engine_class)
    checkpoints.hook_accelerate(SimpleNamespace(Accelerator=accelerator_class))  # type: ignore[arg-type]
    engine, accelerator = engine_class(decoupled), accelerator_class()
    accelerator.engine = engine
    if by_accelerate:
        accelerator.save_state("/c")
    else:
        engine.save_checkpoint("/c")
    assert len(told) == (0 if decoupled else 1)
    engine._commit_decoupled_checkpoint()
    assert [(entry["folder"], entry.get("tag")) for entry in told] == [
        ("/c", None if by_accelerate else "global_step4")
    ]
