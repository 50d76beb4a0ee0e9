"""zerokit: plan, launch and measure DeepSpeed training before the GPU hours are spent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

__all__ = ["__version__", "compare", "phase", "selective_checkpointing", "snapshot"]

if TYPE_CHECKING:
    from zerokit.api import compare, phase, snapshot

    selective_checkpointing: Any


def __getattr__(name: str) -> Any:
    # the command line must not pay for what only a training script uses
    if name == "selective_checkpointing":  # by name: what lies below this package must not see torch's part
        from importlib import import_module

        return import_module("zerokit.trace.selective").selective_checkpointing
    if name in ("compare", "phase", "snapshot"):
        from zerokit import api

        return getattr(api, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
