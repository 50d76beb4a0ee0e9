"""What ``flash_attn`` offers, by PyTorch's own copy of the same kernels.

``aten::_flash_attention_forward`` and its backward take the same layout (batch, sequence, heads, dim), save
the same tensors and allocate the same workspaces (``csrc/flash_attn/flash_api.cpp``, mha_fwd and mha_bwd, of
which PyTorch's ``native/transformers/cuda/flash_attn/flash_api.cpp`` is a copy).
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.functional import pad

from zerokit.rehearsal.process import temporaries, twins
from zerokit.rehearsal.process.machine import Machine

Lengths = tuple[Any, Any, int, int]
"""Of sequences that lie one behind the other, cumulated, or None; and the longest of queries and of keys."""
MACHINES: list[Machine] = []
"""The one that this process rehearses."""


def flash_attn_func(
    q: Any, k: Any, v: Any, dropout_p: float = 0.0, softmax_scale: float | None = None,
    causal: bool = False, window_size: tuple[int, int] = (-1, -1), **options: Any,
) -> Any:  # fmt: skip
    """Of shapes (batch, sequence, heads, dim)."""
    lengths = None, None, q.shape[1], k.shape[1]
    return _attention((q, k, v), lengths, dropout_p, softmax_scale, causal, window_size, options)


def flash_attn_varlen_func(
    q: Any, k: Any, v: Any, cu_seqlens_q: Any, cu_seqlens_k: Any, max_seqlen_q: Any, max_seqlen_k: Any,
    dropout_p: float = 0.0, softmax_scale: float | None = None, causal: bool = False,
    window_size: tuple[int, int] = (-1, -1), **options: Any,
) -> Any:  # fmt: skip
    """Of shapes (tokens, heads, dim)."""
    lengths = cu_seqlens_q, cu_seqlens_k, int(max_seqlen_q), int(max_seqlen_k)
    return _attention((q, k, v), lengths, dropout_p, softmax_scale, causal, window_size, options)


def flash_attn_qkvpacked_func(qkv: Any, *args: Any, **kwargs: Any) -> Any:
    """Query, key and value in one tensor."""
    return flash_attn_func(*qkv.unbind(-3), *args, **kwargs)


def flash_attn_kvpacked_func(q: Any, kv: Any, *args: Any, **kwargs: Any) -> Any:
    """Key and value in one tensor."""
    return flash_attn_func(q, *kv.unbind(-3), *args, **kwargs)


def flash_attn_varlen_qkvpacked_func(
    qkv: Any, cu_seqlens: Any, max_seqlen: Any, *args: Any, **kwargs: Any
) -> Any:
    """Query, key and value in one tensor."""
    query, key, value = qkv.unbind(-3)
    lengths = cu_seqlens, cu_seqlens, max_seqlen, max_seqlen
    return flash_attn_varlen_func(query, key, value, *lengths, *args, **kwargs)


def flash_attn_varlen_kvpacked_func(q: Any, kv: Any, *args: Any, **kwargs: Any) -> Any:
    """Key and value in one tensor."""
    key, value = kv.unbind(-3)
    return flash_attn_varlen_func(q, key, value, *args, **kwargs)


def flash_attn_with_kvcache(
    q: Any, k_cache: Any, v_cache: Any, k: Any = None, v: Any = None, **options: Any
) -> Any:
    """Decoding: new keys go into the cache, which is as long as it will be."""
    if options.get("block_table") is not None:
        raise NotImplementedError("flash_attn_with_kvcache with a block_table has no stand-in")
    return flash_attn_func(q, k_cache, v_cache, causal=bool(options.get("causal")))


def _flash_attn_forward(
    q: Any, k: Any, v: Any, dropout_p: float, softmax_scale: float, causal: bool, window_size_left: int,
    window_size_right: int, softcap: float, alibi_slopes: Any, return_softmax: bool,
) -> Any:  # fmt: skip
    """The kernel itself, outside of autograd, as other libraries call it: output, log-sum-exp, weights, and
    the state of dropout (flash_attn_interface.py:77, 2.8.3; ring attention reads its parameters' names)."""
    lengths = None, None, q.shape[1], k.shape[1]
    window = window_size_left, window_size_right
    return _kernel((q, k, v), lengths, dropout_p, causal, return_softmax, softmax_scale, window)


def _flash_attn_varlen_forward(
    q: Any, k: Any, v: Any, cu_seqlens_q: Any, cu_seqlens_k: Any, max_seqlen_q: int, max_seqlen_k: int,
    dropout_p: float, softmax_scale: float, causal: bool, window_size_left: int = -1,
    window_size_right: int = -1, softcap: float = 0.0, alibi_slopes: Any = None,
    return_softmax: bool = False, block_table: Any = None, leftpad_k: Any = None, seqused_k: Any = None,
    zero_tensors: bool = False,
) -> Any:  # fmt: skip
    """As :func:`_flash_attn_forward`, of shapes (tokens, heads, dim)."""
    if block_table is not None:
        raise NotImplementedError("_flash_attn_varlen_forward with a block_table has no stand-in")
    lengths = cu_seqlens_q, cu_seqlens_k, int(max_seqlen_q), int(max_seqlen_k)
    window = window_size_left, window_size_right
    return _kernel((q, k, v), lengths, dropout_p, causal, return_softmax, softmax_scale, window)


def _flash_attn_backward(
    dout: Any, q: Any, k: Any, v: Any, out: Any, softmax_lse: Any, dq: Any, dk: Any, dv: Any,
    dropout_p: float, softmax_scale: float, causal: bool, window_size_left: int, window_size_right: int,
    softcap: float, alibi_slopes: Any, deterministic: bool, rng_state: Any = None,
) -> Any:  # fmt: skip
    """Writes into ``dq``, ``dk`` and ``dv``; gives the sums of ``dout`` and ``out``."""
    lengths = None, None, q.shape[1], k.shape[1]
    return _kernel_backward((dout, q, k, v, out, softmax_lse, *lengths, dropout_p, causal), (dq, dk, dv))


def _flash_attn_varlen_backward(
    dout: Any, q: Any, k: Any, v: Any, out: Any, softmax_lse: Any, dq: Any, dk: Any, dv: Any,
    cu_seqlens_q: Any, cu_seqlens_k: Any, max_seqlen_q: int, max_seqlen_k: int, dropout_p: float,
    softmax_scale: float, causal: bool, window_size_left: int, window_size_right: int, softcap: float,
    alibi_slopes: Any, deterministic: bool, rng_state: Any = None, zero_tensors: bool = False,
) -> Any:  # fmt: skip
    """As :func:`_flash_attn_backward`, of shapes (tokens, heads, dim)."""
    lengths = cu_seqlens_q, cu_seqlens_k, int(max_seqlen_q), int(max_seqlen_k)
    return _kernel_backward((dout, q, k, v, out, softmax_lse, *lengths, dropout_p, causal), (dq, dk, dv))


def _attention(
    inputs: tuple[Any, Any, Any], lengths: Lengths, dropout_p: float, scale: float | None, causal: bool,
    window: tuple[int, int], options: dict[str, Any],
) -> Any:  # fmt: skip
    dim = inputs[0].shape[-1]
    missing, wants_weights = -dim % 8, bool(options.get("return_attn_probs"))
    if missing:
        query, key, value = (pad(tensor, (0, missing)) for tensor in inputs)
        inputs = query, key, value
    scale = scale if scale is not None else dim**-0.5
    out, log_sum_exp, weights, _ = _kernel(inputs, lengths, dropout_p, causal, wants_weights, scale, window)
    out = out[..., :dim] if missing else out
    return (out, log_sum_exp, weights) if wants_weights else out


def _kernel(
    inputs: tuple[Any, Any, Any], lengths: Lengths, dropout_p: float, causal: bool, wants_weights: bool,
    scale: float, window: tuple[int, int],
) -> tuple[Any, Any, Any, Any]:  # fmt: skip
    left, right = (None if side < 0 else side for side in window)
    out, log_sum_exp, state, _, weights = torch.ops.aten._flash_attention_forward(
        *inputs, *lengths, dropout_p, causal, wants_weights,
        scale=scale, window_size_left=left, window_size_right=right,
    )  # fmt: skip
    return out, log_sum_exp, weights, state


def _kernel_backward(arguments: tuple[Any, ...], gradients: tuple[Any, Any, Any]) -> Any:
    """What PyTorch's operator takes beside its results, which are the caller's here."""
    machine, operator = MACHINES[-1], torch.ops.aten._flash_attention_backward.default
    written = [
        torch.empty_like(of) if gradient is None else gradient
        for of, gradient in zip(arguments[1:4], gradients, strict=True)
    ]
    twins.forget(written)
    for blocks in temporaries.flash_package_backward(arguments, machine.gpu):
        machine.ledger.pass_through(blocks, "_flash_attention_backward")
    for observer in machine.observers:
        observer.operator(operator, arguments, {}, tuple(written))
    return torch.empty_like(arguments[5])
