"""Accelerate, the Trainer and DistributedDataParallel: phases, an end when enough was seen, other ranks."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sized
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import distributed

from zerokit.instrument.phases import after, in_place_of
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


_MOST_REPEATED_BYTES = 256 << 20
"""Larger outputs of an evaluation stay as they are: a copy for each row of the data set may not fit."""

_PLACED = 0.8
"""Of the free memory, what Accelerate gives a model at least before it looks for another device
(``accelerate/utils/modeling.py``, ``get_balanced_memory`` and ``get_max_memory``, 1.15: nine tenths)."""
_MOST_LOCAL_STEPS = 16
"""Of local SGD between two averages of the weights, which are then rehearsed."""


def local_sgd(context: Context, module: ModuleType) -> None:
    """Weights are averaged every so many steps, into new tensors: the step after that is seen too."""

    def see_an_average(training: Any) -> None:
        steps = getattr(training, "local_sgd_steps", 0)  # of one process it has none
        if steps <= _MOST_LOCAL_STEPS:
            context.phases.see_at_least(steps + 2)
        else:
            context.machine.warn(
                f"weights are averaged every {steps} steps: not rehearsed, and reserved memory grows with it"
            )

    after(module.LocalSGD, "__init__", see_an_average)


def placement(context: Context, module: ModuleType) -> None:
    """Modules go where there is room for them (``device_map="auto"``), which all layers may not leave."""
    real = module.get_max_memory

    @in_place_of(module, "get_max_memory")
    def get_max_memory(*args: Any, **kwargs: Any) -> Any:
        if context.phases.depth.bytes > _PLACED * context.machine.free_bytes:
            context.phases.depth.needs_whole("free memory decides where layers go")
        return real(*args, **kwargs)


def trainer(context: Context, module: ModuleType) -> None:
    """Evaluation with its gathering."""
    cls = module.Trainer
    evaluation_loop = cls.evaluation_loop

    @in_place_of(cls, "evaluation_loop")
    def evaluated(self: Any, *args: Any, **kwargs: Any) -> Any:
        machine, before = context.machine, context.machine.kept_evaluation_batches
        machine.kept_evaluation_batches = self.args.eval_accumulation_steps
        try:
            loader = args[0] if args else kwargs["dataloader"]
            return _all_rows(evaluation_loop(self, *args, **kwargs), loader)
        finally:
            machine.kept_evaluation_batches = before


def _all_rows(output: Any, loader: Any) -> Any:
    """The loop's output with a row for each of the data set's, as what follows may count them. The evaluation
    saw its first batches only: their rows are repeated."""
    rows = len(loader.dataset) if isinstance(loader.dataset, Sized) else 0
    row_count = _rows(output.predictions)
    if not 0 < row_count < rows:
        return output

    def repeated(value: Any) -> Any:
        if isinstance(value, tuple | list):
            return tuple(repeated(item) for item in value)
        if _rows(value) != row_count or value.nbytes // row_count * rows > _MOST_REPEATED_BYTES:
            return value
        return np.resize(value, (rows, *value.shape[1:]))

    return output._replace(predictions=repeated(output.predictions), label_ids=repeated(output.label_ids))


def _rows(value: Any) -> int:
    """Of the first array; the Trainer's own count is the data set's, however many it saw."""
    if isinstance(value, tuple | list):
        return _rows(value[0]) if value else 0
    return len(value) if isinstance(value, np.ndarray) and value.ndim else 0


def callbacks(context: Context, module: ModuleType) -> None:
    """When enough steps were seen the Trainer is told to evaluate, save (as its settings say) and end. Its
    batch is noted where training begins: a model may be given more rows (the two answers of a DPO pair)."""
    phases = context.phases
    cls = module.DefaultFlowCallback
    original, began = cls.on_step_end, cls.on_train_begin

    @in_place_of(cls, "on_train_begin")
    def on_train_begin(self: Any, args: Any, *rest: Any, **kwargs: Any) -> Any:
        phases.observed.trainer_began(int(args.train_batch_size))
        phases.feed.trainer_began(args)
        return began(self, args, *rest, **kwargs)

    @in_place_of(cls, "on_step_end")
    def on_step_end(self: Any, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        control = original(self, args, state, control, **kwargs) or control
        if phases.enough:
            control.should_training_stop = True
            if _is_wanted(args.eval_strategy):
                control.should_evaluate = True
            if _is_wanted(args.save_strategy):
                control.should_save = True
        return control


def _is_wanted(strategy: Any) -> bool:
    return str(getattr(strategy, "value", strategy)) != "no"
