"""Linear layers in 8 bits as bitsandbytes runs them (LLM.int8, arXiv 2208.07339): for inference, and frozen
under adapters.

Read from bitsandbytes 0.50.2: ``MatMul8bitLt`` (autograd/_functions.py:101), whose node in the graph holds
its input apart from what autograd saves, so that checkpointing does not let go of it, and whose backward
makes the whole weight again in 16 bits;
``int8_vectorwise_quant``, ``int8_linear_matmul`` and ``int8_mm_dequant`` (backends/cuda/ops.py:213, 78, 171).
Transformers quantises every linear layer but the output embedding. Columns with outliers are taken again in
16 bits; how many there are depends on the weights, and they are few: they are left out.
"""

from __future__ import annotations

from types import MethodType
from typing import Any

import torch
from torch import nn

from zerokit.trace.building.nf4 import quantisable


def _forward(layer: nn.Module, tensor: torch.Tensor) -> torch.Tensor:
    flat = tensor.reshape(-1, tensor.shape[-1])
    # the input in 8 bits, and its scales
    half = flat.to(torch.float16)
    scales = flat.new_empty(flat.shape[0], dtype=torch.float32)
    rows = flat.new_empty(flat.shape, dtype=torch.int8)
    outliers = half.abs() >= 6.0
    del outliers
    quantised = [rows, scales]
    product = flat.new_empty((flat.shape[0], layer.int8_rows), dtype=torch.int32)
    output = torch.empty_like(product, dtype=torch.float16)  # the kernel knows no bfloat16
    if layer.bias is not None and layer.bias.dtype != torch.float16:
        output.add_(layer.bias)
    output = output.to(tensor.dtype)
    del product, quantised
    return output.reshape(*tensor.shape[:-1], layer.int8_rows)


class _Matmul(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Any, layer: Any) -> Any:
        flat = tensor.reshape(-1, tensor.shape[-1])
        ctx.tensors, ctx.layer, ctx.shape = flat, layer, tensor.shape
        return _forward(layer, tensor)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        flat = grad.reshape(-1, grad.shape[-1]).contiguous()
        scales = flat.new_empty(ctx.layer.weight.shape[0], 1, dtype=torch.float32)
        weight = flat.new_empty(ctx.layer.weight.shape)
        del scales
        return torch.matmul(flat, weight).view(ctx.shape), None


def _train(layer: nn.Module, tensor: torch.Tensor) -> Any:
    return _Matmul.apply(tensor, layer)


def quantise(model: nn.Module, phase: str = "prefill") -> dict[str, int]:
    """Put the linear layers of a model, with its adapters if it has any, in 8 bits; in place, meta tensors.

    ``phase``: ``train`` (under adapters), or of inference ``prefill`` or ``decode``.

    Returns:
        Parameter name -> bytes that it and its scales take.
    """
    sizes: dict[str, int] = {}
    for name, layer, (rows, columns) in quantisable(model):
        packed = torch.empty(rows, columns, dtype=torch.int8, device=layer.weight.device)
        layer.weight = nn.Parameter(packed, requires_grad=False)
        layer.int8_rows = rows
        layer.forward = MethodType(_train if phase == "train" else _forward, layer)
        sizes[f"{name}.weight"] = packed.numel() + 4 * rows  # ``SCB``: an fp32 scale a row
    return sizes
