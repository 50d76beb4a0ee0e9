"""DistributedDataParallel and data loaders: parts of PyTorch that look for other ranks, or for an end."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.nn.parallel import distributed
from torch.utils.data import dataloader

from zerokit.rehearsal.process.context import Context

EVALUATION_BATCHES = 8
"""An evaluation loop sees so many batches."""


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


def data_loaders(context: Context) -> None:
    """When enough steps were seen, data ends: scripts then evaluate, save and end by themselves.

    An iterator gives one batch more at most, and inside of an evaluation :data:`EVALUATION_BATCHES`.
    """
    cls = dataloader._BaseDataLoaderIter
    original = cls.__next__

    @functools.wraps(original)
    def following(self: Any) -> Any:
        phases = context.phases
        if phases.phase == "eval":
            given = self.__dict__["_zerokit_given"] = self.__dict__.get("_zerokit_given", 0) + 1
            if given > EVALUATION_BATCHES:
                context.machine.stub(f"evaluation batches after the first {EVALUATION_BATCHES}")
                raise StopIteration
        elif phases.enough:
            late = self.__dict__["_zerokit_late"] = self.__dict__.get("_zerokit_late", 0) + 1
            if late > 1:
                raise StopIteration
        return original(self)

    cls.__next__ = following
