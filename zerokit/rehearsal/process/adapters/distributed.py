"""DistributedDataParallel: the part of PyTorch that looks for other ranks."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.nn.parallel import distributed

from zerokit.rehearsal.process.context import Context


class _SilentLogger:
    """DDP's C++ logger wants a CUDA timer that a CPU build has not registered (``reducer_timer.cpp``)."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *args, **kwargs: None


def data_parallel(context: Context) -> None:
    """Every rank's gradients are ours: the reducer's buckets come back as they are."""
    cls = distributed.DistributedDataParallel
    original = cls.__init__

    def done(buffer: Any) -> Any:
        context.machine.saw_reduction(buffer)
        future = torch.futures.Future()
        future.set_result(buffer)
        return future

    @functools.wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        # a lambda has no annotations, which register_comm_hook would hold to its own types
        self.register_comm_hook(None, lambda state, bucket: done(bucket.buffer()))
        self.logger = _SilentLogger()

    cls.__init__ = init
    # counts iterations, from the first of which the reducer times them with CUDA events (reducer.cpp)
    torch.distributed.Reducer.prepare_for_forward = lambda self: None
