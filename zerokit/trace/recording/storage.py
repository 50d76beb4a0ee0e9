"""Count live tensor storage, instant by instant, without a GPU.

A real model's forward and backward run under ``FakeTensorMode``: every operator
is dispatched with shapes and dtypes only. :class:`StorageTracker` sees each new
storage and its death, and writes both, with marks for module and gradient
events, into one list: the trace.
"""

from __future__ import annotations

import math
import sys
import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from zerokit.trace.building.planned_parts import local
from zerokit.trace.recording.shapes import fake_mode, is_elsewhere


@dataclass(frozen=True, slots=True)
class TraceEvent:
    """One instant of a trace.

    ``kind`` is ``alloc`` or ``free`` (``key`` a storage number, ``size_bytes`` unrounded), ``held`` (a
    storage from before the trace that it may free: what the trace counts is what is above those), or a
    mark: ``fwd_pre``, ``fwd_post``, ``bwd_pre``, ``bwd_post`` (``key`` a module name), ``grad``
    (``key`` a parameter name), ``phase`` (``key`` the phase that begins); or ``sum``: of ``size_bytes`` rows
    of a dense matrix (``key``: its columns, and bytes of a value).
    """

    kind: str
    key: int | str
    size_bytes: int = 0


_ADD = torch.ops.aten.add.Tensor
_ATEN = torch.ops.aten
IN_PLACE = {
    _ATEN.scatter_add.default: _ATEN.scatter_add_.default,  # gather
    _ATEN.scatter.src: _ATEN.scatter_.src,  # the largest along a dimension
    _ATEN._index_put_impl.default: _ATEN._index_put_impl_.default,  # indices
    _ATEN.put.default: _ATEN.put_.default,  # take
    _ATEN.masked_scatter.default: _ATEN.masked_scatter_.default,  # masked_select
}
"""What derivatives do in place, into zeros that they made, unless a tensor is of a subclass, as fake ones are
(``gather_backward`` in ``aten/src/ATen/native/TensorAdvancedIndexing.cpp``; ``FunctionsManual.cpp``)."""
_WRAPPERS = ("torch/_dynamo/eval_frame.py", "torch/_compile.py")


def is_sole_holder(left: Any, right: Any) -> bool:
    """Whether autograd, which adds one fake tensor to another, would add in place on a GPU: nobody else holds
    the buffer (``torch/csrc/autograd/input_buffer.cpp``, ``can_accumulate_inplace``, 2.13)."""
    return (
        isinstance(left, FakeTensor)
        and left.shape == right.shape
        and left.dtype == right.dtype
        and left._use_count() <= 4
        and torch._C._storage_Use_Count(left.untyped_storage()._cdata) <= 2
    )


def caller_of_dispatch(frame: FrameType | None) -> str:
    """The file of the Python code whose operator is dispatched; empty: autograd's own thread. ``frame``: the
    caller of ``__torch_dispatch__``."""
    while frame is not None and frame.f_code.co_filename.endswith(_WRAPPERS):
        frame = frame.f_back
    return "" if frame is None else frame.f_code.co_filename


def _by_autograd() -> bool:
    return caller_of_dispatch(sys._getframe(2)).endswith("torch/autograd/graph.py")


class StorageTracker(TorchDispatchMode):
    """Record allocation and death of every storage made while active, but for those ``skipped``.

    Storages that exist before (parameters, buffers) are left out by :meth:`ignore`. ``adds_in_place``: what
    autograd adds up is added in place where it would be of tensors that are no fake ones.
    """

    def __init__(self) -> None:
        super().__init__()
        self.events: list[TraceEvent] = []
        self._live: dict[int, int] = {}  # address of the StorageImpl -> storage number
        self._count = 0
        self.adds_in_place = False
        self.skipped: Callable[[torch.Tensor], bool] = lambda tensor: False

    def __enter__(self) -> StorageTracker:
        """Know what answers its operators."""
        self._fake = fake_mode()
        super().__enter__()
        return self

    def ignore(self, tensors: Iterable[torch.Tensor]) -> None:
        """Leave these tensors' storages out of the trace."""
        for tensor in tensors:
            self._live[local(tensor).untyped_storage()._cdata] = -1

    def count(self, tensors: Iterable[torch.Tensor]) -> None:
        """Take these tensors' storages into the trace, from this instant."""
        for tensor in tensors:
            self._track(tensor)

    def hold(self, tensors: Iterable[torch.Tensor]) -> None:
        """Know these tensors' storages, so that their deaths are written, without counting them."""
        for tensor in tensors:
            self._track(tensor, "held")

    def numbers(self, tensors: Iterable[torch.Tensor]) -> frozenset[int]:
        """The storage numbers under which these tensors are in the trace."""
        storages = (self._live.get(tensor.untyped_storage()._cdata, -1) for tensor in tensors)
        return frozenset(number for number in storages if number >= 0)

    def mark(self, kind: str, key: str) -> None:
        """Write a mark at this instant."""
        self.events.append(TraceEvent(kind, key))

    def _track(self, tensor: torch.Tensor, kind: str = "alloc") -> None:
        storage = tensor.untyped_storage()
        address = storage._cdata
        if address in self._live:
            return
        number = self._count
        self._count += 1
        size = storage.nbytes()
        self._live[address] = number
        self.events.append(TraceEvent(kind, number, size))
        weakref.finalize(storage, self._died, address, number, size)

    def _died(self, address: int, number: int, size: int) -> None:
        if self._live.get(address) == number:
            del self._live[address]
        self.events.append(TraceEvent("free", number, size))

    def __torch_dispatch__(  # type: ignore[no-untyped-def]
        self, func, types, args=(), kwargs=None
    ):
        if is_elsewhere(types):
            return NotImplemented
        if fake_mode() is not self._fake:  # DTensor asks for the shape of a whole result
            return func(*args, **kwargs or {})
        if self.adds_in_place and func is _ADD and _by_autograd() and is_sole_holder(*args[:2]):
            func = torch.ops.aten.add_.Tensor
        elif func in IN_PLACE and _by_autograd():
            func = IN_PLACE[func]
        result = func(*args, **kwargs) if kwargs else func(*args)
        if isinstance(result, torch.device):  # what most calls ask for
            return result
        for leaf in tree_iter(result):
            if isinstance(leaf, torch.Tensor) and not self.skipped(leaf):
                self._track(leaf)
        if func is torch.ops.aten.sum.dim_IntList:
            self._note_sum(args[0], args[1])
        return result

    def _note_sum(self, tensor: torch.Tensor, dimensions: Sequence[int] | None) -> None:
        """Write a sum over the first dimensions of a dense tensor of floats: over the rows of a matrix."""
        summed = sorted(dimension % max(1, tensor.dim()) for dimension in dimensions or ())
        rows = math.prod(tensor.shape[: len(summed)])
        if summed != list(range(len(summed))) or not tensor.is_floating_point():
            return
        if tensor.is_contiguous() and 1 < rows < tensor.numel():
            columns = tensor.numel() // rows
            self.events.append(TraceEvent("sum", f"{columns} {tensor.element_size()}", rows))
