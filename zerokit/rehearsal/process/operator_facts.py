"""What one operator does to memory and arithmetic: FLOPs, bytes, kernels, whether the host waits for it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch._subclasses.fake_tensor import FakeTensor

from zerokit.rehearsal.process.twins import tensors_in, twin, written
from zerokit.timing import operators as kinds

Shape = tuple[int, ...]
_FOREACH_TENSORS = 100
_FUSED_ADAM_TENSORS = 36
_CHUNK_ELEMENTS = 65536 * 320
"""Tensors and elements that one launch of ``multi_tensor_apply`` takes
(``aten/src/ATen/native/cuda/MultiTensorApply.cuh``)."""


Facts = dict[str, Any]
"""Attributes of an :class:`zerokit.timing.operators.IssuedOperator` that runs kernels."""


def on_gpu(value: Any) -> bool:
    """Whether a value is a tensor on the fake GPU."""
    return isinstance(value, FakeTensor) and value.fake_device.type == "cuda"


def memory_bytes(tensor: torch.Tensor) -> int:
    """Bytes that a kernel touches: an expanded dimension is read once."""
    elements = 1
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        if stride:
            elements *= size
    return int(elements * tensor.element_size())


def total(tensors: Any) -> int:
    """Their bytes together."""
    return sum(memory_bytes(tensor) for tensor in tensors)


def host_bytes(
    func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any, *, write_only: bool
) -> tuple[int, int]:
    """Bytes that an operator without a kernel reads and writes; what it only writes to is not read."""
    read = total(tensors_in([args, kwargs], []))
    if write_only:
        read -= total(_changed(func, args, kwargs))
    return read, total(tensors_in(result, []))


def facts(
    func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any,
    *, moves: Moves | None, waits: bool, write_only: bool,
) -> Facts:  # fmt: skip
    """Facts of an operator with tensors on the GPU that has no ``Work`` of its own."""
    inputs, outputs = gpu_tensors([args, kwargs]), gpu_tensors(result)
    if moves is not None:
        moved = moves(name, args, inputs, outputs)
    else:
        new_outputs = [tensor for tensor in outputs if not any(tensor is argument for argument in inputs)]
        changed = []
        if func._schema.is_mutable:
            changed = [tensor for tensor in _changed(func, args, kwargs) if on_gpu(tensor)]
        read = max(0, total(inputs) - (total(changed) if write_only else 0))
        moved = Moved(read, total(new_outputs) + total(changed), _launches(name, args, inputs))
    large = [tensor for tensor in (*inputs, *outputs) if tensor.numel() > 1]
    return {
        "shapes": tuple(tuple(tensor.shape) for tensor in (large or [*inputs, *outputs])[:3]),
        "dtype": dtype_of((large or inputs or outputs)[0]) if inputs or outputs else "",
        "layout": _layout(large),
        "bytes_read": moved.read,
        "bytes_written": moved.written,
        "launches": moved.launches,
        "synchronizes": moved.waits or waits,
    }


def dtype_of(tensor: torch.Tensor) -> str:
    """Its dtype's name, ``bfloat16``."""
    return str(tensor.dtype).removeprefix("torch.")


def _layout(tensors: list[torch.Tensor]) -> str:
    if any(not tensor.is_contiguous() for tensor in tensors) or len({tensor.shape for tensor in tensors}) > 1:
        return kinds.STRIDED
    return kinds.CAST if len({tensor.dtype for tensor in tensors}) > 1 else ""


# -------------------------------------------------------------------- products and attention

Work = Callable[[Any, str, tuple[Any, ...], dict[str, Any], Any], Facts]
"""Of an operator, its name, arguments and result."""


def gpu_tensors(value: Any) -> list[Any]:
    """Tensors on the GPU among values, in their order."""
    return [tensor for tensor in tensors_in(value, []) if on_gpu(tensor)]


def product(func: Any, name: str, args: Any, kwargs: Any, result: Any) -> Facts:
    """Facts of a product of matrices."""
    left, right = args[1:3] if name.startswith(("addmm", "baddbmm")) else args[:2]
    batch = left.shape[0] if left.dim() == 3 else 1
    m, k = left.shape[-2:]
    n = right.shape[-1]
    # cuBLAS wants the contiguous dimension of each operand in multiples of 16 bytes
    contiguous = (n, k if left.stride(-1) == 1 else m, n if right.stride(-1) == 1 else k)
    step = 16 // left.element_size()
    aligned = left.element_size() > 2 or all(size % step == 0 for size in contiguous)
    return {
        "shapes": ((int(batch), int(m), int(n), int(k)),),
        "dtype": dtype_of(left),
        "layout": "" if aligned else kinds.UNALIGNED,
        "flops": 2.0 * batch * m * n * k,
        "launches": 1,
        "bytes_read": total(gpu_tensors([args, kwargs])),
        "bytes_written": total(gpu_tensors(result)),
    }


def grouped(args: Any, kwargs: Any) -> tuple[Any, Any, Any]:
    """Factors of a product of groups, and where these end."""
    left, right, *rest = args
    return left, right, rest[0] if rest else kwargs.get("offs")


def grouped_product(func: Any, name: str, args: Any, kwargs: Any, result: Any) -> Facts:
    """Facts of a product of groups, all as large: one kernel in bf16 on Hopper and Blackwell, else one for
    each, of which the host reads the sizes (``native/cuda/GroupedBlas.cpp``, PyTorch 2.13)."""
    left, right, offsets = grouped(args, kwargs)
    groups = len(left if offsets is None else offsets)
    share = groups if offsets is not None else 1
    (m, k), n = left.shape[-2:], right.shape[-1]
    if left.dim() == right.dim():  # two dimensions each: groups divide what is summed
        k //= share
    elif right.dim() == 3:
        m //= share
    else:
        n //= share
    by_group = left.dtype != torch.bfloat16 or torch.cuda.get_device_capability()[0] not in (9, 10)
    return {
        "shapes": ((groups, int(m), int(n), int(k)),),
        "dtype": dtype_of(left),
        "layout": "",
        "flops": 2.0 * groups * m * n * k,
        "launches": groups if by_group else 2,
        "bytes_read": total(gpu_tensors([args, kwargs])),
        "bytes_written": total(gpu_tensors(result)),
        "synchronizes": by_group and offsets is not None,
    }


def attention(func: Any, name: str, args: Any, kwargs: Any, result: Any) -> Facts:
    """Facts of fused attention."""
    arguments = {
        argument.name: value for argument, value in zip(func._schema.arguments, args, strict=False)
    } | kwargs
    query, key, value = arguments["query"], arguments["key"], arguments["value"]
    causal = bool(arguments.get("is_causal"))
    if name.startswith("_flash_attention"):
        shapes, pairs = _flash_shapes(query, key, value, arguments["cum_seq_q"], arguments["cum_seq_k"])
    else:
        shapes = tuple(tuple(argument.shape) for argument in (query, key, value))
        pairs = shapes[0][0] * shapes[0][2] * shapes[1][2]
    heads, width = shapes[0][1], shapes[0][3]
    scores = 2.0 * heads * pairs * (width + shapes[2][3]) * (0.5 if causal else 1)
    backward = name.endswith("backward")
    return {
        "shapes": shapes,
        "dtype": dtype_of(query),
        "layout": kinds.CAUSAL if causal else "",
        "flops": scores * (2.5 if backward else 1.0),
        "bytes_read": total(gpu_tensors([args, kwargs])),
        "bytes_written": total(gpu_tensors(result)),
        "launches": 3 if backward else 1,
    }


def _flash_shapes(query: Any, key: Any, value: Any, queries: Any, keys: Any) -> tuple[tuple[Shape, ...], int]:
    """As (batch, heads, sequence, dim), and how many keys all queries meet together. Tensors are (batch,
    sequence, heads, dim), or (tokens, heads, dim) with the lengths cumulated."""
    tensors = [tensor if tensor.dim() == 4 else tensor.unsqueeze(0) for tensor in (query, key, value)]
    shapes = tuple((tensor.shape[0], tensor.shape[2], tensor.shape[1], tensor.shape[3]) for tensor in tensors)
    if queries is None:
        return shapes, shapes[0][0] * shapes[0][2] * shapes[1][2]
    ends, key_ends = (
        twin(tensor) if isinstance(tensor, FakeTensor) else tensor for tensor in (queries, keys)
    )
    if ends is None or key_ends is None:
        return shapes, shapes[0][2] * shapes[1][2] // max(1, queries.shape[0] - 1)
    return shapes, int((ends.diff().long() * key_ends.diff().long()).sum())


def convolution(func: Any, name: str, args: Any, kwargs: Any, result: Any) -> Facts:
    """Facts of a convolution."""
    backward = name != "convolution"
    weight = args[2] if backward else args[1]
    output = args[0] if backward else gpu_tensors(result)[0]
    flops = 2.0 * output.numel() * math.prod(weight.shape[1:])
    passes = sum(args[-1][:2]) if backward else 1
    return {
        "shapes": (tuple(output.shape), tuple(weight.shape)),
        "dtype": dtype_of(weight),
        "flops": flops * passes,
        "bytes_read": total(gpu_tensors([args, kwargs])),
        "bytes_written": total(gpu_tensors(result)),
        "launches": passes,
    }


# -------------------------------------------------------------------- what some move


class Moved(NamedTuple):
    """Bytes read and written, kernels, and whether the host waits."""

    read: int
    written: int
    launches: int = 1
    waits: bool = False


Moves = Callable[[str, Any, list[Any], list[Any]], Moved]
"""Of an operator's name, its arguments and the tensors on the GPU among them and among its results."""


def gather(name: str, args: Any, inputs: list[Any], outputs: list[Any]) -> Moved:
    """Rows at positions, or where a mask is true, which the host waits for."""
    positions = inputs[1:]
    masks = any(tensor.dtype in (torch.bool, torch.uint8) for tensor in positions)
    output_bytes = total(outputs)
    return Moved(output_bytes + total(positions), output_bytes, 4 if masks else 1, masks)


def write_at(name: str, args: Any, inputs: list[Any], outputs: list[Any]) -> Moved:
    """Rows written at positions, or added to what is there."""
    accumulates = name.endswith("put_impl_") or (name == "index_put_" and args[-1] is True)
    moved_bytes = total(inputs[1:])
    return Moved(2 * moved_bytes, moved_bytes, 6 if accumulates else 1)


def _changed(func: Any, args: Any, kwargs: Any) -> list[torch.Tensor]:
    return tensors_in(list(written(func, args, kwargs)), [])


def _launches(name: str, args: Any, inputs: list[Any]) -> int:
    if name == "_foreach_norm":
        return max(2, 2 * -(-len(inputs) // 50))
    by_size = int(sum(tensor.numel() for tensor in inputs)) // _CHUNK_ELEMENTS
    if name.startswith("_foreach"):
        return max(1, -(-len(inputs) // _FOREACH_TENSORS), by_size)
    if name.startswith("_fused_adam"):
        return max(1, -(-len(args[0]) // _FUSED_ADAM_TENSORS), by_size // 4)
    return 1
