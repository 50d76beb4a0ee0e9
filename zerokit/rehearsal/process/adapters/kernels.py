"""Compiled operators of other libraries: Triton's functions, torchvision's extension."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch

from zerokit.rehearsal.process import twins
from zerokit.rehearsal.process.context import Context
from zerokit.timing.operators import TRITON

_TORCHVISION = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)


def triton_functions(context: Context, module: ModuleType) -> None:
    """A Triton function writes into tensors that its caller made: it does nothing."""

    def run(self: Any, *args: Any, **kwargs: Any) -> None:
        twins.forget((args, kwargs))
        context.machine.stub("Triton kernels")
        tensors = [value for value in (*args, *kwargs.values()) if isinstance(value, torch.Tensor)]
        context.machine.saw_kernel(f"{TRITON}{getattr(self, '__name__', 'kernel')}", tensors)

    module.JITFunction.run = run


def triton_autotuner(context: Context, module: ModuleType) -> None:
    """Nothing is timed, nothing runs."""

    def run(self: Any, *args: Any, **kwargs: Any) -> None:
        twins.forget((args, kwargs))
        context.machine.stub("Triton kernels")
        tensors = [value for value in (*args, *kwargs.values()) if isinstance(value, torch.Tensor)]
        context.machine.saw_kernel(f"{TRITON}{type(self).__name__}", tensors)

    module.Autotuner.run = run
    module.Heuristics.run = run


def torchvision(context: Context, module: ModuleType) -> None:
    """An extension built for another PyTorch: its operators need a schema, or the import fails."""
    if module._has_ops():
        return
    library = torch.library.Library("torchvision", "FRAGMENT")
    vars(module)["_zerokit_library"] = library  # kept: its end takes the definitions back
    for schema in _TORCHVISION:
        library.define(schema)
    context.machine.stub("torchvision's operators")
