"""DistributedDataParallel: the part of PyTorch that looks for other ranks."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import distributed

from zerokit.instrument.phases import in_place_of
from zerokit.rehearsal.process.phases import Context


class _SilentLogger:
    """DDP's C++ logger wants a CUDA timer that a CPU build has not registered (``reducer_timer.cpp``)."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *args, **kwargs: None


def data_parallel(context: Context) -> None:
    """Every rank's gradients are ours: the reducer's buckets come back as they are, or as the script's own
    hook makes them."""
    cls = distributed.DistributedDataParallel
    original, register = cls.__init__, cls.register_comm_hook

    def done(buffer: Any) -> Any:
        context.machine.saw_reduction(buffer)
        future = torch.futures.Future()
        future.set_result(buffer)
        return future

    def reduced(module: Any, bucket: Any) -> Any:
        if not module._comm_hooks[1:]:
            return done(bucket.buffer())
        hook, state = module._comm_hooks[-1]
        return hook(state, bucket)

    @in_place_of(cls, "__init__")
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        context.phases.data_parallel = True
        context.phases.depth.needs_whole("DDP's buckets hold parts of several layers")
        itself = weakref.proxy(self)
        # a lambda has no annotations, which register_comm_hook would hold to its own types
        register(self, None, lambda state, bucket: reduced(itself, bucket))
        self.logger = _SilentLogger()

    @in_place_of(cls, "register_comm_hook")
    def register_another(self: Any, state: object, hook: Callable[..., Any]) -> None:
        """PyTorch has one: the first is ours, and calls a second."""
        if self._comm_hooks[1:]:
            raise RuntimeError("register_comm_hook or register_builtin_comm_hook can only be called once.")
        self._check_comm_hook(hook)
        self._comm_hooks.append((hook, state))

    def register_builtin(self: Any, kind: Any) -> None:
        if kind == torch.distributed.BuiltinCommHookType.FP16_COMPRESS:
            register_another(self, None, default_hooks.fp16_compress_hook)

    cls._register_builtin_comm_hook = register_builtin
    # counts iterations, from the first of which the reducer times them with CUDA events (reducer.cpp)
    torch.distributed.Reducer.prepare_for_forward = lambda self: None
