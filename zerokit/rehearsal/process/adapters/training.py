"""Accelerate and the Trainer: phases, and a training that ends when enough was seen."""

from __future__ import annotations

from collections.abc import Sized
from types import ModuleType
from typing import Any

import numpy as np

from zerokit.instrument.phases import after, in_place_of
from zerokit.rehearsal.process.phases import Context

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
    """The loop's output with a row for each of the data set's, as what follows may count them.

    The evaluation saw its first batches only: their rows are repeated.
    """
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
    """When enough steps were seen the Trainer is told to evaluate, save (as its settings say) and end.

    Its batch is noted where training begins: a model may be given more rows (the two answers of a DPO pair).
    """
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
