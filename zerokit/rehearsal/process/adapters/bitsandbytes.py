"""bitsandbytes: its native library is silent; its own Python, which makes every output, runs as it is."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch

from zerokit.rehearsal.process.context import Context
from zerokit.rehearsal.process.machine import StoodIn


class SilentLibrary:
    """Every function returns at once. One that is given arguments is a kernel, and was stood in for; without
    them it is a question (``has_avx512bf16_cpu``), which an import asks."""

    compiled_with_cuda = True

    def __init__(self, kernels: StoodIn) -> None:
        self._kernels = kernels

    def __getattr__(self, name: str) -> Callable[..., int]:
        def function(*args: Any, **kwargs: Any) -> int:
            if args or kwargs:
                self._kernels.called()
            return 0

        return function

    def __getitem__(self, name: str) -> Any:
        return getattr(self, name)


def native_library(context: Context, module: ModuleType) -> None:
    """In place of ``libbitsandbytes_cuda*.so``."""
    vars(module)["lib"] = SilentLibrary(context.machine.stand_in("bitsandbytes", "bitsandbytes' kernels"))


def managed_memory(context: Context, module: ModuleType) -> None:
    """``get_paged`` wraps what ``cudaMallocManaged`` gives in a tensor that PyTorch takes for the host's
    (functional.py:91, 0.50): the memory is made up, its size is counted."""

    def get_paged(*shape: int, dtype: torch.dtype = torch.float32, device: Any = None) -> Any:
        tensor: Any = context.machine.managed(shape, dtype)
        tensor.is_paged, tensor.page_deviceid = True, getattr(device, "index", None) or 0
        return tensor

    vars(module)["get_paged"] = get_paged
