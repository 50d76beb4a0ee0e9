"""Linear layers in NF4 with double quantisation, as bitsandbytes runs them under QLoRA.

Read from bitsandbytes 0.50.2: ``MatMul4Bit`` (autograd/_functions.py:300) keeps the packed weight alone;
``_dequant_linear_fallback`` (backends/cuda/ops.py:904), the path of more than 1,536 tokens, makes the
block constants and the whole weight again in 16 bits for each forward, ``F.dequantize_4bit``
(functional.py:992) for each backward. Transformers quantises every linear layer but the output
embedding; peft clones what a quantised layer gives (tuners/lora/bnb.py).
"""

from __future__ import annotations

from types import MethodType
from typing import Any

import torch
from torch import nn

BLOCK = 64
"""Weights that share one constant (``bnb_4bit`` block size)."""

NESTED_BLOCK = 256
"""Constants that share one constant of their own (double quantisation)."""

CODE_BYTES = 4 * 16 + 4 * 256 + 4
"""Code books of both levels and the offset, fp32."""


def constants_bytes(weights: int) -> int:
    """Bytes of a quantised layer's ``QuantState`` beside its packed weight."""
    blocks = -(-weights // BLOCK)
    return blocks + 4 * -(-blocks // NESTED_BLOCK) + CODE_BYTES


class _Matmul(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Any, packed: Any, shape: Any, bias: Any) -> Any:
        ctx.save_for_backward(packed)
        ctx.shape = shape
        blocks = -(-shape[0] * shape[1] // BLOCK)
        constants = tensor.new_empty(blocks, dtype=torch.float32)
        shifted = constants + 1.0
        weight = tensor.new_empty(shape)
        output = torch.nn.functional.linear(tensor, weight, bias)
        del constants, shifted, weight
        return output

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        rows, columns = ctx.shape
        constants = grad.new_empty(-(-rows * columns // BLOCK), dtype=torch.float32)
        weight = grad.new_empty(ctx.shape)
        del constants
        return torch.matmul(grad, weight), None, None, None


def _forward(layer: nn.Module, tensor: torch.Tensor) -> torch.Tensor:
    result = _Matmul.apply(tensor, layer.weight, layer.nf4_shape, layer.bias)
    return result.clone() if layer.nf4_adapted else result


def quantise(model: nn.Module) -> dict[str, int]:
    """Pack the linear layers of a model that has its adapters already; in place, meta tensors.

    Returns:
        Parameter name -> bytes that it and its constants take.
    """
    from transformers.pytorch_utils import Conv1D

    head = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None
    found: dict[str, int] = {}
    for name, layer in list(model.named_modules()):
        if not isinstance(layer, nn.Linear | Conv1D) or layer is head or ".lora_" in name:
            continue
        shape = tuple(layer.weight.shape)
        if isinstance(layer, Conv1D):
            shape = (shape[1], shape[0])
        weights = layer.weight.numel()
        packed = torch.empty((weights + 1) // 2, 1, dtype=torch.uint8, device=layer.weight.device)
        layer.weight = nn.Parameter(packed, requires_grad=False)
        layer.nf4_shape = shape
        layer.nf4_adapted = name.endswith(".base_layer")
        layer.forward = MethodType(_forward, layer)
        found[f"{name}.weight"] = packed.numel() + constants_bytes(weights)
    return found
