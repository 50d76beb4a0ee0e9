"""What ``flash_attn`` offers, by PyTorch's own copy of the same kernels.

``aten::_flash_attention_forward`` and its backward take the same layout (batch, sequence, heads, dim), save
the same tensors and allocate the same workspaces (``csrc/flash_attn/flash_api.cpp``, mha_fwd and mha_bwd, of
which PyTorch's ``native/transformers/cuda/flash_attn/flash_api.cpp`` is a copy).
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.functional import pad

__all__ = [
    "flash_attn_func",
    "flash_attn_kvpacked_func",
    "flash_attn_qkvpacked_func",
    "flash_attn_varlen_func",
    "flash_attn_varlen_kvpacked_func",
    "flash_attn_varlen_qkvpacked_func",
    "flash_attn_with_kvcache",
    "index_first_axis",
    "pad_input",
    "unpad_input",
]


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


def _attention(
    inputs: tuple[Any, Any, Any], lengths: tuple[Any, Any, int, int], dropout_p: float,
    scale: float | None, causal: bool, window: tuple[int, int], options: dict[str, Any],
) -> Any:  # fmt: skip
    query, key, value = inputs
    dim = query.shape[-1]
    missing = -dim % 8
    if missing:
        query, key, value = (pad(tensor, (0, missing)) for tensor in inputs)
    left, right = (None if side < 0 else side for side in window)
    out, log_sum_exp, _, _, weights = torch.ops.aten._flash_attention_forward(
        query, key, value, *lengths, dropout_p, causal, bool(options.get("return_attn_probs")),
        scale=scale if scale is not None else dim**-0.5, window_size_left=left, window_size_right=right,
    )  # fmt: skip
    out = out[..., :dim] if missing else out
    return (out, log_sum_exp, weights) if options.get("return_attn_probs") else out


def index_first_axis(tensor: Any, indices: Any) -> Any:
    """Rows of a tensor."""
    return tensor[indices]


def unpad_input(hidden_states: Any, attention_mask: Any, unused_mask: Any = None) -> Any:
    """Tokens without padding, their positions, cumulated lengths, the longest, and each sequence's tokens."""
    used = attention_mask.sum(dim=-1, dtype=torch.int32)
    positions = torch.nonzero(attention_mask.flatten(), as_tuple=False).flatten()
    longest = used.max().item()
    lengths = torch.nn.functional.pad(torch.cumsum(used, dim=0, dtype=torch.int32), (1, 0))
    return hidden_states.flatten(0, 1)[positions], positions, lengths, longest, used


def pad_input(hidden_states: Any, indices: Any, batch: int, seqlen: int) -> Any:
    """The reverse of :func:`unpad_input`."""
    output = hidden_states.new_zeros(batch * seqlen, *hidden_states.shape[1:])
    output[indices] = hidden_states
    return output.unflatten(0, (batch, seqlen))
