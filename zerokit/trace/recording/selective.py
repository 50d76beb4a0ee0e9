"""Selective activation checkpointing: attention scores are computed again in backward, the rest is kept.

Korthikanti et al. 2022 (arXiv 2205.05198, section 5): scores, their softmax and the product with the values
take most of a layer's activations and little of its time. Transformers' own ``gradient_checkpointing_enable``
knows whole layers only. Here the attention function of a model's modules (``eager_attention_forward`` of its
modeling file, which ``ALL_ATTENTION_FUNCTIONS.get_interface`` falls back to for ``eager``) runs under
``torch.utils.checkpoint``, not reentrant. Scripts call it, and traces go through the same code.
"""

from __future__ import annotations

import functools
import sys
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from zerokit.errors import InputError

FUNCTION = "eager_attention_forward"
_MARK = "_zerokit_recomputes_attention"


def selective_checkpointing(model: nn.Module, **options: Any) -> int:
    """Let the model compute its attention scores again in backward, instead of keeping them.

    Args:
        model: a Transformers model with ``attn_implementation="eager"``; adapters and DeepSpeed come after.
        options: of ``torch.utils.checkpoint.checkpoint``, such as ``preserve_rng_state=False``.

    Returns:
        How many attention modules do so now.

    Raises:
        InputError: its attention keeps no scores (``sdpa``, ``flash_attention_2``), or is not a function
            of its modeling file.
    """
    kind = getattr(getattr(model, "config", None), "_attn_implementation", None)
    if kind not in (None, "eager"):
        raise InputError(
            f"selective checkpointing: {kind} attention keeps no scores to compute again; load the model "
            'with attn_implementation="eager", or use gradient_checkpointing_enable() for whole layers'
        )
    count = 0
    for module in model.modules():
        file = sys.modules.get(type(module).__module__)
        if "Attention" not in type(module).__name__ or not hasattr(file, FUNCTION):
            continue
        _wrap(file)
        setattr(module, _MARK, {"use_reentrant": False} | options)
        count += 1
    if not count:
        raise InputError(
            f"selective checkpointing: {type(model).__name__} has no attention module that Transformers runs "
            f"through {FUNCTION}; use gradient_checkpointing_enable() for whole layers"
        )
    return count


def _wrap(file: Any) -> None:
    """Replace the file's function once; modules that did not ask go on as before."""
    original = getattr(file, FUNCTION)
    if hasattr(original, _MARK):
        return

    @functools.wraps(original)
    def attention(module: Any, *args: Any, **kwargs: Any) -> Any:
        options = getattr(module, _MARK, None)
        if options is None or not torch.is_grad_enabled():
            return original(module, *args, **kwargs)
        return checkpoint(functools.partial(original, module, **kwargs), *args, **options)

    setattr(attention, _MARK, True)
    setattr(file, FUNCTION, attention)
