"""Linear layers as ZeRO-3 runs them: ``zero.Init`` replaces ``torch.nn.functional.linear``.

``LinearFunctionForZeroStage3`` (``deepspeed/runtime/zero/linear.py``, 0.19.8; ``memory_efficient_linear``,
on by default) saves its input whether or not the weight is trained, where PyTorch's own keeps the input of
a frozen layer only if somebody else needs it. So under LoRA stage 3 keeps more activations than stage 2.
Under autocast it saves them as they come, and casts of its weights, which are views, are not kept.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, input: Any, weight: Any, bias: Any = None) -> Any:
        ctx.autocast = torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")
        ctx.save_for_backward(input, weight, bias)
        if input.dim() == 2 and bias is not None:
            return torch.addmm(bias, input, weight.t())
        output = input.matmul(weight.t())
        if bias is not None:
            output += bias
        return output

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        enabled, dtype = ctx.autocast
        with torch.autocast("cpu", enabled=enabled, dtype=dtype):
            input, weight, bias = ctx.saved_tensors
            grad_input = grad.matmul(weight) if ctx.needs_input_grad[0] else None
            grad_weight = grad_bias = None
            if ctx.needs_input_grad[1]:
                rows = grad.reshape(-1, grad.shape[-1])
                grad_weight = rows.t().matmul(input.reshape(-1, input.shape[-1]))
            if bias is not None and ctx.needs_input_grad[2]:
                grad_bias = grad.sum(list(range(grad.dim() - 1)))
            return grad_input, grad_weight, grad_bias


def _linear(input: Any, weight: Any, bias: Any = None) -> Any:
    return _Linear.apply(input, weight) if bias is None else _Linear.apply(input, weight, bias)


@contextmanager
def zero3_linear(active: bool = True) -> Iterator[None]:
    """While active, linear layers keep what they keep under ZeRO-3."""
    original = torch.nn.functional.linear
    if active:
        torch.nn.functional.linear = _linear
    try:
        yield
    finally:
        torch.nn.functional.linear = original
