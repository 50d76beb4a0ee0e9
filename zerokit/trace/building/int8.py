"""Linear layers in 8 bits as bitsandbytes runs them for inference (LLM.int8, arXiv 2208.07339).

Read from bitsandbytes 0.50.2: ``MatMul8bitLt.forward`` (autograd/_functions.py:101),
``int8_vectorwise_quant``, ``int8_linear_matmul`` and ``int8_mm_dequant`` (backends/cuda/ops.py:213, 78, 171).
Transformers quantises every linear layer but the output embedding. Columns with outliers are taken again in
16 bits; how many there are depends on the weights, and they are few: they are left out.
"""

from __future__ import annotations

from types import MethodType

import torch
from torch import nn

from zerokit.trace.building.nf4 import quantisable


def scales_bytes(rows: int) -> int:
    """``SCB``: an fp32 scale a row."""
    return 4 * rows


def _quantised(tensor: torch.Tensor) -> list[torch.Tensor]:
    """The input in 8 bits, and its scales."""
    half = tensor.to(torch.float16)
    scales = tensor.new_empty(tensor.shape[0], dtype=torch.float32)
    rows = tensor.new_empty(tensor.shape, dtype=torch.int8)
    outliers = half.abs() >= 6.0
    del outliers
    return [rows, scales]


def _forward(layer: nn.Module, tensor: torch.Tensor) -> torch.Tensor:
    flat = tensor.reshape(-1, tensor.shape[-1])
    quantised = _quantised(flat)
    product = flat.new_empty((flat.shape[0], layer.int8_rows), dtype=torch.int32)
    output = torch.empty_like(product, dtype=torch.float16)  # the kernel knows no bfloat16
    if layer.bias is not None and layer.bias.dtype != torch.float16:
        output.add_(layer.bias)
    output = output.to(tensor.dtype)
    del product, quantised
    return output.reshape(*tensor.shape[:-1], layer.int8_rows)


def quantise(model: nn.Module) -> dict[str, int]:
    """Put the linear layers of a model in 8 bits; in place, meta tensors.

    Returns:
        Parameter name -> bytes that it and its scales take.
    """
    sizes: dict[str, int] = {}
    for name, layer, (rows, columns) in quantisable(model):
        packed = torch.empty(rows, columns, dtype=torch.int8, device=layer.weight.device)
        layer.weight = nn.Parameter(packed, requires_grad=False)
        layer.int8_rows = rows
        layer.forward = MethodType(_forward, layer)
        sizes[f"{name}.weight"] = packed.numel() + scales_bytes(rows)
    return sizes
