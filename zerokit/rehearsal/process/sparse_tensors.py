"""Sparse tensors on the fake GPU: indices and values are fake tensors.

How many elements a sparse tensor has depends on values. Where these are not known it has all of the dense
one's, the most there can be, and the guesses list it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
from torch._subclasses.fake_tensor import FakeTensor

from zerokit.rehearsal.process import twins
from zerokit.rehearsal.process.endings import NotRehearsed
from zerokit.rehearsal.process.machine import Machine
from zerokit.rehearsal.process.twins import twin

COO = torch.sparse_coo
_SORTED = 2
"""Buffers of keys and of positions that a merge sort takes beside its input (Thrust, CUB)."""


class SparseTensor(torch.Tensor):
    """A tensor of coordinates (COO). One of compressed rows (CSR) is :class:`RowsTensor`.

    Attributes:
        parts: indices (sparse dimensions, elements), then values (elements, dense dimensions).
        coalesced: indices are sorted, and none stands there twice.
    """

    parts: tuple[torch.Tensor, torch.Tensor]
    coalesced: bool
    machine: Machine
    rules: ClassVar[dict[str, Callable[..., Any]]] = {}
    """What answers each operator, by its name (:data:`sparse_operators.RULES`)."""

    @staticmethod
    def __new__(
        cls,
        machine: Machine,
        size: Sequence[int],
        indices: torch.Tensor,
        values: torch.Tensor,
        coalesced: bool = False,
    ) -> SparseTensor:
        """A tensor of these parts, which are not copied."""
        tensor: SparseTensor = torch.Tensor._make_wrapper_subclass(
            cls, tuple(size), dtype=values.dtype, layout=COO, device=values.device
        )
        tensor.machine, tensor.parts, tensor.coalesced = machine, (indices, values), coalesced
        return tensor

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """All is in place."""

    def __repr__(self, **kwargs: Any) -> str:
        """Without values, which nobody knows."""
        return f"SparseTensor(size={tuple(self.shape)}, elements={self.count})"

    @property
    def count(self) -> int:
        """Its elements."""
        return int(self.parts[1].shape[0])

    @property
    def sparse_dims(self) -> int:
        """Dimensions that indices name; the others are dense."""
        return int(self.parts[0].shape[0])

    def like(self, indices: torch.Tensor, values: torch.Tensor, size: Any, coalesced: bool) -> SparseTensor:
        """Another one."""
        return SparseTensor(self.machine, size, indices, values, coalesced)

    def with_values(self, values: torch.Tensor) -> SparseTensor:
        """The same coordinates, copied."""
        return self.like(self.parts[0].clone(), values, self.shape, self.coalesced)

    @classmethod
    def __torch_dispatch__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Answer one operator that has a sparse argument.

        Raises:
            NotRehearsed: it is none of those that are modelled.
        """
        rule = cls.rules.get(func._schema.name.split("::")[1])
        result = rule(func, *args, **(kwargs or {})) if rule is not None else NotImplemented
        if result is not NotImplemented:
            return result
        if func._can_decompose():
            return func.decompose(*args, **(kwargs or {}))
        raise NotRehearsed(
            func._schema.name,
            "this operator of sparse tensors is not modelled: where the script has an option for dense ones, "
            "rehearse it with that",
        )


class RowsTensor(SparseTensor):
    """Compressed rows (CSR), as far as scripts read them. PyTorch makes no wrapper of this layout: only
    Python sees it."""

    layout = property(lambda self: torch.sparse_csr)
    rows: torch.Tensor

    @staticmethod
    def of(source: SparseTensor) -> RowsTensor:
        """Of sorted coordinates of two dimensions."""
        indices, values = source.parts
        tensor: RowsTensor = torch.Tensor._make_wrapper_subclass(
            RowsTensor, tuple(source.shape), dtype=values.dtype, device=values.device
        )
        tensor.rows = torch._convert_indices_from_coo_to_csr(indices[0], source.shape[0])
        tensor.machine, tensor.parts, tensor.coalesced = source.machine, source.parts, True
        return tensor


# -------------------------------------------------------------------- coordinates


def known_values(tensor: torch.Tensor) -> torch.Tensor | None:
    """A tensor's values; one on the host may be a real one."""
    return twin(tensor) if isinstance(tensor, FakeTensor) else tensor


def hold(tensor: torch.Tensor, values: torch.Tensor) -> None:
    """A new tensor has these values."""
    if isinstance(tensor, FakeTensor):
        twins.attach(tensor, values)
    else:
        tensor.copy_(values)


def flattened(indices: torch.Tensor, size: Sequence[int]) -> torch.Tensor:
    """One number for each coordinate (``flatten_indices``)."""
    if indices.shape[0] == 1:
        return indices[0].clone()
    flat = torch.empty(indices.shape[1], dtype=torch.long, device=indices.device)
    known = known_values(indices)
    if known is not None:
        strides = [math.prod(size[place + 1 : len(indices)]) for place in range(len(indices))]
        hold(flat, (known * known.new_tensor(strides)[:, None]).sum(0))
    return flat


def coalesce(func: Any, sparse: SparseTensor) -> SparseTensor:
    """Sorted coordinates, each once (``SparseCUDATensor.cu``, _coalesce_sparse_cuda)."""
    if sparse.coalesced:
        return sparse
    indices, values = sparse.parts
    if sparse.count < 2:
        return sparse.like(indices.clone(), values.clone(), sparse.shape, True)
    flat = flattened(indices, sparse.shape)
    origins, offsets = torch.empty_like(flat), torch.empty_like(flat)
    buffers = torch.empty(_SORTED * flat.numel(), dtype=torch.long, device=flat.device)
    del buffers
    known = known_values(flat)
    unique = known.unique() if known is not None else None
    count = sparse.count if unique is None else unique.numel()
    summed = values.new_empty((count, *values.shape[1:]))
    coordinates = torch.empty((sparse.sparse_dims, count), dtype=torch.long, device=indices.device)
    if unique is not None:
        places: list[torch.Tensor] = []
        for length in reversed(sparse.shape[: sparse.sparse_dims]):
            places.insert(0, unique % length)
            unique = unique // length
        hold(coordinates, torch.stack(places))
    del origins, offsets
    return sparse.like(coordinates, summed, sparse.shape, True)
