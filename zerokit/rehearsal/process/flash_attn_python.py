"""What ``flash_attn`` offers in Python beside its kernels: padding, collectives, rotary embeddings, the loss.

Allocations are those of flash-attn 2.8.3 (files named at each); Triton kernels read and write as there.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import distributed
from torch.nn.functional import pad

NO_LABEL = -100


# -------------------------------------------------------------------- bert_padding


def index_first_axis(tensor: Any, indices: Any) -> Any:
    """Rows of a tensor."""
    return tensor[indices]


def index_first_axis_residual(tensor: Any, indices: Any) -> Any:
    """Rows of a tensor, and itself."""
    return tensor[indices], tensor


def index_put_first_axis(values: Any, indices: Any, first_axis_dim: int) -> Any:
    """Rows among others that are zero."""
    output = values.new_zeros(first_axis_dim, *values.shape[1:])
    output[indices] = values
    return output


def unpad_input(hidden_states: Any, attention_mask: Any, unused_mask: Any = None) -> Any:
    """Tokens without padding, their positions, cumulated lengths, the longest, and each sequence's tokens."""
    kept = attention_mask if unused_mask is None else attention_mask + unused_mask
    used = attention_mask.sum(dim=-1, dtype=torch.int32)
    lengths = used if unused_mask is None else kept.sum(dim=-1, dtype=torch.int32)
    return (*_unpadded(hidden_states, kept, lengths), used)


def unpad_input_for_concatenated_sequences(hidden_states: Any, attention_mask_in_length: Any) -> Any:
    """Unpad as :func:`unpad_input` does, where the mask of a row holds the lengths of the sequences in it."""
    totals = attention_mask_in_length.sum(dim=-1, keepdim=True)
    positions = torch.arange(attention_mask_in_length.shape[-1], device=totals.device)
    flat = attention_mask_in_length.flatten()
    return _unpadded(hidden_states, positions < totals, flat[torch.nonzero(flat).flatten()])


def _unpadded(hidden_states: Any, kept: Any, lengths: Any) -> tuple[Any, Any, Any, Any]:
    positions = torch.nonzero(kept.flatten(), as_tuple=False).flatten()
    longest = lengths.max().item()
    cumulated = pad(torch.cumsum(lengths, dim=0, dtype=torch.int32), (1, 0))
    return hidden_states.flatten(0, 1)[positions], positions, cumulated, longest


def pad_input(hidden_states: Any, indices: Any, batch: int, seqlen: int) -> Any:
    """The reverse of :func:`unpad_input`."""
    return index_put_first_axis(hidden_states, indices, batch * seqlen).unflatten(0, (batch, seqlen))


# -------------------------------------------------------------------- utils/distributed


def all_gather_raw(input_: Any, process_group: Any, async_op: bool = False) -> Any:
    """Gather from all ranks along the first dimension, and the handle."""
    ranks = distributed.get_world_size(process_group)
    output = input_.new_empty(ranks * input_.shape[0], *input_.shape[1:])
    dense = input_.contiguous()
    return output, distributed.all_gather_into_tensor(output, dense, process_group, async_op)


def reduce_scatter_raw(input_: Any, process_group: Any, async_op: bool = False) -> Any:
    """This rank's part of the sum along the first dimension, and the handle."""
    ranks = distributed.get_world_size(process_group)
    output = input_.new_empty(input_.shape[0] // ranks, *input_.shape[1:])
    dense = input_.contiguous()
    return output, distributed.reduce_scatter_tensor(output, dense, group=process_group, async_op=async_op)


def all_reduce_raw(input_: Any, process_group: Any, async_op: bool = False) -> Any:
    """The sum in place, and the handle."""
    dense = input_.contiguous()
    return dense, distributed.all_reduce(dense, group=process_group, async_op=async_op)


def _collective(collective: Any, of_gradient: Any) -> Any:
    """A collective with its gradient's; None: the gradient goes through as it is."""

    class Collective(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, input_: Any, process_group: Any) -> Any:
            ctx.process_group = process_group
            return collective(input_, process_group)[0]

        @staticmethod
        def backward(ctx: Any, *gradients: Any) -> Any:
            if of_gradient is None:
                return gradients[0], None
            return of_gradient(gradients[0], ctx.process_group)[0], None

    return Collective


AllGatherFunc = _collective(all_gather_raw, reduce_scatter_raw)
ReduceScatterFunc = _collective(reduce_scatter_raw, all_gather_raw)
AllReduceFunc = _collective(all_reduce_raw, None)
all_gather, reduce_scatter, all_reduce = AllGatherFunc.apply, ReduceScatterFunc.apply, AllReduceFunc.apply


def sync_shared_params(model: Any, process_group: Any) -> None:
    """Broadcast the group's first rank's."""
    source = distributed.get_global_rank(process_group, 0)
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            if name and getattr(parameter, "_shared_params", False):
                distributed.broadcast(parameter, src=source, group=process_group)


def allreduce_sequence_parallel_grad(model: Any, process_group: Any) -> None:
    """Sum the gradients of parameters that every rank of a sequence holds."""
    shared = [p.grad for p in model.parameters() if getattr(p, "_sequence_parallel", False)]
    if shared:
        with torch.no_grad():
            flat = torch._utils._flatten_dense_tensors(shared)
            distributed.all_reduce(flat, group=process_group)
            for own, summed in zip(shared, torch._utils._unflatten_dense_tensors(flat, shared), strict=True):
                own.copy_(summed)


def get_dim_for_local_rank(dim: int, world_size: int, local_rank: int, multiple_of: int = 1) -> int:
    """A rank's part of a dimension, in multiples; the first ranks have one more where it is uneven."""
    whole, rest = divmod(dim // multiple_of, world_size)
    return (whole + (local_rank < rest)) * multiple_of


# -------------------------------------------------------------------- layers/rotary, ops/triton/rotary


def apply_rotary(
    x: Any, cos: Any, sin: Any, seqlen_offsets: Any = 0, cu_seqlens: Any = None, max_seqlen: Any = None,
    interleaved: bool = False, inplace: bool = False, conjugate: bool = False,
) -> Any:  # fmt: skip
    """A tensor like ``x``, or itself (ops/triton/rotary.py)."""
    return x.mul_(1) if inplace else x.clone()


class ApplyRotaryEmb(torch.autograd.Function):
    """Keeps no more than the tables (layers/rotary.py:38)."""

    @staticmethod
    def forward(ctx: Any, x: Any, cos: Any, sin: Any, inplace: bool) -> Any:
        """Turn."""
        ctx.inplace = inplace
        ctx.save_for_backward(cos, sin)
        if inplace:
            ctx.mark_dirty(x)
        return apply_rotary(x, cos, sin, inplace=inplace)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        """Turn back."""
        cos, sin = ctx.saved_tensors
        return apply_rotary(gradients[0], cos, sin, inplace=ctx.inplace), None, None, None


def apply_rotary_emb(
    x: Any, cos: Any, sin: Any, interleaved: bool = False, inplace: bool = False, seqlen_offsets: Any = 0,
    cu_seqlens: Any = None, max_seqlen: Any = None,
) -> Any:  # fmt: skip
    """Rotate query or key."""
    return ApplyRotaryEmb.apply(x, cos, sin, inplace)


apply_rotary_emb_func = apply_rotary_emb


# -------------------------------------------------------------------- losses, ops/triton/cross_entropy


class FusedCrossEntropy(torch.autograd.Function):
    """Losses, their log-sum-exps and z-losses in fp32; of the logits a copy at most, in backward
    (ops/triton/cross_entropy.py:150)."""

    @staticmethod
    def forward(ctx: Any, logits: Any, labels: Any, inplace_backward: bool) -> Any:
        """One pass over the logits."""
        logits = logits if logits.stride(-1) == 1 else logits.contiguous()
        losses, log_sum_exp, z_losses = (
            torch.empty(logits.shape[0], dtype=torch.float32, device=logits.device) for _ in range(3)
        )
        torch.sum(logits, -1, dtype=torch.float32, out=losses)
        ctx.save_for_backward(logits, log_sum_exp, labels)
        ctx.mark_non_differentiable(z_losses)
        ctx.inplace_backward = inplace_backward
        return losses, z_losses

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        """One more, which writes as much."""
        logits = ctx.saved_tensors[0]
        return logits.mul_(1) if ctx.inplace_backward else logits.clone(), None, None


def cross_entropy_loss(
    logits: Any, labels: Any, precomputed_lse: Any = None, label_smoothing: float = 0.0,
    logit_scale: float = 1.0, lse_square_scale: float = 0.0, ignore_index: int = NO_LABEL,
    inplace_backward: bool = False, process_group: Any = None,
) -> Any:  # fmt: skip
    """Losses and z-losses of each row."""
    if process_group is not None and distributed.get_world_size(process_group) > 1:
        raise NotImplementedError("cross_entropy_loss over several ranks has no stand-in")
    return FusedCrossEntropy.apply(logits, labels, inplace_backward)


class CrossEntropyLoss(torch.nn.Module):
    """The same as a module (losses/cross_entropy.py)."""

    def __init__(
        self, ignore_index: int = NO_LABEL, reduction: str = "mean", label_smoothing: float = 0.0,
        logit_scale: float = 1.0, lse_square_scale: float = 0.0, inplace_backward: bool = False,
        process_group: Any = None, return_z_loss: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        self.ignore_index, self.reduction, self.return_z_loss = ignore_index, reduction, return_z_loss
        self.inplace_backward, self.process_group = inplace_backward, process_group

    def forward(self, input: Any, target: Any, precomputed_lse: Any = None) -> Any:
        """The loss, and the z-loss where that was asked for."""
        both = cross_entropy_loss(
            input, target, inplace_backward=self.inplace_backward, process_group=self.process_group
        )
        if self.reduction != "none":
            both = tuple(part.sum() for part in both)
        if self.reduction == "mean":
            both = tuple(part / (target != self.ignore_index).sum() for part in both)
        return both if self.return_z_loss else both[0]
