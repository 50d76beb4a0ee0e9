"""Saving writes nothing: tensors have no values. What would have been written is counted."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch

from zerokit.rehearsal.process import sandbox
from zerokit.rehearsal.process.context import Context


def safetensors(context: Context, module: ModuleType) -> None:
    """``save_file`` counts, and leaves a file without tensors."""
    save_file = module.save_file

    def save(tensors: Any, filename: Any, metadata: Any = None) -> None:
        _count(context, tensors)
        sandbox.about_to_write(filename)
        save_file({}, filename, metadata)

    vars(module)["save_file"] = save


def torch_save(context: Context) -> None:
    """``torch.save`` counts."""

    def save(obj: Any, f: Any, *args: Any, **kwargs: Any) -> None:
        _count(context, obj)

    torch.save = save


def _count(context: Context, value: Any) -> None:
    """Bytes of all tensors inside of a value."""
    with context.phases.inside("save"):
        seen: set[int] = set()
        context.machine.written_bytes += _bytes(value, seen)
    context.machine.stub("writing of weights and checkpoints")


def _bytes(value: Any, seen: set[int]) -> int:
    if isinstance(value, torch.Tensor):
        storage = value.untyped_storage()
        if storage._cdata in seen:
            return 0
        seen.add(storage._cdata)
        return int(storage.nbytes())
    if isinstance(value, dict):
        return sum(_bytes(each, seen) for each in value.values())
    if isinstance(value, list | tuple):
        return sum(_bytes(each, seen) for each in value)
    return 0
