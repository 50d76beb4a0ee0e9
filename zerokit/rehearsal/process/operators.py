"""Operators as the rehearsal knows them: one row each, read by the mode, the recorder and the phases.

An operator without a row has the shapes that FakeTensor says, takes nothing beside its results and runs one
kernel. An operator is called by its name in ``aten`` (``add_``).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from zerokit.rehearsal.order import FakeGpu
from zerokit.rehearsal.process import answers, operator_facts, temporaries
from zerokit.rehearsal.process.machine import Machine
from zerokit.rehearsal.process.operator_facts import Moved, memory_bytes, total
from zerokit.rehearsal.process.temporaries import Arguments, Blocks
from zerokit.trace.sdpa_workspaces import CUDNN_FORWARD_BYTES

_RANDOM = ("rand", "normal", "bernoulli", "native_dropout")
_FP8_CAPABILITY = (8, 9)


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """What is known of one, whatever its arguments.

    Attributes:
        answer: gives values to the host, or has results whose size depends on values.
        before: blocks that it takes before its results, and keeps until it has them.
        after: blocks that it takes once it has its results: some live together, then others.
        order: the tensors of its result in the order in which they are allocated; empty: as they stand.
        reduces: where its dimensions stand among the arguments, and the size of a partial result.
        work: its FLOPs and bytes; ``moves``: its bytes, kernels and whether the host waits for it; without
            either, all inputs are read and all outputs written.
        overloads: results of overloads for which some PyTorch versions have no shape rule of their own.
        runs_as: the operators that a GPU runs in its place.
    """

    factory: bool = False  # makes a tensor of its arguments alone
    large_on_host: bool = False  # of a factory: a large tensor on the host is fake, too
    empty: bool = False  # its result's values are those that are written into it later
    filled: bool = False  # its result holds a constant, which is what a kernel finds that writes there
    overwrites: bool = False  # its first argument's values are the second's afterwards
    write_only: bool = False  # its first argument is not read
    drawn: bool = False  # its result is a choice among unknown values
    cheap: bool = False  # cheap on a CPU: results of large data keep their values (views do too)
    view: bool = False  # changes no more than how memory is seen
    unseen: bool = False  # a question that only fake tensors send through the dispatcher
    waits: bool = False  # the host waits for the result, or for its size
    cublas: bool = False
    fp8: bool = False  # a product of FP8 factors with their scales (``native/cuda/ScaledBlas.cpp``)
    cudnn: bool = False  # what cuDNN takes is counted by :mod:`zerokit.rehearsal.process.kernels.cudnn`
    sparse: bool = False  # may make sparse tensors: :mod:`zerokit.rehearsal.process.kernels.sparse`
    answer: answers.Answer | None = None
    before: Callable[[Arguments], Blocks] | None = None
    after: Callable[[Arguments, FakeGpu], tuple[Blocks, ...]] | None = None
    order: tuple[int, ...] = ()
    reduces: tuple[int, Callable[[torch.Tensor], int]] | None = None
    work: operator_facts.Work | None = None
    moves: operator_facts.Moves | None = None
    overloads: Mapping[str, Callable[[Machine, Arguments, dict[str, Any]], Any]] = field(default_factory=dict)
    runs_as: Callable[..., Any] | None = None


# -------------------------------------------------------------------- parts of rows


def _product(left: int, right: int) -> Mapping[str, Callable[[Machine, Arguments, dict[str, Any]], Any]]:
    """The overloads of a product with ``out_dtype`` (``native/cuda/Blas.cpp``), whose factors stand there.
    PyTorch 2.11 takes ``addmm``'s decomposition for ``addmm.dtype``, with the dtype as beta."""

    def rule(machine: Machine, args: Arguments, kwargs: dict[str, Any]) -> torch.Tensor:
        factors = args[left], args[right]
        dtype = kwargs.get("out_dtype") or next(value for value in args if isinstance(value, torch.dtype))
        shape = (*factors[0].shape[:-1], factors[1].shape[-1])
        return machine.empty(shape, dtype, factors[0].fake_device)

    return {"dtype": rule, "dtype_out": lambda machine, args, kwargs: kwargs["out"]}


def _grouped(machine: Machine, args: Arguments, kwargs: dict[str, Any]) -> torch.Tensor:
    """The result of a product of groups, which CUDA takes in 32 and both kinds of 16 bits, and FakeTensor in
    bf16 alone (``native/GroupedMMUtils.h``, PyTorch 2.13: _grouped_mm_validate_inputs and
    create_grouped_gemm_output_tensor)."""
    left, right, offsets = operator_facts.grouped(args, kwargs)
    for factor in (left, right):
        *_, rows, columns = factor.shape
        (*_, by_row, by_column), step = factor.stride(), 16 // factor.element_size()
        if factor.dtype not in (torch.float32, torch.float16, torch.bfloat16) or factor.dtype != left.dtype:
            raise RuntimeError(f"Expected Float32, BFloat16 or Float16 matrices, got {factor.dtype}")
        is_transposed = by_row == 1 and by_column >= rows
        wide = by_column if is_transposed else by_row
        if wide % step or not (is_transposed or (by_column == 1 and by_row >= columns)):
            raise RuntimeError("strides should be multiple of 16 bytes")
    if right.dim() == 3 and left.shape[-1] != right.shape[-2]:
        raise RuntimeError("contraction dimension of mat_a and mat_b must match")
    lead = (
        left.shape[:-1] if right.dim() == 3 else (*(() if left.dim() == 3 else offsets.shape), left.shape[-2])
    )
    step = 16 // left.element_size()
    result = machine.empty((*lead, -(-right.shape[-1] // step) * step), left.dtype, left.fake_device)
    return result.narrow(-1, 0, right.shape[-1])


def _safe_softmax(scores: torch.Tensor, dim: int, dtype: torch.dtype | None = None) -> torch.Tensor:
    """Rows that are masked whole become zeros (``native/transformers/attention.cpp``), in place, as the
    allocations of PyTorch 2.11 on an H200 show."""
    out = torch.softmax(scores, dim, dtype=dtype)
    masked = scores.eq(-torch.inf)
    masked_rows = masked.all(dim, keepdim=True)
    zero = torch.zeros((), dtype=out.dtype, device=out.device)
    return out.masked_fill_(masked_rows, zero)


def _sums(tensor: torch.Tensor) -> int:
    return 8 if tensor.dtype in (torch.float64, torch.int64) else 4


def _with_positions(tensor: torch.Tensor) -> int:
    return 16


def _rows(row: Operator, names: str) -> dict[str, Operator]:
    return dict.fromkeys(names.split(), row)


_GATHER = operator_facts.gather
_CUDNN_ATTENTION = "_scaled_dot_product_cudnn_attention"

OPERATORS: Mapping[str, Operator] = {
    # factories, and what writes whole tensors
    **_rows(Operator(empty=True, factory=True, large_on_host=True), "empty empty_strided"),
    **_rows(Operator(empty=True, factory=True), "new_empty"),
    **_rows(Operator(empty=True), "empty_like new_empty_strided empty_permuted"),
    **_rows(Operator(filled=True, factory=True, large_on_host=True), "zeros ones full"),
    **_rows(Operator(filled=True), "zeros_like ones_like full_like new_zeros new_ones new_full"),
    **_rows(Operator(factory=True, large_on_host=True), "rand randn"),
    **_rows(Operator(factory=True), "arange scalar_tensor linspace eye randint randperm"),
    **_rows(Operator(overwrites=True, write_only=True), "fill_ zero_"),
    **_rows(Operator(overwrites=True, write_only=True, answer=answers.copy_into), "copy_"),
    **_rows(Operator(write_only=True), "normal_ uniform_ random_ bernoulli_ exponential_"),
    # views, and questions
    **_rows(
        Operator(view=True),
        "_unsafe_view _reshape_alias detach detach_ lift lift_fresh alias set_ resize_ squeeze_ unsqueeze_ "
        "t_ transpose_ as_strided_ resize_as_ requires_grad_",
    ),
    # the ledger follows streams by itself
    **_rows(Operator(view=True, answer=lambda machine, func, args, kwargs: None), "record_stream"),
    **_rows(
        Operator(view=True, answer=lambda machine, func, args, kwargs: machine.is_pinned(args[0])),
        "is_pinned",
    ),
    **_rows(
        Operator(view=True, answer=lambda machine, func, args, kwargs: machine.pin(args[0])),
        "_pin_memory pin_memory",
    ),
    **_rows(Operator(view=True, answer=answers.sdp_choice), "_fused_sdp_choice"),
    **_rows(Operator(unseen=True, answer=answers.device), "device"),
    **_rows(Operator(unseen=True), "is_same_size sym_size _has_same_storage_numel"),
    # values to the host, and sizes from values
    **_rows(Operator(waits=True, answer=answers.item), "_local_scalar_dense"),
    **_rows(Operator(waits=True, answer=answers.equal), "equal allclose"),
    **_rows(
        Operator(waits=True, answer=answers.sized_by_values),
        "nonzero masked_select _unique2 unique_dim unique_consecutive repeat_interleave bincount argwhere",
    ),
    **_rows(Operator(answer=answers.unscale), "_amp_foreach_non_finite_check_and_unscale_"),
    **_rows(Operator(cheap=True, sparse=True, answer=answers.copy_to), "_to_copy"),
    **_rows(Operator(sparse=True), "_to_sparse _to_sparse_csr _sparse_coo_tensor_with_dims_and_tensors"),
    **_rows(
        Operator(cheap=True),
        "clone contiguous eq ne lt le gt ge isnan isfinite logical_not any all add sub mul div where cat "
        "stack",
    ),
    # choices and reductions
    **_rows(Operator(drawn=True), "multinomial topk sort argsort"),
    **_rows(Operator(drawn=True, reduces=(1, _with_positions)), "argmax"),
    **_rows(Operator(reduces=(1, _with_positions)), "argmin var std var_mean"),
    **_rows(Operator(cheap=True, reduces=(1, _sums)), "sum mean"),
    **_rows(Operator(cheap=True, reduces=(1, torch.Tensor.element_size)), "amax amin"),
    **_rows(Operator(reduces=(2, _sums)), "linalg_vector_norm norm"),
    # positions
    **_rows(Operator(moves=_GATHER, answer=answers.index), "index"),
    **_rows(Operator(moves=_GATHER), "embedding index_select gather take_along_dim"),
    **_rows(
        Operator(moves=operator_facts.write_at),
        "index_put_ _index_put_impl_ index_add_ scatter_ scatter_add_",
    ),
    **_rows(  # a new tensor, a part of which is another's
        Operator(
            moves=lambda name, args, inputs, outputs: Moved(
                total(inputs), total(outputs) + memory_bytes(inputs[0]), 2
            )
        ),
        "slice_backward select_backward index_put scatter index_add scatter_add",
    ),
    # positions are expanded over a batch as a rule
    **_rows(
        Operator(
            before=temporaries.dense_copies, after=temporaries.embedding_backward,
            # a sort of the positions, then the sums (EmbeddingBackwardKernel.cu)
            moves=lambda name, args, inputs, outputs: Moved(2 * memory_bytes(args[0]), total(outputs), 8),
        ),
        "embedding_dense_backward",
    ),
    # norms, losses and their like
    **_rows(Operator(before=temporaries.rolled), "roll"),
    **_rows(Operator(before=temporaries.dense_copies), "native_layer_norm native_layer_norm_backward"),
    # ``native/cuda/SoftMax.cu``, host_softmax and host_softmax_backward
    **_rows(Operator(after=temporaries.dense_inputs(1)), "_log_softmax _softmax"),
    **_rows(Operator(after=temporaries.dense_inputs(2)), "_log_softmax_backward_data"),
    **_rows(Operator(after=temporaries.softmax_backward), "_softmax_backward_data"),
    **_rows(Operator(runs_as=_safe_softmax), "_safe_softmax"),
    # one value of each row; backward in a tensor of zeros
    **_rows(
        Operator(moves=lambda name, args, inputs, outputs: Moved(16 * args[0].shape[0], 8)),
        "nll_loss_forward",
    ),
    **_rows(
        Operator(moves=lambda name, args, inputs, outputs: Moved(16 * args[1].shape[0], total(outputs), 2)),
        "nll_loss_backward",
    ),
    # the mask of a dropout comes first (``native/cuda/Dropout.cu``, dropout_cuda)
    **_rows(Operator(order=(1, 0)), "native_dropout"),
    # products
    **_rows(
        Operator(cublas=True, work=operator_facts.product, overloads=_product(0, 1)), "mm bmm"
    ),
    **_rows(
        Operator(cublas=True, work=operator_facts.product, overloads=_product(1, 2)), "addmm baddbmm"
    ),
    **_rows(Operator(cublas=True, work=operator_facts.product), "addmm_ baddbmm_"),
    **_rows(
        Operator(cublas=True, work=operator_facts.grouped_product, overloads={"default": _grouped}),
        "_grouped_mm",
    ),
    **_rows(Operator(cublas=True), "linear"),
    **_rows(Operator(cublas=True, fp8=True, work=operator_facts.product), "_scaled_mm _scaled_mm_v2"),
    **_rows(Operator(work=operator_facts.product), "_int_mm"),
    **_rows(Operator(cudnn=True, work=operator_facts.convolution), "convolution convolution_backward"),
    **_rows(
        Operator(cudnn=True),
        "native_batch_norm _native_batch_norm_legit cudnn_batch_norm native_batch_norm_backward "
        "cudnn_batch_norm_backward",
    ),
    # attention; of cuDNN's, seed and offset of the dropout are there without one, too
    # (``_scaled_dot_product_cudnn_attention_cuda``)
    **_rows(
        Operator(
            work=operator_facts.attention, order=(6, 7, 0, 1),
            after=lambda args, gpu: ((CUDNN_FORWARD_BYTES,),),
        ),
        _CUDNN_ATTENTION,
    ),
    **_rows(
        Operator(work=operator_facts.attention, after=temporaries.cudnn_backward),
        f"{_CUDNN_ATTENTION}_backward",
    ),
    **_rows(
        Operator(work=operator_facts.attention),
        "_scaled_dot_product_flash_attention _scaled_dot_product_efficient_attention "
        "_flash_attention_forward",
    ),
    **_rows(
        Operator(work=operator_facts.attention, after=temporaries.flash_backward),
        "_scaled_dot_product_flash_attention_backward",
    ),
    **_rows(
        Operator(work=operator_facts.attention, after=temporaries.efficient_backward),
        "_scaled_dot_product_efficient_attention_backward",
    ),
    **_rows(
        Operator(work=operator_facts.attention, after=temporaries.flash_package_backward),
        "_flash_attention_backward",
    ),
}  # fmt: skip
_OTHER = Operator()
_EFFICIENT = "_scaled_dot_product_efficient_attention"
_EFFICIENT_DROPOUT = 5


class Known:
    """What is known of an operator (``torch._ops.OpOverload``) before its arguments are.

    Attributes:
        name: ``add_`` of ``aten::add_.Tensor``; ``full_name``: with namespace and overload, as
            ``torch.library`` has it.
        is_view: whether its result shares memory with an input. writes_first: whether it changes its first.
        takes_blocks: whether it may take memory beside its results.
        rule: the result of an overload without a shape rule.
    """

    def __init__(self, func: Any) -> None:
        schema, overload = func._schema, func._overloadname
        self.func = func
        self.name: str = schema.name.split("::")[1]
        self.full_name: str = schema.name if overload == "default" else f"{schema.name}.{overload}"
        self.row = row = OPERATORS.get(self.name, _OTHER)
        self.rule = row.overloads.get(overload)
        self.is_mutable: bool = schema.is_mutable
        self.writes_first = self.is_mutable and self.name.endswith("_")
        self.is_view = any(
            output.alias_info is not None and not output.alias_info.is_write for output in schema.returns
        )
        self.is_random = self.name.startswith(_RANDOM)
        self.takes_blocks = any(one is not None for one in (row.before, row.after, row.reduces))
        self.is_sparse = row.sparse and func.namespace == "aten" and overload == "default"
        self.cheap = row.cheap or self.is_view
        self.unseen = row.unseen or func.namespace == "prim"
        self.views = row.view or self.is_view

    @functools.cached_property
    def comes_apart(self) -> bool:
        """Whether a GPU runs it as its parts: autograd's keys take it apart as a rule, but not in inference
        mode and not below another tensor's dispatch (DTensor's random states)."""
        has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key(self.func.name(), "CUDA")
        return bool(self.func._can_decompose()) and not has_kernel


_known: dict[int, Known] = {}


def facts(func: Any) -> Known:
    """What is known of an operator. By identity: an operator's own hash takes as long as all the rest."""
    found = _known.get(id(func))
    if found is None:
        found = _known[id(func)] = Known(func)
    return found


def known(name: str) -> Operator:
    """An operator's row, or that of all others."""
    return OPERATORS.get(name, _OTHER)


def refuse_fp8(capability: tuple[int, int]) -> None:
    """Raise what PyTorch raises of products in FP8 on a GPU without them (``ScaledBlas.cpp``,
    _scaled_mm_allowed_device)."""
    if capability < _FP8_CAPABILITY:
        raise RuntimeError(
            "torch._scaled_mm is only supported on CUDA devices with compute capability >= 9.0 or 8.9, or "
            "ROCm MI300+"
        )


def first(name: str, args: Arguments) -> Blocks:
    """Blocks that an operator takes before its results, and keeps until it has them."""
    before = known(name).before
    return before(args) if before is not None else ()


def afterwards(name: str, args: Arguments, gpu: FakeGpu) -> tuple[Blocks, ...]:
    """Blocks that an operator takes once it has its results: some live together, then others."""
    row = known(name)
    if row.after is not None:
        return row.after(args, gpu)
    if row.reduces is None:
        return ()
    position, accumulator = row.reduces
    partial = temporaries.reduction_blocks(args, position, accumulator(args[0]), gpu)
    return (partial,) if partial else ()


def in_order_of_allocation(name: str, args: Arguments, result: Any) -> Sequence[Any]:
    """The tensors of an operator's result that it allocates, in that order."""
    if isinstance(result, torch.Tensor):
        return (result,)
    leaves: list[Any] = tree_leaves(result)
    if order := known(name).order:
        return [leaves[index] for index in order]
    if name == _EFFICIENT and not (len(args) > _EFFICIENT_DROPOUT and args[_EFFICIENT_DROPOUT]):
        return leaves[:2]  # seed and offset are on the host where nothing is drawn
    return leaves
