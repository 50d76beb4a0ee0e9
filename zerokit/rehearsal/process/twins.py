"""Real values beside fake tensors.

A fake tensor that was made from real data on the host, or computed from such, keeps a real tensor on the
CPU with the same values: its twin. Control flow that asks for a value (``item()``, ``nonzero``, boolean
indices) is then answered truly. Views share their twin's memory, and one flag says whether the values are
still known: a write from an unknown source ends that for all of them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

MOST_INTEGERS = 1 << 22
"""Elements up to which integers and booleans keep a twin: token ids, masks, lengths, positions."""
MOST_FLOATS = 1 << 16
"""… and floats: losses, scales, learning rates; weights and activations never do."""
MOST_DATA = max(1 << 25, os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") >> 7)
"""… and what comes from the script's own data, images above all, up to the first arithmetic with weights: in
fp32 a thirty-second of this machine's memory."""

_NAME = "_zerokit_twin"


class Validity:
    """Whether the values of a family of views are known. ``filled``: they are a constant, which is what a
    tensor is filled with before a kernel writes into it. ``unwritten``: nothing was written yet (``empty``),
    so no program reads a value that is not written later."""

    __slots__ = ("filled", "is_known", "unwritten")

    def __init__(self, is_known: bool = True, *, unwritten: bool = False) -> None:
        self.is_known = is_known
        self.filled = False
        self.unwritten = unwritten

    def lose(self) -> None:
        """Unknown values were written."""
        self.is_known = self.unwritten = False


class Twin:
    """A real tensor with the values of a fake one."""

    __slots__ = ("validity", "value")

    def __init__(self, value: torch.Tensor, validity: Validity | None = None) -> None:
        self.value = value
        self.validity = validity or Validity()


def twin(tensor: torch.Tensor) -> torch.Tensor | None:
    """The real values of a fake tensor, where they are known."""
    stored = getattr(tensor, _NAME, None)
    return stored.value if stored is not None and stored.validity.is_known else None


def place(tensor: torch.Tensor) -> torch.Tensor | None:
    """The same, and the place for them where nothing was written yet."""
    stored = twin_of(tensor)
    if stored is None or not (stored.validity.is_known or stored.validity.unwritten):
        return None
    return stored.value


def twin_of(tensor: torch.Tensor) -> Twin | None:
    """The twin itself, known or not any more."""
    stored: Twin | None = getattr(tensor, _NAME, None)
    return stored


def attach(tensor: torch.Tensor, value: torch.Tensor, validity: Validity | None = None) -> None:
    """Remember ``value`` (not a copy) as what ``tensor`` holds."""
    tensor.__dict__[_NAME] = Twin(value, validity)


def fill(tensor: torch.Tensor) -> None:
    """What a tensor holds is a constant."""
    if (stored := twin_of(tensor)) is not None:
        stored.validity.filled = True


def take_over(tensor: torch.Tensor, source: torch.Tensor) -> None:
    """``tensor`` holds what ``source`` holds from now on (``tensor.data = source``)."""
    tensor.__dict__[_NAME] = twin_of(source)


def may_have(tensor: torch.Tensor) -> bool:
    """Whether a tensor of this dtype and size is worth a twin."""
    if tensor.dtype.is_floating_point or tensor.dtype.is_complex:
        return int(tensor.numel()) <= MOST_FLOATS
    return int(tensor.numel()) <= MOST_INTEGERS


def are_data(inputs: list[Any], outputs: list[Any]) -> bool:
    """Whether these outputs of a cheap operator on known inputs are worth twins although they are large."""
    most = max((int(tensor.numel()) for tensor in inputs), default=0)
    return most <= MOST_DATA and all(int(tensor.numel()) <= most for tensor in outputs)


def tensors_in(value: Any, result: list[torch.Tensor]) -> list[torch.Tensor]:
    """All tensors among arguments, in their order."""
    if isinstance(value, torch.Tensor):
        result.append(value)
    elif isinstance(value, list | tuple):
        for item in value:
            tensors_in(item, result)
    elif isinstance(value, dict):
        for item in value.values():
            tensors_in(item, result)
    return result


def written(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[Any]:
    """The arguments that an operator writes into."""
    for index, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            yield kwargs.get(argument.name, args[index] if index < len(args) else None)


def forget_written(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """An operator wrote unknown values into its outputs."""
    for tensor in tensors_in(list(written(func, args, kwargs)), []):
        if (stored := twin_of(tensor)) is not None:
            stored.validity.lose()


def forget(value: Any) -> None:
    """A kernel that does nothing here would have written into tensors among its arguments: not into integers
    and booleans that come from data, which it reads."""
    for tensor in tensors_in(value, []):
        stored = twin_of(tensor)
        if stored is not None and (stored.validity.filled or tensor.dtype.is_floating_point):
            stored.validity.lose()


def overwritten(target: torch.Tensor, source: torch.Tensor | None) -> bool:
    """A tensor was written (``fill_``, ``copy_``, ``zero_``): its values are known again, if that is all of
    its memory or the first of it that is written. ``source``: real values, broadcast to the target; None:
    they are not known."""
    stored = twin_of(target)
    if stored is None or source is None:
        return False
    is_part = stored.value.untyped_storage().nbytes() != stored.value.numel() * stored.value.element_size()
    if is_part and not stored.validity.unwritten:
        return False  # the rest is as unknown as it was
    stored.value.copy_(source)
    stored.validity.is_known, stored.validity.unwritten = True, False
    stored.validity.filled = source.dim() == 0 or is_part  # a kernel may write the rest
    return True


def real_arguments(value: Any, of: Callable[[torch.Tensor], torch.Tensor | None] = twin) -> Any:
    """The same arguments with twins in place of fake tensors and the CPU in place of the GPU."""
    if isinstance(value, FakeTensor):
        return of(value)
    if isinstance(value, torch.device) and value.type == "cuda":
        return torch.device("cpu")
    if isinstance(value, list):
        return [real_arguments(item, of) for item in value]
    if isinstance(value, tuple):
        return tuple(real_arguments(item, of) for item in value)
    return value


def run_on_twins(
    func: Any, args: tuple[Any, ...], kwargs: dict[str, Any],
    of: Callable[[torch.Tensor], torch.Tensor | None] = twin,
) -> Any:  # fmt: skip
    """The operator on the real values; ``of`` gives them."""
    real_kwargs = {name: real_arguments(value, of) for name, value in kwargs.items()}
    return func(*[real_arguments(value, of) for value in args], **real_kwargs)
