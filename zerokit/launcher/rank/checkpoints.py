"""Checkpoints that a rank wrote whole, and how a Trainer goes on from one.

A rank tells of a checkpoint when the call that saves it has returned; the run has it when every rank did.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from types import ModuleType
from typing import Any

from zerokit.instrument.phases import in_place_of
from zerokit.launcher.rank.probe import Probe
from zerokit.launcher.rank_file import Record

RESUME_VARIABLE = "ZEROKIT_RESUME_FROM"
"""The folder of a checkpoint that a Trainer is to go on from."""


class Checkpoints:
    """Wraps what saves a checkpoint; of calls inside each other only the outermost is told of."""

    def __init__(self, probe: Probe) -> None:
        self._probe = probe
        self._inside = threading.local()
        self._being_written = False
        self._untold: list[Record] = []

    def hook_engine(self, engine: Any) -> None:
        """DeepSpeed's own (0.19.8, runtime/engine.py: save_checkpoint). One that a decoupled engine still
        writes is told of when it is committed, with the next step."""

        def saved(this: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
            folder = args[0] if args else kwargs["save_dir"]
            tag = args[1] if len(args) > 1 else kwargs.get("tag")
            self._tell("deepspeed", folder, tag if tag is not None else f"global_step{this.global_steps}")

        def looked_at(this: Any) -> None:
            self._being_written = bool(this.checkpoint_engine.is_decoupled())

        def committed(*_: Any) -> None:
            self._being_written, untold, self._untold = False, self._untold, []
            for record in untold:
                self._probe.event(record)

        self._wrap(engine, "save_checkpoint", saved, looked_at)
        self._wrap(engine, "_commit_decoupled_checkpoint", committed)

    def hook_accelerate(self, module: ModuleType) -> None:
        """``Accelerator.save_state`` returns its folder."""
        self._wrap(module.Accelerator, "save_state", lambda this, args, kw, result: self._tell(
            "accelerate", result))  # fmt: skip

    def hook_trainer(self, module: ModuleType) -> None:
        """A Trainer's checkpoints (5.23, trainer.py: _save_checkpoint), and its way back to one."""

        def saved(this: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
            base = this._get_output_dir(trial=args[1] if len(args) > 1 else kwargs.get("trial"))
            self._tell("trainer", os.path.join(base, f"checkpoint-{this.state.global_step}"))  # noqa: PTH118

        self._wrap(module.Trainer, "_save_checkpoint", saved)
        resume = os.environ.get(RESUME_VARIABLE)
        if resume:
            _resume(module.Trainer, resume)

    def _tell(self, kind: str, folder: Any, tag: Any = None) -> None:
        path = os.path.abspath(os.fspath(folder))  # noqa: PTH100
        record = {"type": "checkpoint", "kind": kind, "folder": path, "step": self._probe.steps}
        if tag is not None:
            record["tag"] = str(tag)
        if self._being_written:
            self._untold.append(record)
        else:
            self._probe.event(record)

    def _wrap(
        self, owner: Any, name: str, saved: Callable[..., None], before: Callable[[Any], None] | None = None
    ) -> None:
        """``saved`` hears of the outermost call, ``before`` of every one."""
        original = owner.__dict__.get(name)
        if original is None:
            return
        inside = self._inside

        @in_place_of(owner, name)
        def wrapped(this: Any, *args: Any, **kwargs: Any) -> Any:
            outermost = not getattr(inside, "call", False)
            inside.call = True
            try:
                result = original(this, *args, **kwargs)
            finally:
                if outermost:
                    inside.call = False
            if before is not None:
                with contextlib.suppress(Exception):
                    before(this)
            if outermost:
                with contextlib.suppress(Exception):
                    saved(this, args, kwargs, result)
            return result


def _resume(trainer: Any, folder: str) -> None:
    """Have ``train`` begin at the checkpoint, where the script names none and it is this Trainer's own."""
    original = trainer.train

    @in_place_of(trainer, "train")
    def train(this: Any, resume_from_checkpoint: Any = None, *args: Any, **kwargs: Any) -> Any:
        is_own_output = os.path.realpath(this.args.output_dir) == os.path.realpath(os.path.dirname(folder))  # noqa: PTH120
        if is_own_output and resume_from_checkpoint in (None, False):
            resume_from_checkpoint = folder
        return original(this, resume_from_checkpoint, *args, **kwargs)
