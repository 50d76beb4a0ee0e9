"""Batch norms that cuDNN runs: their workspace, and what they reserve for backward, is not modelled."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from zerokit.rehearsal.process.machine import Machine

_NOT_MODELLED = "cuDNN's workspace for batch norm"
_TEXT = (
    "cuDNN's workspace for batch norm, and what it reserves for backward, is not modelled: the phases with "
    "it are lower bounds (torch.backends.cudnn.enabled = False or bf16 weights avoid cuDNN)"
)
_MOST_IMAGES = 880_801
_MOST_ELEMENTS = 2**31 - 1

_OPERATORS = {  # where input and weight stand among the arguments
    "native_batch_norm": (0, 1),
    "_native_batch_norm_legit": (0, 1),
    "cudnn_batch_norm": (0, 1),
    "native_batch_norm_backward": (1, 2),
}


def check(machine: Machine, name: str, args: Sequence[Any]) -> None:
    """Mark the phase as a lower bound if a GPU would run this operator with cuDNN.

    A CPU build of PyTorch dispatches to its own kernels, a CUDA build to ``cudnn_batch_norm``. Evaluation
    takes no workspace (``native/cudnn/BatchNorm.cpp``).
    """
    if name in _OPERATORS:
        source, weight = (args[index] for index in _OPERATORS[name])
        training = next(value for value in args if isinstance(value, bool))
        marked = training and _is_cudnn(source, weight)
    else:
        marked = name == "cudnn_batch_norm_backward"
    if marked:
        machine.not_modelled(_NOT_MODELLED, _TEXT)


def _is_cudnn(source: torch.Tensor, weight: torch.Tensor | None) -> bool:
    """``_select_batch_norm_backend`` while training (``native/Normalization.cpp``); any epsilon will do."""
    return (
        torch.backends.cudnn.enabled
        and weight is not None
        and torch.bfloat16 not in (source.dtype, weight.dtype)
        and (source.dtype != torch.float16 or weight.dtype == torch.float32)
        and source.dim() >= 3
        and source.shape[0] <= _MOST_IMAGES
        and source.numel() < _MOST_ELEMENTS
    )
