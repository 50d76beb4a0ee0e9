"""LoRA adapters as peft makes them, on the meta device."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from zerokit.errors import InputError

_KERNELS_LOGGER = "bitsandbytes.backends.cpu.ops"
"""Warns, while it is imported, of a kernel for the CPU that no trace runs."""


@contextmanager
def _quiet(name: str) -> Iterator[None]:
    """A logger that says nothing meanwhile."""
    logger = logging.getLogger(name)
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before


def add_lora(
    model: nn.Module,
    rank: int,
    targets: tuple[str, ...],
    dtype: torch.dtype | None,
    spared: str | None = None,
) -> nn.Module:
    """Wrap the model with peft's ``LoraConfig(r=rank, target_modules=targets)``; base weights frozen.

    ``dtype``: what the adapters take, the training dtype where DeepSpeed casts the whole module (bf16 or
    fp16 below stage 3); ``None``: fp32, which peft gives them (``autocast_adapter_dtype``) and DeepSpeed
    leaves them when the model was made under ``zero.Init`` (``_cast_module_mixed_precision``,
    runtime/engine.py:1851, 0.19.8). ``spared``: a pattern of modules that get no adapters.

    Raises:
        InputError: peft is not installed, or finds no module of these names.
    """
    try:
        with _quiet(_KERNELS_LOGGER):
            import peft
    except ImportError as error:
        raise InputError("⟨method⟩ lora needs peft to trace the model: pip install peft") from error
    modules: Any = targets[0] if len(targets) == 1 and targets[0] == "all-linear" else list(targets)
    config = peft.LoraConfig(r=rank, target_modules=modules, task_type=None, exclude_modules=spared)
    try:
        with torch.device("meta"), _quiet(_KERNELS_LOGGER):  # peft imports bitsandbytes here
            wrapped: nn.Module = peft.get_peft_model(model, config)
    except ValueError as error:
        raise InputError(f"⟨lora_targets⟩ {','.join(targets)}: {error}") from error
    # as the class of each task does (PeftModelForCausalLM.forward, peft_model.py:1903, 0.21), which every
    # trainer asks for; that of none goes past LoraModel, whose hooks ZeRO-3 counts
    wrapped.forward = lambda *args, **kwargs: wrapped.base_model(*args, **kwargs)
    return wrapped if dtype is None else wrapped.to(dtype)
