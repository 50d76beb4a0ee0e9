"""Whether what a script saved holds its model's weights: under ZeRO-3 a rank has only a part of each."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from zerokit.instrument.phases import in_place_of

_MOST_FILES = 16
_DEEPEST = 3
_TAIL = 3  # parts of a name by which a saved tensor is known, whatever wrapped the model
_FEWEST_ELEMENTS = 0.5  # of the model's: tied weights and buffers that are left out are less


class SavedWeights:
    """Counts the tensors that ``torch.save`` and safetensors are given, by their sizes alone.

    What DeepSpeed's own checkpoints hold is not looked at: their weights are in other files.
    """

    def __init__(self, engines: Callable[[], list[Any]]) -> None:
        self._engines = engines
        self._inside = threading.local()
        self._bad: dict[str, dict[str, Any]] = {}

    def hooks(self) -> dict[str, Callable[[ModuleType], None]]:
        """By the module after whose import they are put."""
        return {
            "torch": lambda module: self._watch(module, "save", "obj", "f"),
            "safetensors.torch": lambda module: self._watch(module, "save_file", "tensors", "filename"),
            "transformers.modeling_utils": lambda module: self._whole(module.PreTrainedModel),
            "peft.peft_model": lambda module: self._whole(module.PeftModel),
        }

    def hook_engine(self, engine: Any) -> None:
        """What DeepSpeed saves of itself."""
        original = engine.save_checkpoint

        @in_place_of(engine, "save_checkpoint")
        def save_checkpoint(this: Any, *args: Any, **kwargs: Any) -> Any:
            before, self._inside.checkpoint = getattr(self._inside, "checkpoint", False), True
            try:
                return original(this, *args, **kwargs)
            finally:
                self._inside.checkpoint = before

    def account(self) -> list[dict[str, Any]]:
        """Files that are there and lack weights."""
        return [facts for path, facts in list(self._bad.items()) if Path(path).exists()]

    def _watch(self, owner: Any, name: str, content: str, target: str) -> None:
        original = getattr(owner, name)

        @in_place_of(owner, name)
        def save(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            with contextlib.suppress(Exception):
                given = {**dict(zip((content, target), args, strict=False)), **kwargs}
                self._saved(given[content], given[target])
            return result

    def _saved(self, content: Any, target: Any) -> None:
        # sizes of the weights that ZeRO-3 divides, by the end of their name.
        partitioned = {
            _tail(name): parameter.ds_numel
            for engine in self._engines()
            for name, parameter in engine.module.named_parameters()
            if hasattr(parameter, "ds_numel") and hasattr(parameter, "ds_tensor")
        }
        if not partitioned or getattr(self._inside, "checkpoint", False):
            return
        path = os.fspath(target) if isinstance(target, str | os.PathLike) else getattr(target, "name", None)
        if not isinstance(path, str):
            return
        path = os.path.abspath(path)  # noqa: PTH100
        tensors = list(_tensors(content))
        empty = [name for name, size in tensors if size == 0 and partitioned.get(_tail(name))]
        if (call := getattr(self._inside, "call", None)) is not None:
            call.append((path, sum(size for _, size in tensors)))
        self._bad.pop(path, None)
        if empty:
            self._note(path, {"empty": len(empty), "tensors": len(tensors)})

    def _note(self, path: str, facts: dict[str, Any]) -> None:
        if len(self._bad) < _MOST_FILES:
            self._bad[path] = {"path": path, **facts}

    def _whole(self, model: Any) -> None:
        """A call that saves all of a model, or all of its adapters, in as many files as it likes."""
        original = model.save_pretrained

        @in_place_of(model, "save_pretrained")
        def save_pretrained(this: Any, *args: Any, **kwargs: Any) -> Any:
            if getattr(self._inside, "call", None) is not None:
                return original(this, *args, **kwargs)
            files: list[tuple[str, int]] = []
            self._inside.call = files
            try:
                result = original(this, *args, **kwargs)
            finally:
                self._inside.call = None
            with contextlib.suppress(Exception):
                self._held_to_model(this, files)
            return result

    def _held_to_model(self, model: Any, files: list[tuple[str, int]]) -> None:
        has_adapters = hasattr(model, "peft_config")
        sizes = [
            parameter.ds_numel
            for parameter in model.parameters()
            if hasattr(parameter, "ds_numel") and (parameter.requires_grad or not has_adapters)
        ]
        saved, whole = sum(size for _, size in files), sum(sizes)
        if files and not any(path in self._bad for path, _ in files) and saved < _FEWEST_ELEMENTS * whole:
            self._note(files[0][0], {"elements": saved, "of": whole})


def _tail(name: str) -> str:
    parts = [part for part in name.split(".") if part != "default"]  # peft leaves its adapter's name out
    return ".".join(parts[-_TAIL:])


def _tensors(content: Any, depth: int = 0) -> Iterator[tuple[str, int]]:
    """Names and numbers of elements of what is saved: a dictionary, one inside another, or a module."""
    if isinstance(content, sys.modules["torch"].nn.Module):
        content = dict(content.named_parameters())
    if not isinstance(content, Mapping) or depth == _DEEPEST:
        return
    for name, value in content.items():
        if hasattr(value, "numel") and hasattr(value, "dtype"):
            yield str(name), int(value.numel())
        else:
            yield from _tensors(value, depth + 1)
