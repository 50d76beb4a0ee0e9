"""bitsandbytes: its native library is silent; its own Python, which makes every output, runs as it is."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

from zerokit.rehearsal.process.context import Context


class SilentLibrary:
    """Every function returns at once."""

    compiled_with_cuda = True

    def __getattr__(self, name: str) -> Callable[..., int]:
        return lambda *args, **kwargs: 0

    def __getitem__(self, name: str) -> Any:
        return getattr(self, name)


def native_library(context: Context, module: ModuleType) -> None:
    """In place of ``libbitsandbytes_cuda*.so``."""
    vars(module)["lib"] = SilentLibrary()
    context.machine.stub("bitsandbytes' kernels")
