"""Shard a model's linear layers as DeepSpeed's AutoTP does for training.

Which layers are cut along their inputs (and all-reduced) and which along their outputs follows
``deepspeed/module_inject/auto_tp.py`` (``tp_parser``, ``_replace``, 0.19.8); the layers behave as
``LinearLayer`` and ``LinearAllreduce`` of ``module_inject/layers.py``, without the collectives.
"""

from __future__ import annotations

from types import MethodType
from typing import Any

import torch
from torch import nn

from zerokit.errors import InputError

ROW_PARALLEL = ("o_proj", "out_proj", "down_proj", "fc2", "dense_4h_to_h", "w2", "wo", "dense")
"""Name endings of the layers that end a block: cut along their inputs."""

REPLICATED = ("q_a_proj", "kv_a_proj_with_mqa", "gate", "shared_expert_gate", "router")
"""Left whole on every rank."""

HEADS = ("lm_head", "embed_out")

IGNORED = -100
"""Label of positions without a loss."""


class _Gather(torch.autograd.Function):
    """``GatherFromTensorParallelRegion``: an all-gather buffer, then the shards side by side."""

    @staticmethod
    def forward(ctx: Any, tensor: Any, degree: int) -> Any:
        ctx.degree = degree
        tensor = tensor.contiguous()
        buffer = tensor.new_empty((degree * tensor.shape[0], *tensor.shape[1:]))
        shards = buffer.view(degree, *tensor.shape)
        return torch.cat([shards[i] for i in range(degree)], dim=-1)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return grad.narrow(-1, 0, grad.shape[-1] // ctx.degree).contiguous(), None


class _VocabularyLoss(torch.autograd.Function):
    """``_VocabParallelCrossEntropy`` (deepspeed/sequence/cross_entropy.py:61, 0.19.8), no all-reduces:
    each rank keeps the exponentials of its share of the vocabulary in fp32."""

    @staticmethod
    def forward(ctx: Any, logits: Any, target: Any) -> Any:
        wide = logits.float()
        highest = wide.amax(dim=-1)
        exponentials = torch.exp(wide - highest.unsqueeze(-1))
        total = exponentials.sum(dim=-1)
        valid = target != IGNORED
        inside = valid & (target < wide.shape[-1])
        local = target.clamp(min=0, max=wide.shape[-1] - 1)
        target_logits = wide.gather(-1, local.unsqueeze(-1)).squeeze(-1)
        target_logits = torch.where(inside, target_logits, torch.zeros_like(target_logits))
        loss = torch.log(total) + highest - target_logits
        loss = torch.where(valid, loss, torch.zeros_like(loss))
        ctx.save_for_backward(exponentials, total, local, inside, valid)
        ctx.dtype = logits.dtype
        return loss

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        exponentials, total, local, inside, valid = ctx.saved_tensors
        result = exponentials / total.unsqueeze(-1)
        result.scatter_add_(-1, local.unsqueeze(-1), -inside.unsqueeze(-1).to(dtype=result.dtype))
        result *= valid.unsqueeze(-1).to(dtype=result.dtype)
        result *= grad.to(dtype=result.dtype).unsqueeze(-1)
        return result.to(dtype=ctx.dtype), None


def _vocabulary_loss(logits: Any, labels: Any, vocab_size: Any = None, **_: Any) -> Any:
    """``VocabParallelCausalLMLoss`` (cross_entropy.py:394): labels and logits are shifted by copies."""
    target = labels[..., 1:].contiguous()
    logits = logits[..., :-1, :].contiguous()
    loss = _VocabularyLoss.apply(logits, target)
    return loss.sum() / (target != IGNORED).sum().to(dtype=loss.dtype).clamp_min(1)


def _matmul(layer: nn.Linear, tensor: torch.Tensor) -> torch.Tensor:
    output = torch.matmul(tensor, layer.weight.transpose(-1, -2))
    return output if layer.bias is None else output + layer.bias


def _cut(parameter: nn.Parameter, dim: int, degree: int, name: str) -> None:
    if parameter.shape[dim] % degree:
        raise InputError(
            f"⟨tp⟩ {degree}: {name} has {parameter.shape[dim]} rows, which {degree} does not divide"
        )
    shape = list(parameter.shape)
    shape[dim] //= degree
    parameter.data = torch.empty(shape, dtype=parameter.dtype, device=parameter.device)


def _shard_head(model: nn.Module, name: str, head: nn.Linear, degree: int) -> None:
    embedding = next(
        (m for m in model.modules() if isinstance(m, nn.Embedding) and m.weight is head.weight), None
    )
    if embedding is None:
        _cut(head.weight, 0, degree, name)
        head.forward = MethodType(lambda self, x: _Gather.apply(_matmul(self, x), degree), head)
        return
    # a tied head stays cut along the vocabulary, and so do the embedding and the loss
    _cut(head.weight, 0, degree, name)
    head.forward = MethodType(_matmul, head)
    embedding.forward = MethodType(_embed, embedding)
    model.loss_function = _vocabulary_loss


def _embed(layer: nn.Embedding, ids: torch.Tensor) -> torch.Tensor:
    """``VocabParallelEmbedding``: rows of other ranks are zeroed before the all-reduce."""
    outside = ids >= layer.weight.shape[0]
    embedded = torch.nn.functional.embedding(ids.masked_fill(outside, 0), layer.weight)
    return embedded.masked_fill(outside.unsqueeze(-1), 0.0)


def shard(model: nn.Module, degree: int) -> None:
    """Cut the model's linear layers for one of ``degree`` ranks, in place (meta tensors). Raises InputError:
    the model has no linear layers that can be cut, or a size does not divide."""
    count = 0
    for name, module in list(model.named_modules()):
        last = name.rpartition(".")[2]
        if not isinstance(module, nn.Linear) or last in REPLICATED:
            continue
        count += 1
        if last in HEADS:
            _shard_head(model, name, module, degree)
            continue
        row = last in ROW_PARALLEL
        _cut(module.weight, 1 if row else 0, degree, name)
        if module.bias is not None and not row:
            _cut(module.bias, 0, degree, name)
        module.forward = MethodType(_matmul, module)
    if not count:
        raise InputError(f"⟨tp⟩ {degree}: AutoTP cuts torch.nn.Linear layers, and this model has none")
