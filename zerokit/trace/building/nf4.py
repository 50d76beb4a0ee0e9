"""Linear layers in NF4 as bitsandbytes runs them: doubly quantised under QLoRA, plainly for inference.

Read from bitsandbytes 0.50.2: ``MatMul4Bit`` (autograd/_functions.py:300) keeps the packed weight alone;
``_dequant_linear_fallback`` (backends/cuda/ops.py:904), the path of more than 1,536 tokens, makes the
block constants and the whole weight again in 16 bits for each forward, ``F.dequantize_4bit``
(functional.py:992) for each backward. Without gradients ``gemm_4bit`` (ops.py:935) goes that way too beyond
1,536 tokens, and for the few of a decoding step reads the packed weight itself. Transformers quantises every
linear layer but the output embedding; peft clones what a quantised layer gives (tuners/lora/bnb.py).
"""

from __future__ import annotations

from collections.abc import Iterator
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


def constants_bytes(weights: int, nested: bool = True) -> int:
    """Bytes of a quantised layer's ``QuantState`` beside its weight; ``nested``: double quantisation."""
    blocks = -(-weights // BLOCK)
    if not nested:
        return 4 * blocks + 4 * 16
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


def run_adapters(layer: Any, tensor: torch.Tensor) -> torch.Tensor:
    """The forward pass of peft's layers around a quantised one (``Linear4bit`` and ``Linear8bitLt``,
    tuners/lora/bnb.py, 0.21): other than those around a plain layer they leave their input as it is where
    autocast casts it, and convert what adapters give before they add it."""
    result = layer.base_layer(tensor)
    for name in layer.active_adapters:
        dtype = None if torch.is_autocast_enabled("cpu") else result.dtype
        if dtype is not None:
            tensor = tensor.to(layer.lora_A[name].weight.dtype)
        output = layer.lora_B[name](layer.lora_A[name](layer.lora_dropout[name](tensor)))
        output = output * layer.scaling[name]
        result = result + (output if dtype is None else output.to(dtype))
    return result


def quantise_adapted(model: nn.Module) -> None:
    """Give every layer with adapters on a quantised one the forward pass of peft's class for it."""
    for module in model.modules():
        base = getattr(module, "base_layer", None)
        if base is not None and hasattr(module, "lora_A") and not base.weight.is_floating_point():
            module.forward = MethodType(run_adapters, module)


def _serve_prompt(layer: nn.Module, tensor: torch.Tensor) -> torch.Tensor:
    weight = tensor.new_empty(layer.nf4_shape)
    return torch.nn.functional.linear(tensor, weight, layer.bias)


def _serve_token(layer: nn.Module, tensor: torch.Tensor) -> torch.Tensor:
    return tensor.new_empty((*tensor.shape[:-1], layer.nf4_shape[0]))


def quantisable(model: nn.Module) -> Iterator[tuple[str, Any, tuple[int, int]]]:
    """(name, layer, (rows, columns)) of the linear layers that Transformers quantises: those of ``nn.Linear``
    itself, not of a class made of it such as ``FalconLinear`` (5.23, integrations/bitsandbytes.py,
    ``replace_with_bnb_linear``)."""
    from transformers.pytorch_utils import Conv1D

    head = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None
    for name, layer in list(model.named_modules()):
        is_replaced = type(layer) is nn.Linear or isinstance(layer, Conv1D)
        if not is_replaced or layer is head or ".lora_" in name:
            continue
        rows, columns = layer.weight.shape
        yield name, layer, (columns, rows) if isinstance(layer, Conv1D) else (rows, columns)


def quantise(model: nn.Module, phase: str = "train") -> dict[str, int]:
    """Pack the linear layers of a model that has its adapters already; in place, meta tensors.

    ``phase``: ``train`` (under adapters), or of inference ``prefill`` or ``decode``.

    Returns:
        Parameter name -> bytes that it and its constants take.
    """
    forward = {"train": _forward, "prefill": _serve_prompt, "decode": _serve_token}[phase]
    sizes: dict[str, int] = {}
    for name, layer, shape in quantisable(model):
        weights = layer.weight.numel()
        packed = torch.empty((weights + 1) // 2, 1, dtype=torch.uint8, device=layer.weight.device)
        layer.weight = nn.Parameter(packed, requires_grad=False)
        layer.nf4_shape = shape
        layer.nf4_adapted = name.endswith(".base_layer")
        layer.forward = MethodType(forward, layer)
        sizes[f"{name}.weight"] = packed.numel() + constants_bytes(weights, nested=phase == "train")
    return sizes
