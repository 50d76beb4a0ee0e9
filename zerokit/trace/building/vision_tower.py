"""The vision tower of a model of images and text: which modules it is, frozen or not, one piece of attention.

Its modules are named ``visual`` (Qwen), ``vision_tower`` (LLaVA, Gemma 3) or ``vision_model`` (Idefics3,
SmolVLM) in Transformers; what maps its outputs to the text model's width is no part of it, wherever it lies.
"""

from __future__ import annotations

import inspect
import re
from typing import Any

import torch
from torch import nn

INSIDE = r"(.*\.)?(visual|vision_tower|vision_model)\.(?!.*(merger|projector|connector)).*"
"""Modules and parameters of the tower, by their whole names."""

_INSIDE = re.compile(INSIDE)


def is_inside(name: str) -> bool:
    """Whether a module or parameter of this name is the tower's."""
    return _INSIDE.fullmatch(name) is not None


def prepare(model: nn.Module, *, frozen: bool) -> None:
    """Freeze the tower if asked; let it attend to all patches of a batch in one call.

    The attention of towers that take images of any size runs once for each image or window: as many operators
    as images. One call over all saves the same tensors, and its kernel needs memory that grows with the
    patches alone.
    """
    for name, module in model.named_modules():
        attends = "Attention" in type(module).__name__
        if attends and "cu_seqlens" in inspect.signature(module.forward).parameters:
            module.forward = _in_one_piece(module.forward)
        if frozen and is_inside(name):
            for parameter in module.parameters(recurse=False):
                parameter.requires_grad_(False)


def _in_one_piece(forward: Any) -> Any:
    def whole(hidden_states: torch.Tensor, cu_seqlens: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        ends = torch.tensor([0, hidden_states.shape[0]], dtype=cu_seqlens.dtype)
        return forward(hidden_states, ends, *args, **kwargs)

    return whole
