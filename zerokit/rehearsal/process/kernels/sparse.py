"""Operators of sparse tensors, as what CUDA's code makes of them (``aten/src/ATen/native/sparse``)."""

from __future__ import annotations

import functools
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
    """A tensor of coordinates (COO) on the fake GPU: indices and values are fake tensors. One of compressed
    rows (CSR) is :class:`RowsTensor`.

    How many elements a sparse tensor has depends on values. Where these are not known it has all of the dense
    one's, the most there can be, and the guesses list it.

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
        cls, machine: Machine, size: Sequence[int], indices: torch.Tensor, values: torch.Tensor,
        coalesced: bool = False,
    ) -> SparseTensor:  # fmt: skip
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
        """Answer one operator that has a sparse argument. Raises NotRehearsed: it is none of those that are
        modelled."""
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


aten = torch.ops.aten

_CUSPARSE = "workspaces of cuSPARSE"
_VALUE_WISE = ("mul", "div", "div_", "mul_", "abs", "neg", "sqrt", "relu", "sgn", "sign", "log1p", "expm1")
"""Of a sparse tensor and a number, or of it alone: zeros stay zeros."""

# -------------------------------------------------------------------- from dense ones


def kernels(machine: Machine) -> dict[str, Callable[..., Any]]:
    """What makes sparse tensors of dense ones, by the operator's full name."""
    SparseTensor.rules.update(RULES)

    def to_sparse(dense: torch.Tensor, **options: Any) -> Any:
        if options.get("layout") not in (None, COO, torch.sparse_csr):
            raise NotRehearsed("aten::_to_sparse", f"{options['layout']} is not modelled")
        coordinates = dense.nonzero().t().clone()
        values = aten.index.Tensor(dense, list(coordinates.unbind(0))).clone()
        made = SparseTensor(machine, dense.shape, coordinates, values, coalesced=True)
        return RowsTensor.of(made) if options.get("layout") is torch.sparse_csr else made

    def of_parts(
        sparse_dims: int, dense_dims: int, size: Any, indices: Any, values: Any, **options: Any
    ) -> SparseTensor:
        return SparseTensor(machine, size, indices, values, bool(options.get("is_coalesced")))

    def from_host(real: torch.Tensor, *, device: Any, dtype: Any = None, **options: Any) -> SparseTensor:
        indices, values = real._indices().to(device), real._values().to(device, dtype or real.dtype)
        return SparseTensor(machine, real.shape, indices, values, real.is_coalesced())

    return {
        "aten::_to_copy": from_host,  # of sparse ones on the host
        "aten::_to_sparse": to_sparse,
        "aten::_to_sparse_csr": functools.partial(to_sparse, layout=torch.sparse_csr),
        "aten::_sparse_coo_tensor_with_dims_and_tensors": of_parts,
    }


# -------------------------------------------------------------------- shapes


def select(func: Any, sparse: SparseTensor, dim: int, index: int) -> torch.Tensor:
    """One row, column … (``TensorShape.cpp``, select_sparse)."""
    dim %= sparse.dim()
    indices, values = sparse.parts
    size = [length for place, length in enumerate(sparse.shape) if place != dim]
    if dim >= sparse.sparse_dims:
        picked = values.select(dim - sparse.sparse_dims + 1, index)
        return sparse.like(indices, picked, size, sparse.coalesced)
    if known_values(indices) is None:  # as many in each
        positions = torch.arange(sparse.count // max(1, sparse.shape[dim]), device=indices.device)
    else:
        positions = (indices[dim] == index % sparse.shape[dim]).nonzero().view(-1)
    picked = values.index_select(0, positions)
    if sparse.sparse_dims == 1:
        return picked.sum(0)
    others = torch.tensor([n for n in range(sparse.sparse_dims) if n != dim], device=indices.device)
    return sparse.like(
        indices.index_select(1, positions).index_select(0, others), picked, size, sparse.coalesced
    )


def unbind(func: Any, sparse: SparseTensor, dim: int = 0) -> list[torch.Tensor]:
    """All its rows, one after the other."""
    return [sparse.select(dim, index) for index in range(sparse.shape[dim])]


def unsqueeze(func: Any, sparse: SparseTensor, dim: int) -> SparseTensor:
    """``TensorShape.cpp``, unsqueeze_sparse."""
    dim %= sparse.dim() + 1
    indices, values = sparse.parts
    size = [*sparse.shape[:dim], 1, *sparse.shape[dim:]]
    if dim > sparse.sparse_dims:
        return sparse.like(indices, values.unsqueeze(dim - sparse.sparse_dims + 1), size, sparse.coalesced)
    row = indices.new_zeros((1, sparse.count))
    return sparse.like(torch.cat([indices[:dim], row, indices[dim:]]), values, size, sparse.coalesced)


def cat(func: Any, tensors: Sequence[Any], dim: int = 0) -> Any:
    """``TensorShape.cpp``, cat_sparse."""
    first = tensors[0]
    dim %= first.dim()
    if not all(type(tensor) is SparseTensor for tensor in tensors) or dim >= first.sparse_dims:
        return NotImplemented
    indices = torch.cat([tensor.parts[0] for tensor in tensors], 1)
    values = torch.cat([tensor.parts[1] for tensor in tensors])
    column = offset = 0
    for tensor in tensors:
        if offset:
            indices[dim].narrow(0, column, tensor.count).add_(offset)
        column, offset = column + tensor.count, offset + tensor.shape[dim]
    size = [*first.shape[:dim], offset, *first.shape[dim + 1 :]]
    return first.like(indices, values, size, False)


def stack(func: Any, tensors: Sequence[Any], dim: int = 0) -> Any:
    """``TensorShape.cpp``: a concatenation of what has one dimension more."""
    return torch.cat([tensor.unsqueeze(dim) for tensor in tensors], dim)


def transpose(func: Any, sparse: SparseTensor, first: int = 0, second: int = 1) -> Any:
    """A copy with two rows of indices exchanged."""
    first, second = first % sparse.dim(), second % sparse.dim()
    if max(first, second) >= sparse.sparse_dims:
        return NotImplemented
    size, order = list(sparse.shape), list(range(sparse.sparse_dims))
    size[first], size[second] = size[second], size[first]
    order[first], order[second] = order[second], order[first]
    indices, values = (part.clone() for part in sparse.parts)
    known = known_values(indices)
    if known is not None:
        known.copy_(known[order].clone())
    return sparse.like(indices, values, size, False)


# -------------------------------------------------------------------- arithmetic


def of_values(func: Any, sparse: Any, *rest: Any, **options: Any) -> Any:
    """An operator that leaves zeros as they are: on the values, and coordinates are copied."""
    if any(isinstance(value, torch.Tensor) and value.dim() for value in rest):
        return product(func, sparse, *rest) if func._schema.name == "aten::mul" else NotImplemented
    if not isinstance(sparse, SparseTensor):
        return NotImplemented
    values = func(sparse.parts[1], *rest, **options)
    return sparse if func._schema.is_mutable else sparse.with_values(values)


def product(func: Any, left: Any, right: Any) -> Any:
    """Element by element: ``SparseBinaryOpIntersectionCommon.h`` of two sparse ones."""
    if not (isinstance(left, SparseTensor) and isinstance(right, SparseTensor)):
        sparse, dense = (left, right) if isinstance(left, SparseTensor) else (right, left)
        return sparse.with_values(sparse.parts[1] * _gathered(dense, sparse))
    smaller, larger = sorted((left, right), key=lambda one: one.count)
    numbers = torch.arange(larger.count, device=larger.device)
    hashed = torch.empty_like(numbers)
    found = torch.empty((2, smaller.count), dtype=torch.long, device=larger.device)
    indices = smaller.parts[0].clone()
    values = torch.empty_like(smaller.parts[1], dtype=torch.result_type(left.parts[1], right.parts[1]))
    del numbers, hashed, found
    return smaller.like(indices, values, smaller.shape, smaller.coalesced)


def _gathered(dense: torch.Tensor, sparse: SparseTensor) -> torch.Tensor:
    expanded = dense.expand(sparse.shape)
    return aten.index.Tensor(expanded, list(sparse.parts[0].unbind(0)))


def sparse_mask(func: Any, dense: Any, mask: Any, *rest: Any) -> Any:
    """A dense tensor's values at a sparse one's coordinates."""
    if isinstance(dense, SparseTensor):
        return NotImplemented
    return mask.like(mask.parts[0], _gathered(dense, mask), mask.shape, mask.coalesced)


def add(func: Any, left: Any, right: Any, *, alpha: float = 1) -> Any:
    """To a dense one (``SparseCUDATensorMath.cu``, add_out_dense_sparse_cuda), or both sparse: one list."""
    if isinstance(left, SparseTensor) and isinstance(right, SparseTensor):
        indices = torch.cat([left.parts[0], right.parts[0]], 1)
        return left.like(indices, torch.cat([left.parts[1], right.parts[1]]), left.shape, False)
    if isinstance(left, SparseTensor):
        return NotImplemented  # PyTorch refuses it
    in_place = func._schema.is_mutable
    dtype = torch.result_type(left, right.parts[1])
    values = right.parts[1].to(dtype)
    result = left if in_place and left.dtype == dtype else left.to(dtype, copy=True)
    if not right.coalesced:
        positions = flattened(right.parts[0], right.shape)
        result.view(-1, *left.shape[right.sparse_dims :]).index_add_(0, positions, values)
    else:
        twins.forget_written(aten.add_.Tensor, (result, values), {})
    return left.copy_(result) if in_place and result is not left else result


def to_dense(func: Any, sparse: SparseTensor, dtype: Any = None, *rest: Any, **options: Any) -> Any:
    """Zeros, to which the values are added."""
    dense = torch.zeros(sparse.shape, dtype=sparse.dtype, device=sparse.device)
    return dense.add_(sparse)


def total(func: Any, sparse: SparseTensor, dims: Any = None, keepdim: bool = False, **options: Any) -> Any:
    """``SparseTensorMath.cpp``, _sparse_sum: what is left of the coordinates may stand there twice."""
    indices, values = sparse.parts
    if keepdim or options.get("dtype") not in (None, sparse.dtype):
        return NotImplemented
    summed = sorted(dim % sparse.dim() for dim in ([dims] if isinstance(dims, int) else dims or ()))
    if not summed:
        return values.sum()
    inside = [dim - sparse.sparse_dims + 1 for dim in summed if dim >= sparse.sparse_dims]
    values = values.sum(inside) if inside else values.clone()
    kept = [dim for dim in range(sparse.sparse_dims) if dim not in summed]
    size = [length for dim, length in enumerate(sparse.shape) if dim not in summed]
    if not kept:
        return values.sum(0)
    coordinates = torch.cat([indices[dim : dim + 1] for dim in kept])
    return coalesce(func, sparse.like(coordinates, values, size, False))


def matrix_product(func: Any, *args: Any, **options: Any) -> Any:
    """Of a sparse matrix and a dense one, or two sparse ones; cuSPARSE's workspaces are not counted."""
    left, right = args[-2:] if func._schema.name not in ("aten::addmm", "aten::_sparse_addmm") else args[1:3]
    if not isinstance(left, SparseTensor):
        return NotImplemented
    machine, rows, columns = left.machine, left.shape[0], right.shape[1]
    if left.device.type == "cuda":
        machine.not_modelled(_CUSPARSE, f"not modelled: {_CUSPARSE}")
    left = coalesce(func, left)
    compressed = torch.empty(rows + 1 + 2 * left.count, dtype=torch.int, device=left.device)
    dtype = torch.result_type(left.parts[1], right.parts[1] if isinstance(right, SparseTensor) else right)
    if not isinstance(right, SparseTensor):
        result = torch.empty((rows, columns), dtype=dtype, device=left.device)
        del compressed
        return result
    right = coalesce(func, right)
    machine.guesses.of_shape("elements of a product of sparse matrices", "every element")
    indices = torch.ones(rows, columns, dtype=torch.bool, device=left.device).nonzero().t()
    del compressed
    values = torch.empty(rows * columns, dtype=dtype, device=left.device)
    return left.like(indices.contiguous(), values, (rows, columns), True)


# -------------------------------------------------------------------- the parts, and copies


def copied(func: Any, sparse: SparseTensor, *rest: Any, **options: Any) -> Any:
    """``clone`` and ``to``: both parts; on the host as plain tensors where the values are small or known."""
    dtype, device = options.get("dtype") or sparse.dtype, options.get("device") or sparse.device
    indices, values = sparse.parts
    if func._schema.name == "aten::_to_copy":
        indices, values = indices.to(device), values.to(device, dtype)
    if indices is sparse.parts[0]:
        indices = indices.clone()
    if values is sparse.parts[1]:
        values = values.clone()
    if not isinstance(indices, FakeTensor) and not isinstance(values, FakeTensor):
        return torch.sparse_coo_tensor(indices, values, sparse.shape, is_coalesced=sparse.coalesced)
    if isinstance(sparse, RowsTensor):
        return NotImplemented
    return sparse.like(indices, values, sparse.shape, sparse.coalesced)


def _mark(func: Any, sparse: SparseTensor, coalesced: bool) -> SparseTensor:
    sparse.coalesced = coalesced
    return sparse


def _to_sparse(func: Any, sparse: SparseTensor, *rest: Any, **options: Any) -> Any:
    if options.get("layout") is torch.sparse_csr or func._schema.name == "aten::_to_sparse_csr":
        return RowsTensor.of(coalesce(func, sparse))
    return sparse if options.get("layout") in (None, COO) else NotImplemented


Rule = Callable[..., Any]

RULES: dict[str, Rule] = {
    **dict.fromkeys(_VALUE_WISE, of_values),
    "_indices": lambda func, sparse: sparse.parts[0],
    "indices": lambda func, sparse: sparse.parts[0],
    "_values": lambda func, sparse: sparse.parts[1],
    "values": lambda func, sparse: sparse.parts[1],
    "crow_indices": lambda func, sparse: sparse.rows,
    "col_indices": lambda func, sparse: sparse.parts[0][1],
    "_nnz": lambda func, sparse: sparse.count,
    "is_coalesced": lambda func, sparse: sparse.coalesced,
    "sparse_dim": lambda func, sparse: sparse.sparse_dims,
    "dense_dim": lambda func, sparse: sparse.dim() - sparse.sparse_dims,
    "device": lambda func, sparse: sparse.parts[1].device,
    **dict.fromkeys(
        ("detach", "alias"),
        lambda func, sparse: sparse.like(*sparse.parts, sparse.shape, sparse.coalesced),
    ),
    "_coalesced_": _mark,
    "_coalesce": coalesce,
    "_to_sparse": _to_sparse,
    "_to_sparse_csr": _to_sparse,
    "_to_dense": to_dense,
    "_to_copy": copied,
    "clone": copied,
    "select": select,
    "unbind": unbind,
    "unsqueeze": unsqueeze,
    "cat": cat,
    "stack": stack,
    "t": transpose,
    "transpose": transpose,
    "add": add,
    "add_": add,
    "sum": total,
    "_sparse_sum": total,
    "sparse_mask": sparse_mask,
    **dict.fromkeys(("mm", "addmm", "_sparse_addmm", "_sparse_mm", "_sparse_sparse_matmul"), matrix_product),
}
"""By the operator's name, with the operator first; NotImplemented where a case is not modelled."""
