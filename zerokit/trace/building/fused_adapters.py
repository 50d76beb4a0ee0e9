"""Adapters in axolotl's fused functions, which keep less than peft's layers: one for gate, up and down of an
MLP with its activation, one for queries, keys and values, one for the output projection.

Read from axolotl 0.19 (kernels/lora.py ``LoRA_MLP``, ``LoRA_QKV``, ``LoRA_O``; kernels/quantize.py;
monkeypatch/lora_kernels.py ``apply_lora_kernel_patches``): each saves its input, what dropout leaves of it
and casts of its adapters; that of the MLP the outputs of gate and up too, which its backward writes over.
Products of adapters are added in place, and a quantised weight is made whole for one product at a time.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from types import MethodType
from typing import Any

import torch
from torch import nn

from zerokit.trace.building import vision_tower
from zerokit.trace.building.nf4 import BLOCK

_PART = re.compile(r"layers\.\d+\.(self_attn|mlp)$")


def _matrices(module: Any) -> tuple[Any, Any]:
    (name,) = module.active_adapters
    return module.lora_A[name].weight, module.lora_B[name].weight


def _left(module: Any, tensor: torch.Tensor) -> torch.Tensor | None:
    """What dropout leaves of an input; None: nothing is dropped."""
    (name,) = module.active_adapters
    dropout = module.lora_dropout[name]
    return None if isinstance(dropout, nn.Identity) else dropout(tensor)


def _whole(module: Any, like: torch.Tensor) -> torch.Tensor:
    """The weight, made whole where it is quantised."""
    layer = module.base_layer
    shape = getattr(layer, "nf4_shape", None)
    if shape is None:
        return layer.weight
    weight = like.new_empty(shape)
    like.new_empty(-(-shape[0] * shape[1] // BLOCK), dtype=torch.float32)  # block constants
    return weight


def _product(tensor: torch.Tensor, left: torch.Tensor | None, module: Any) -> torch.Tensor:
    rows = tensor.reshape(-1, tensor.shape[-1])
    read = rows if left is None else left.reshape(rows.shape)
    weight = _whole(module, rows)
    output = torch.matmul(rows, weight.t())
    del weight
    a, b = (matrix.t().to(tensor.dtype) for matrix in _matrices(module))
    output.addmm_(read @ a, b)
    if module.base_layer.bias is not None:
        output += module.base_layer.bias
    return output.view(*tensor.shape[:-1], -1)


def _gradients(read: torch.Tensor, grad: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> list[Any]:
    """Gradients of the adapters' matrices, and of what lies between these."""
    between = grad @ b
    grad_a, grad_b = torch.empty_like(a.t()), torch.empty_like(b.t())
    grad_a.addmm_(read.t(), between)
    grad_b.addmm_(a @ read.t(), grad)
    return [grad_a.t(), grad_b.t(), between]


class _Function(torch.autograd.Function):
    """Beginning and end of each: autocast in backward is that of forward (``torch.amp.custom_bwd``)."""

    @staticmethod
    def keep(ctx: Any, modules: Sequence[Any], tensor: torch.Tensor, left: Any, *more: Any) -> None:
        """Save the input, what dropout leaves of it, and the adapters in the input's dtype."""
        matrices = [matrix.to(tensor.dtype) for module in modules for matrix in _matrices(module)]
        ctx.modules, ctx.drops = modules, left is not None
        ctx.autocast = torch.is_autocast_enabled("cpu")
        ctx.save_for_backward(tensor, left if ctx.drops else tensor, *more, *matrices)

    @classmethod
    def backward(cls, ctx: Any, *grads: Any) -> Any:
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=ctx.autocast):
            return cls.back(ctx, *grads)

    @staticmethod
    def back(ctx: Any, *grads: Any) -> Any:
        raise NotImplementedError


def _inputs(
    ctx: Any, shape: torch.Size, read: torch.Tensor, parts: Sequence[tuple[Any, Any, Any, Any]]
) -> tuple[Any, Any]:
    """Gradients of the input and of what dropout leaves of it. ``parts``: module, gradient of its output, of
    what is between its adapters' matrices, and the first of these."""
    grad_input: Any = None
    for module, grad, _, _ in parts:
        weight = _whole(module, grad)
        grad_input = torch.mm(grad, weight) if grad_input is None else grad_input.addmm_(grad, weight)
        del weight
    grad_left = torch.zeros_like(read) if ctx.drops else None
    for _, _, between, a in parts:
        (grad_input if grad_left is None else grad_left).addmm_(between, a)
    return grad_input.view(shape), None if grad_left is None else grad_left.view(shape)


class _Projections(_Function):
    @staticmethod
    def forward(ctx: Any, modules: Any, tensor: Any, left: Any, *matrices: Any) -> Any:
        outputs = tuple(_product(tensor, left, module) for module in modules)
        _Function.keep(ctx, modules, tensor, left)
        return outputs

    @staticmethod
    def back(ctx: Any, *grads: Any) -> Any:
        tensor, left, *matrices = ctx.saved_tensors
        grads = tuple(grad.reshape(-1, grad.shape[-1]) for grad in grads)
        read = left.view(-1, left.shape[-1])
        found = [_gradients(read, grad, *matrices[2 * i : 2 * i + 2]) for i, grad in enumerate(grads)]
        betweens = [one.pop() for one in found]
        parts = list(zip(ctx.modules, grads, betweens, matrices[::2], strict=True))
        return None, *_inputs(ctx, tensor.shape, read, parts), *(matrix for one in found for matrix in one)


class _Output(_Function):
    @staticmethod
    def forward(ctx: Any, modules: Any, tensor: Any, left: Any, *matrices: Any) -> Any:
        output = _product(tensor, left, modules[0])
        _Function.keep(ctx, modules, tensor, left)
        return output

    @staticmethod
    def back(ctx: Any, *grads: Any) -> Any:
        tensor, left, a, b = ctx.saved_tensors
        grad = grads[0].reshape(-1, grads[0].shape[-1])
        *found, between = _gradients(left.reshape(-1, left.shape[-1]), grad, a, b)
        weight = _whole(ctx.modules[0], grad)
        grad_input = grad @ weight
        del weight
        grad_left = None
        if ctx.drops:
            grad_left = (between @ a * 1.0).view(tensor.shape)
        else:
            grad_input.addmm_(between, a)
        return None, grad_input.view(tensor.shape), grad_left, *found


class _Mlp(_Function):
    @staticmethod
    def forward(ctx: Any, modules: Any, tensor: Any, left: Any, *matrices: Any) -> Any:
        gate, up = _product(tensor, left, modules[0]), _product(tensor, left, modules[1])
        hidden = torch.empty_like(gate)
        output = _product(hidden, None, modules[2])
        _Function.keep(ctx, modules, tensor, left, gate, up)
        return output

    @staticmethod
    def back(ctx: Any, *grads: Any) -> Any:
        tensor, left, gate, up, gate_a, gate_b, up_a, up_b, down_a, down_b = ctx.saved_tensors
        grad = grads[0].view(-1, grads[0].shape[-1])
        read = left.view(-1, left.shape[-1])
        weight = _whole(ctx.modules[2], grad)
        hidden = torch.matmul(grad, weight)
        del weight
        hidden.addmm_(grad @ down_b, down_a)
        # the kernel of the activation writes over its inputs: output, and gradients of gate and up
        grad_gate, grad_up = gate.view(hidden.shape), up.view(hidden.shape)
        of_down = _gradients(hidden, grad, down_a, down_b)
        of_up = _gradients(read, grad_up, up_a, up_b)
        of_gate = _gradients(read, grad_gate, gate_a, gate_b)
        parts = [
            (ctx.modules[1], grad_up, of_up[2], up_a),
            (ctx.modules[0], grad_gate, of_gate[2], gate_a),
        ]
        inputs = _inputs(ctx, tensor.shape, read, parts)
        return None, *inputs, *of_gate[:2], *of_up[:2], *of_down[:2]


def _apply(function: Any, modules: Sequence[Any], tensor: torch.Tensor) -> Any:
    left = _left(modules[0], tensor)
    matrices = (matrix for module in modules for matrix in _matrices(module))
    return function.apply(modules, tensor, left, *matrices)


def _adapted(part: nn.Module, *names: str) -> list[Any]:
    """The modules of these names where all of them have adapters."""
    modules = [getattr(part, name, None) for name in names]
    return modules if all(hasattr(module, "lora_A") for module in modules) else []


def _fuse_attention(attention: nn.Module) -> None:
    beside: list[torch.Tensor] = []
    if modules := _adapted(attention, "q_proj", "k_proj", "v_proj"):

        def first(tensor: torch.Tensor) -> Any:
            query, *beside[:] = _apply(_Projections, modules, tensor)
            return query

        vars(attention)["q_proj"] = first  # before the module of that name, whose forward is not run
        vars(attention)["k_proj"] = vars(attention)["v_proj"] = lambda _: beside.pop(0)
    if output := _adapted(attention, "o_proj"):
        vars(attention)["o_proj"] = lambda tensor: _apply(_Output, output, tensor)


def fuse(model: nn.Module) -> None:
    """Run the adapters of every layer's attention and MLP in fused functions, where all modules of one have
    adapters; in place."""
    for name, part in model.named_modules():
        if vision_tower.is_inside(name) or not _PART.search(name):
            continue
        if modules := _adapted(part, "gate_proj", "up_proj", "down_proj"):
            part.forward = MethodType(lambda _, tensor, of=modules: _apply(_Mlp, of, tensor), part)
        elif all(hasattr(part, f"{one}_proj") for one in "qkvo"):
            _fuse_attention(part)
