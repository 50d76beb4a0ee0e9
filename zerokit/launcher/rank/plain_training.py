"""Steps and phases of training without a DeepSpeed engine: PyTorch's DDP or FSDP, or one process alone.

A step is one of the outermost optimizer; ``forward`` begins with the call of an outermost module, ``eval``
with one without gradients. Nothing is put before the script makes an optimizer, and all is taken out again
where an engine comes up, which tells more. Optimizers that step within the backward pass are not counted.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
from collections.abc import Callable
from types import ModuleType
from typing import Any

from zerokit.domain.phases import TRAINING_PHASES
from zerokit.instrument.engine_facts import DividedModels
from zerokit.instrument.phases import in_place_of
from zerokit.launcher.rank.probe import Probe


class _Inside(threading.local):
    """Whether this thread is inside a module."""

    now = False


class PlainTraining:
    """Follows a loop through PyTorch's own calls, from its first optimizer on."""

    def __init__(self, probe: Probe) -> None:
        self._probe = probe
        self._undo: list[Callable[[], None]] = []
        self._is_over = False
        self._inside = _Inside()
        self._in_backward = 0
        self._stepping: list[int] = []  # optimizers that are in their step, one inside another

    def hook_torch(self, torch: ModuleType) -> None:
        """Wait for the script's first optimizer."""
        optimizer = torch.optim.Optimizer
        original = optimizer.__init__

        @in_place_of(optimizer, "__init__")
        def init(this: Any, *args: Any, **kwargs: Any) -> None:
            original(this, *args, **kwargs)
            if not self._is_over and not self._undo and "init" not in self._probe.parts:
                try:
                    self.begin(torch)
                except Exception as error:
                    self.end()
                    print(f"zerokit: steps without DeepSpeed are not measured: {error}", file=sys.stderr)

    def end(self) -> None:
        """An engine came up: it tells the phases and the steps from now on."""
        self._is_over = True
        while self._undo:
            self._undo.pop()()
        self._probe.steps_counted_by = "engine"

    def begin(self, torch: ModuleType) -> None:
        """Follow it from now on."""
        self._probe.steps_counted_by = "optimizer"
        self._replace(torch.nn.Module, "__call__", self._calls(torch))
        self._replace(torch.autograd, "backward", self._backwards(torch))
        hooks = sys.modules[torch.optim.Optimizer.__module__]  # torch.optim has no such attribute
        for handle in (
            hooks.register_optimizer_step_pre_hook(self._before_step),
            hooks.register_optimizer_step_post_hook(self._after_step),
        ):
            self._undo.append(handle.remove)

    def _replace(self, owner: Any, name: str, ours: Callable[..., Any]) -> None:
        original = getattr(owner, name)
        setattr(owner, name, ours)

        def put_back() -> None:
            if getattr(owner, name) is ours:  # nobody wrapped it since
                setattr(owner, name, original)

        self._undo.append(put_back)

    def _is_ours(self) -> bool:
        """Whether what this thread does is the loop's own, and not a part's (an evaluation, a save)."""
        probe = self._probe
        return (
            not self._is_over and probe.is_rank and not probe.parts
            and threading.get_ident() == probe.main_thread
        )  # fmt: skip

    def _calls(self, torch: ModuleType) -> Callable[..., Any]:
        call, is_compiling = torch.nn.Module.__call__, torch.compiler.is_compiling
        is_grad_enabled, inside, probe = torch.is_grad_enabled, self._inside, self._probe
        divided = DividedModels(probe.observed)

        @functools.wraps(call)
        def called(this: Any, *args: Any, **kwargs: Any) -> Any:
            if is_compiling() or inside.now:  # Dynamo traces this frame: nothing of ours belongs into a graph
                return call(this, *args, **kwargs)
            before = None
            if not self._in_backward and self._is_ours():  # a recomputed layer belongs to the backward pass
                if is_grad_enabled():
                    probe.enter("forward")
                    with contextlib.suppress(Exception):
                        divided.training_forward(this, args, kwargs)
                else:
                    before = probe.phase
                    probe.enter("eval")
            inside.now = True
            try:
                result = call(this, *args, **kwargs)
            finally:
                inside.now = False
            if before in TRAINING_PHASES:
                probe.enter(before, again=True)
            return result

        return called

    def _backwards(self, torch: ModuleType) -> Callable[..., Any]:
        backward, probe = torch.autograd.backward, self._probe

        @functools.wraps(backward)
        def wrapped(tensors: Any, *args: Any, **kwargs: Any) -> Any:
            if self._is_ours():
                if probe.phase != "backward":
                    probe.position = (probe.steps, probe.micro_steps + 1)
                with contextlib.suppress(Exception):
                    probe.learning.see_loss(tensors)
                probe.enter("backward")
            self._in_backward += 1
            try:
                return backward(tensors, *args, **kwargs)
            finally:
                self._in_backward -= 1

        return wrapped

    def _before_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if self._in_backward or not self._is_ours():
            return
        if id(optimizer) in self._stepping:  # an exception left its last step
            self._stepping.clear()
        self._stepping.append(id(optimizer))
        if len(self._stepping) == 1:
            self._probe.enter("step")

    def _after_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if not self._stepping or self._stepping[0] != id(optimizer):
            return
        self._stepping.clear()
        if self._is_ours():
            self._probe.step_done()
            self._probe.enter("other")
