"""Additions that PyTorch does in place unless a tensor is a subclass, which fake tensors look like.

``isTensorSubclassLike`` (``aten/src/ATen/TensorSubclassLikeUtils.h``) guards them. In place or not decides
which block is free afterwards, and so what is reserved.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from zerokit.rehearsal.process.machine import Machine

_ENGINE_FRAMES = ("torch/_dynamo/eval_frame.py", "torch/_compile.py")


class _Attention(threading.local):
    """Whether this thread is inside of attention as matmuls and softmax."""

    is_math = False


_attention = _Attention()


@contextmanager
def math_attention() -> Iterator[None]:
    """Inside, the scores take their mask in place (``_scaled_dot_product_attention_math`` in
    ``aten/src/ATen/native/transformers/attention.cpp``)."""
    _attention.is_math = True
    try:
        yield
    finally:
        _attention.is_math = False


def answer(machine: Machine, types: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The result of ``aten::add`` of two fake tensors if a GPU adds in place; None: it does not."""
    if _attention.is_math:
        # not the same object: autograd makes it a result of its own, which replaces the scores
        return machine.shapes.dispatch(torch.ops.aten.alias.default, types, args[:1])
    if _is_sole_holder(args) and _from_engine():
        return machine.shapes.dispatch(torch.ops.aten.add_.Tensor, types, args, kwargs)
    return None


def _is_sole_holder(args: tuple[Any, ...]) -> bool:
    """Autograd accumulates gradients in place where nobody else holds the buffer
    (``torch/csrc/autograd/input_buffer.cpp``, accumulate)."""
    left, right = args[:2]
    return (
        isinstance(left, FakeTensor)
        and left.shape == right.shape
        and left.dtype == right.dtype
        and left._use_count() <= 4
        and torch._C._storage_Use_Count(left.untyped_storage()._cdata) <= 2
    )


def _from_engine() -> bool:
    """Whether autograd's C++ asked, with no line of Python in between."""
    frame = sys._getframe(3).f_back  # the caller of __torch_dispatch__
    while frame is not None and frame.f_code.co_filename.endswith(_ENGINE_FRAMES):
        frame = frame.f_back
    return frame is None
