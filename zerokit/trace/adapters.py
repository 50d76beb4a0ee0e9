"""LoRA adapters as peft makes them, on the meta device."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from zerokit.errors import InputError


def add_lora(model: nn.Module, rank: int, targets: tuple[str, ...], dtype: torch.dtype) -> nn.Module:
    """Wrap the model with peft's ``LoraConfig(r=rank, target_modules=targets)``; base weights frozen.

    The adapters take the training dtype: DeepSpeed casts the whole module when bf16 or fp16 is on.

    Raises:
        InputError: peft is not installed, or finds no module of these names.
    """
    try:
        import peft
    except ImportError as error:
        raise InputError("--method lora needs peft to trace the model: pip install peft") from error
    modules: Any = targets[0] if len(targets) == 1 and targets[0] == "all-linear" else list(targets)
    config = peft.LoraConfig(r=rank, target_modules=modules, task_type=None)
    try:
        with torch.device("meta"):
            wrapped: nn.Module = peft.get_peft_model(model, config)
    except ValueError as error:
        raise InputError(f"--lora-targets {','.join(targets)}: {error}") from error
    return wrapped.to(dtype)
