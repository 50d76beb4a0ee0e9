"""Additions and scattering that PyTorch does in place unless a tensor is a subclass, as fake ones look.

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

from zerokit.rehearsal.process.machine import Machine
from zerokit.trace.recording.storage import IN_PLACE, caller_of_dispatch, is_sole_holder


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
    if is_sole_holder(*args[:2]) and _from_engine():
        return machine.shapes.dispatch(torch.ops.aten.add_.Tensor, types, args, kwargs)
    return None


def derivative(func: Any) -> Any:
    """What autograd's C++ would do on a GPU where it asks for ``func``."""
    return IN_PLACE[func] if func in IN_PLACE and _from_engine() else func


def _from_engine() -> bool:
    """Whether autograd's C++ asked, with no line of Python in between."""
    return not caller_of_dispatch(sys._getframe(3).f_back)
