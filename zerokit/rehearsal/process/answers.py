"""Operators that give values to the host, or whose results' sizes depend on values.

Answered from twins where the values are known; guessed otherwise, and each guess is noted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._pytree import tree_map

from zerokit.rehearsal.process import factories, sdpa_choice, twins
from zerokit.rehearsal.process.machine import Machine
from zerokit.rehearsal.process.operator_facts import dtype_of
from zerokit.rehearsal.process.twins import twin

PASS = object()
"""This case is an ordinary operator after all."""

Answer = Callable[[Machine, Any, tuple[Any, ...], dict[str, Any]], Any]

_ORIGIN = "_zerokit_from"
_TRUE_WHEN_UNKNOWN = ("all", "_is_all_true", "isfinite", "allclose")
_HALF = 0.5
_MADE_UP_TOKEN = 7
"""A token that no usual tokenizer has among its special ones."""


def note_origin(tensors: list[Any], name: str | None) -> None:
    """Remember which operator made booleans: ``all`` and ``isfinite`` are taken to be true."""
    for tensor in tensors:
        if tensor.dtype == torch.bool:
            tensor.__dict__[_ORIGIN] = name


def origin_of(tensor: Any) -> str | None:
    """The operator that made a boolean tensor."""
    name: str | None = getattr(tensor, _ORIGIN, None)
    return name


def guess(tensor: torch.Tensor) -> bool | float | int:
    """What an unknown value is taken to be: 0.5, 1, False, True out of ``all``; overflow flags 0."""
    if tensor.dtype == torch.bool:
        return origin_of(tensor) in _TRUE_WHEN_UNKNOWN
    if tensor.dtype.is_floating_point:
        return _HALF
    return 0 if tensor.dtype == torch.uint8 else 1


def on_host(machine: Machine, tensor: torch.Tensor, description: str) -> torch.Tensor:
    """A real tensor with the values of a fake one; guessed where they are unknown."""
    values = twin(tensor)
    if values is not None:
        return values
    value = guess(tensor)
    machine.guesses.of_value(f"{description} of {dtype_of(tensor)}", value)
    return factories.full(tensor.shape, value, dtype=tensor.dtype)


def draw(machine: Machine, name: str, source: Any, indices: Any) -> None:
    """Indices out of unknown values: a plausible choice. Tokens that are no end; experts evenly used."""
    if indices.dtype.is_floating_point or not twins.may_have(indices):
        return
    choices = source.shape[-1] if source.dim() else 1
    if name in ("multinomial", "argmax"):
        token = min(_MADE_UP_TOKEN, choices - 1)
        values = factories.full(indices.shape, token, dtype=indices.dtype)
        machine.guesses.of_shape(f"{name} of unknown values", token)
    else:
        values = (factories.arange(indices.numel(), dtype=indices.dtype) % max(1, choices)).reshape(
            indices.shape
        )
        machine.guesses.of_shape(f"{name} of unknown values", "evenly spread")
    twins.attach(indices, values)


# ---------------------------------------------------------------- values to the host


def item(machine: Machine, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A tensor's only value."""
    values = twin(args[0])
    if values is not None:
        return func(values)
    value = guess(args[0])
    machine.guesses.of_value(f"item of {dtype_of(args[0])}", value)
    return value


def equal(machine: Machine, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Whether two tensors hold the same; unknown ones do."""
    pair = [twin(value) if isinstance(value, FakeTensor) else value for value in args[:2]]
    if all(value is not None for value in pair):
        return func(*pair, *args[2:], **kwargs)
    name = func._schema.name.split("::")[1]
    machine.guesses.of_value(name, True)
    return True


def copy_to(machine: Machine, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``tensor.to("cpu")``: small tensors become real."""
    source, device = args[0], kwargs.get("device")
    if device is None or device.type != "cpu" or not isinstance(source, FakeTensor):
        return PASS
    if source.fake_device.type != "cuda":
        return PASS
    dtype = kwargs.get("dtype") or source.dtype
    values = twin(source)
    if values is None and source.numel() > twins.MOST_FLOATS:
        return PASS
    result = (values if values is not None else on_host(machine, source, "copy")).to(dtype, copy=True)
    return machine.pin(result) if kwargs.get("pin_memory") else result


def copy_into(machine: Machine, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A copy into a real tensor on the host."""
    target, source = args[:2]
    if isinstance(target, FakeTensor):
        return PASS
    values = twin(source)
    if values is not None:
        target.copy_(values)
    else:
        machine.guesses.of_value(f"copy of {dtype_of(source)}", "left as it was")
    return target


def sdp_choice(machine: Machine, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The kernel of attention that the GPU takes."""
    return int(sdpa_choice.choose(machine.gpu.capability, *args, **kwargs))


def device(machine: Machine, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The device that the script sees."""
    tensor = args[0]
    return tensor.fake_device if isinstance(tensor, FakeTensor) else tensor.device


def unscale(machine: Machine, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """GradScaler looks for infinities: none are found, or every step would be skipped. Raises
    NotImplementedError: as CUDA's kernel, which takes no bf16 (``native/cuda/AmpKernels.cu``,
    AT_DISPATCH_FLOATING_TYPES_AND_HALF)."""
    if any(gradient.dtype == torch.bfloat16 for gradient in args[0]):
        raise NotImplementedError(
            "\"_amp_foreach_non_finite_check_and_unscale_cuda\" not implemented for 'BFloat16'"
        )
    machine.guesses.of_value("gradients that are not finite", False)
    return None


# ---------------------------------------------------------------- sizes from values


def index(machine: Machine, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``x[mask]``: the mask's true positions, from its twin."""
    source, indices = args[:2]
    if not any(_is_mask(indexer) for indexer in indices):
        return PASS
    device = source.fake_device if isinstance(source, FakeTensor) else source.device
    positions: list[Any] = []
    for indexer in indices:
        positions += _positions(machine, indexer, device) if _is_mask(indexer) else [indexer]
    result = machine.shapes.dispatch(func, (), (source, positions), kwargs)
    values = twin(source) if isinstance(source, FakeTensor) else source
    if values is not None and (twins.may_have(result) or twins.are_data([source], [result])):
        real = [twin(indexer) if isinstance(indexer, FakeTensor) else indexer for indexer in positions]
        if all(index is None or indexer is not None for index, indexer in zip(positions, real, strict=True)):
            twins.attach(result, func(values, real))
    return result


def _is_mask(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dtype in (torch.bool, torch.uint8)


def _positions(machine: Machine, mask: torch.Tensor, device: Any) -> list[torch.Tensor]:
    values = twin(mask) if isinstance(mask, FakeTensor) else mask
    if values is None:
        machine.guesses.of_shape("index by an unknown mask", "every element")
        values = torch.ones(mask.shape, dtype=torch.bool)
    return [lifted(machine, column.contiguous(), device) for column in values.nonzero().unbind(1)]


def lifted(machine: Machine, values: torch.Tensor, device: Any) -> torch.Tensor:
    """A fake tensor on ``device`` with these values."""
    tensor = machine.empty(values.shape, values.dtype, device)
    twins.attach(tensor, values)
    return tensor


def sized_by_values(machine: Machine, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A result as large as values say; the largest one where they are not known."""
    name = func._schema.name.split("::")[1]
    tensors = [value for value in args if isinstance(value, torch.Tensor)]
    values = [twin(value) if isinstance(value, FakeTensor) else value for value in tensors]
    if name == "repeat_interleave" and values[0] is None and kwargs.get("output_size") is not None:
        return PASS
    device = next(value.fake_device for value in tensors if isinstance(value, FakeTensor))
    if all(value is not None for value in values):
        following = iter(values)
        real = func(
            *[next(following) if isinstance(value, torch.Tensor) else value for value in args], **kwargs
        )
        return tree_map(
            lambda value: lifted(machine, value, device) if isinstance(value, torch.Tensor) else value, real
        )
    # the most that an unknown selection can give
    source = tensors[0]
    count = source.numel()
    if name in ("nonzero", "argwhere"):
        shapes: list[tuple[tuple[int, ...], torch.dtype]] = [((count, source.dim()), torch.long)]
    elif name == "masked_select":
        shapes = [((count,), source.dtype)]
    elif name == "_unique2":
        shapes = [((count,), source.dtype), (tuple(source.shape), torch.long), ((count,), torch.long)]
    else:
        return PASS
    machine.guesses.of_shape(f"size of {name}", "every element")
    outputs = [machine.empty(shape, dtype, device) for shape, dtype in shapes]
    if name in ("nonzero", "argwhere") and twins.may_have(outputs[0]):
        twins.attach(outputs[0], torch.ones(source.shape, dtype=torch.bool).nonzero())
    return outputs[0] if len(outputs) == 1 else tuple(outputs)
