"""Activations that go to the host in forward and come back in backward, as TRL does it.

``OffloadActivations`` with its defaults (trl/models/activation_offloading.py, 1.16: pinned memory, a stream
of its own, tensors of 1 KiB and more, the latest five kept until their copies are done), around forward and
backward of a step, the output head left out. A storage that a kept tensor has is not copied again.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks

from zerokit.trace.building.build import KEPT_ON_THE_WAY
from zerokit.trace.recording.storage import StorageTracker, TraceEvent

_SMALLEST_BYTES = 1024


class _Offloaded:
    """A tensor on the host."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.shape, self.stride, self.dtype = tensor.shape, tensor.stride(), tensor.dtype

    def back(self) -> torch.Tensor:
        return torch.empty_strided(self.shape, self.stride, dtype=self.dtype)


class Offloading(saved_tensors_hooks):
    """The hooks of one step. The size of every copy goes into the tracker's events as ``host``."""

    def __init__(self, model: nn.Module, tracker: StorageTracker) -> None:
        self.tracker = tracker
        self.weights = {p.untyped_storage()._cdata for p in model.parameters()}
        self.count = 0
        self.kept: dict[int, torch.Tensor] = {}
        self.keys: dict[tuple[int, int, torch.dtype], int] = {}
        self.fetched: dict[int, torch.Tensor] = {}
        self.node: Any = None
        super().__init__(self._pack, self._unpack)

    def _pack(self, tensor: torch.Tensor) -> Any:
        self.count += 1
        number, key = self.count, (tensor.untyped_storage()._cdata, tensor.storage_offset(), tensor.dtype)
        if key in self.keys:
            self.keys[key] = number
            return number, tensor
        small = tensor.numel() * tensor.element_size() < _SMALLEST_BYTES
        if small or key[0] in self.weights:
            return number, tensor
        if 0 not in tensor.stride() and not (tensor.is_contiguous() and tensor.storage_offset() == 0):
            tensor = tensor.clone(memory_format=torch.contiguous_format)
        for old in [n for n in self.kept if n <= number - KEPT_ON_THE_WAY]:
            self._release(old)
        expanded = 0 in tensor.stride()
        size = tensor.untyped_storage().nbytes() if expanded else tensor.numel() * tensor.element_size()
        self.tracker.events.append(TraceEvent("host", number, size))
        self.kept[number] = tensor
        self.keys[key] = number
        return number, _Offloaded(tensor)

    def _release(self, number: int) -> None:
        del self.kept[number]
        for key in [key for key, value in self.keys.items() if value == number]:
            del self.keys[key]

    def _unpack(self, packed: Any) -> torch.Tensor:
        number, tensor = packed
        node = torch._C._current_autograd_node()
        before: list[int] = []
        if node != self.node:
            self.node, before = node, list(self.fetched)
        if isinstance(tensor, _Offloaded):
            tensor = self.kept[number] if number in self.kept else tensor.back()
            if number not in self.kept:
                self.fetched[number] = tensor

        def done(outputs: Any, _inputs: Any) -> Any:
            for old in list(self.kept):
                self._release(old)
            for old in before:
                self.fetched.pop(old, None)
            return outputs

        node.register_hook(done)
        return tensor


@contextmanager
def offloading(model: nn.Module, tracker: StorageTracker, wanted: bool) -> Iterator[None]:
    """Around forward and backward of a step; ``wanted``: else nothing is changed."""
    if not wanted:
        yield
        return
    head = model.get_output_embeddings()
    apart = saved_tensors_hooks(lambda tensor: tensor, lambda tensor: tensor)
    hooks = [] if head is None else [
        head.register_forward_pre_hook(lambda *_: apart.__enter__()),
        head.register_forward_hook(lambda *_: apart.__exit__(), always_call=True),
    ]  # fmt: skip
    try:
        moved = Offloading(model, tracker)
        with moved:
            yield
        moved.kept.clear()
        moved.fetched.clear()
    finally:
        for hook in hooks:
            hook.remove()


def on_host(events: list[TraceEvent]) -> tuple[list[TraceEvent], list[TraceEvent]]:
    """A trace without the copies on the host; and one of them alone, with a mark after each, which is named
    for the module that it was made in."""
    on_gpu = [event for event in events if event.kind != "host"]
    copies: list[TraceEvent] = []
    name: Any = ""
    forward = True
    for event in events:
        if event.kind == "phase":
            forward = event.key == "forward"
            copies.append(event)
        elif event.kind == "host" and forward:
            copies += [TraceEvent("alloc", event.key, event.size_bytes), TraceEvent("host", name)]
        elif event.kind in ("fwd_pre", "fwd_post") and forward:
            name = event.key
            copies.append(event)
    return on_gpu, copies
