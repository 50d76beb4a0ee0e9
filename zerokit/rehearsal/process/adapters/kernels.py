"""Compiled operators of other libraries: Triton's functions, torchvision's extension."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch

from zerokit.rehearsal.process import twins
from zerokit.rehearsal.process.phases import Context
from zerokit.timing.operators import TRITON

_TORCHVISION = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)


def _triton_run(context: Context, name: Callable[[Any], str]) -> Callable[..., None]:
    """A kernel writes into tensors that its caller made: nothing is timed, and it does nothing."""

    def run(self: Any, *args: Any, **kwargs: Any) -> None:
        twins.forget((args, kwargs))
        context.machine.stub("Triton kernels")
        tensors = [value for value in (*args, *kwargs.values()) if isinstance(value, torch.Tensor)]
        context.machine.saw_kernel(f"{TRITON}{name(self)}", tensors)

    return run


def triton_functions(context: Context, module: ModuleType) -> None:
    """Functions that Triton would compile."""
    module.JITFunction.run = _triton_run(context, lambda kernel: getattr(kernel, "__name__", "kernel"))


def triton_autotuner(context: Context, module: ModuleType) -> None:
    """Functions with several configurations."""
    module.Autotuner.run = module.Heuristics.run = _triton_run(context, lambda kernel: type(kernel).__name__)


def torchvision(context: Context, module: ModuleType) -> None:
    """An extension built for another PyTorch: its operators need a schema, or the import fails."""
    if module._has_ops():
        return
    library = torch.library.Library("torchvision", "FRAGMENT")
    vars(module)["_zerokit_library"] = library  # kept: its end takes the definitions back
    for schema in _TORCHVISION:
        library.define(schema)
    context.machine.stub("torchvision's operators")


class SilentLibrary:
    """Every function returns at once. One that is given arguments is a kernel, and was stood in for; without
    them it is a question (``has_avx512bf16_cpu``), which an import asks."""

    compiled_with_cuda = True

    def __init__(self, called: Callable[[], None]) -> None:
        self._called = called

    def __getattr__(self, name: str) -> Callable[..., int]:
        def function(*args: Any, **kwargs: Any) -> int:
            if args or kwargs:
                self._called()
            return 0

        return function

    def __getitem__(self, name: str) -> Any:
        return getattr(self, name)


def native_library(context: Context, module: ModuleType) -> None:
    """In place of ``libbitsandbytes_cuda*.so``."""
    vars(module)["lib"] = SilentLibrary(functools.partial(context.machine.stub, "bitsandbytes' kernels"))


def managed_memory(context: Context, module: ModuleType) -> None:
    """``get_paged`` wraps what ``cudaMallocManaged`` gives in a tensor that PyTorch takes for the host's
    (functional.py:91, 0.50): the memory is made up, its size is counted."""

    def get_paged(*shape: int, dtype: torch.dtype = torch.float32, device: Any = None) -> Any:
        tensor: Any = context.machine.managed(shape, dtype)
        tensor.is_paged, tensor.page_deviceid = True, getattr(device, "index", None) or 0
        return tensor

    vars(module)["get_paged"] = get_paged
