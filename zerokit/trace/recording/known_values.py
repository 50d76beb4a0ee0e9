"""Values of the small tensors that a model of images and text decides by, under fake tensors.

Fake tensors have shapes only. Such a model asks for values: where the image tokens are, how many patches an
image has. Tensors that follow from the batch's ids and sizes alone are computed beside their fake ones.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map

_MOST_ELEMENTS = 1 << 26
_ATTRIBUTE = "_zerokit_value"
_RANDOM = ("rand", "normal", "bernoulli", "dropout", "multinomial", "uniform", "empty")


def value_of(tensor: torch.Tensor) -> torch.Tensor | None:
    """The values of a fake tensor where they are known; a real one is its own."""
    if isinstance(tensor, FakeTensor):
        return getattr(tensor, _ATTRIBUTE, None)
    return None if tensor.is_meta else tensor


def know(fake: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Say what a fake tensor holds; returns it."""
    setattr(fake, _ATTRIBUTE, value)
    return fake


@functools.cache
def _is_random(name: str) -> bool:
    return any(word in name for word in _RANDOM)


def _number(item: Any) -> Any:
    value = value_of(item) if isinstance(item, FakeTensor) else None
    return item if value is None else value.item()


class KnownValues(TorchDispatchMode):
    """Active above a ``FakeTensorMode``: computes what follows from known values, and answers with it."""

    def __enter__(self) -> KnownValues:
        """Also answer ``torch.tensor`` of a list of known ones and ``tolist``, which dispatch otherwise."""
        self._originals = originals = torch.tensor, FakeTensor.tolist

        def tensor(data: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
            return originals[0](tree_map(_number, data) if isinstance(data, list) else data, *args, **kwargs)

        def tolist(self: FakeTensor) -> Any:
            value = value_of(self)
            return originals[1](self) if value is None else value.tolist()

        torch.tensor, FakeTensor.tolist = tensor, tolist
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        """Put them back."""
        torch.tensor, FakeTensor.tolist = self._originals
        super().__exit__(*error)

    def __torch_dispatch__(
        self, func: Any, types: tuple[type, ...], args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run one operator on the fake tensors, and on the values where all of them are known."""
        kwargs = kwargs or {}
        values = self._values(func, args, kwargs)
        name = func._schema.name.removeprefix("aten::")
        if values is None:
            self._forget(func, args)
            # operators whose result's shape follows from a known mask, whatever the other values
            if name == "masked_select" and value_of(args[1]) is not None:
                with _disable_current_modes():
                    shape = torch.broadcast_shapes(args[0].shape, args[1].shape)
                    count = int(value_of(args[1]).expand(shape).sum())  # type: ignore[union-attr]
                return args[0].new_empty(count)
            if name in ("index", "index_put", "index_put_") and any(_is_mask(index) for index in args[1]):
                return func(args[0], self._positions(args[1]), *args[2:], **kwargs)
            return func(*args, **kwargs)
        with _disable_current_modes(), torch.no_grad():
            real = func(*values[0], **values[1])
        if not isinstance(real, torch.Tensor | list | tuple):
            return real
        if torch.Tag.dynamic_output_shape in func.tags:
            return tree_map(self._made, real)
        result = func(*args, **kwargs)
        for fake, value in zip(tree_leaves(result), tree_leaves(real), strict=True):
            if isinstance(fake, FakeTensor) and isinstance(value, torch.Tensor):
                know(fake, value)
        return result

    @staticmethod
    def _forget(func: Any, args: tuple[Any, ...]) -> None:
        """What an operator writes into with values that are not known is not known any more."""
        for argument, value in zip(func._schema.arguments, args, strict=False):
            is_written = argument.alias_info is not None and argument.alias_info.is_write
            if is_written and hasattr(value, _ATTRIBUTE):
                delattr(value, _ATTRIBUTE)

    def _values(self, func: Any, args: Any, kwargs: Any) -> tuple[Any, Any] | None:
        leaves = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        values = [value_of(leaf) for leaf in leaves]
        if any(value is None for value in values) or _is_random(func._schema.name):
            return None
        if not leaves and not self._is_small(func, args, kwargs):
            return None
        if sum(value.numel() for value in values if value is not None) > _MOST_ELEMENTS:
            return None

        def real(leaf: Any) -> Any:
            return value_of(leaf) if isinstance(leaf, torch.Tensor) else leaf

        return tree_map(real, args), tree_map(real, kwargs)

    @staticmethod
    def _is_small(func: Any, args: Any, kwargs: Any) -> bool:
        """Tell whether a factory's tensor is small, by its result on no device."""
        with _disable_current_modes():
            try:
                output = func(*args, **{**kwargs, "device": torch.device("meta"), "pin_memory": None})
            except (RuntimeError, TypeError):
                return False
        return isinstance(output, torch.Tensor) and output.numel() <= _MOST_ELEMENTS

    @staticmethod
    def _made(real: Any) -> Any:
        if not isinstance(real, torch.Tensor):
            return real
        fake = torch.empty_strided(real.shape, real.stride(), dtype=real.dtype)
        return know(fake, real)

    def _positions(self, indices: Any) -> list[Any]:
        positions: list[Any] = []
        for index in indices:
            value = value_of(index) if _is_mask(index) else None
            if value is None:
                positions.append(index)
                continue
            with _disable_current_modes():
                columns = value.nonzero().unbind(1)
            positions += [self._made(column.contiguous()) for column in columns]
        return positions


def _is_mask(index: Any) -> bool:
    return isinstance(index, torch.Tensor) and index.dtype in (torch.bool, torch.uint8)
