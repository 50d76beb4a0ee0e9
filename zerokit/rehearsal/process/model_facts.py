"""Which model an engine trains and how, in the planner's words: its configuration, adapters, quantisation."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import Any

import torch

from zerokit.instrument.engine_facts import adapter_targets
from zerokit.rehearsal.result import FROZEN, QUANTISED, WEIGHTS


def describe(module: Any) -> dict[str, Any]:
    """``config``: Hugging Face's, None of another model; ``method``; adapters' ``lora_rank`` and targets."""
    adapters = getattr(module, "peft_config", None)
    base = module
    if adapters:
        with contextlib.suppress(Exception):  # another peft
            base = module.get_base_model()
    config = _config(base)
    facts: dict[str, Any] = {"config": config, "method": "full"}
    lora = next(iter(adapters.values()), None) if isinstance(adapters, dict) else None
    if lora is not None and getattr(lora, "r", None):
        facts |= {"method": "lora", "lora_rank": int(lora.r), "lora_targets": list(adapter_targets(module)),
                  "lora_dropout": float(getattr(lora, "lora_dropout", 0.0))}  # fmt: skip
        if getattr(base, "is_loaded_in_4bit", False):
            facts["method"] = "qlora"
    return facts


def is_fully_sharded(module: Any) -> bool:
    """Whether PyTorch's FSDP, of either version, shards it."""
    return any(base.__module__.startswith("torch.distributed.fsdp") for base in type(module).__mro__)


def unwrapped(module: Any) -> tuple[list[str], float]:
    """Classes of layers that are no FSDP units of their own, so that one unit holds several of them; and the
    largest share of all elements that is gathered at once where each is one."""
    classes, layers, within_layers = set[str](), list[int](), 0
    for part in module.modules():
        if isinstance(part, torch.nn.ModuleList) and len(part) > 1 and len(set(map(type, part))) == 1:
            sizes = [sum(parameter.numel() for parameter in layer.parameters()) for layer in part]
            if is_fully_sharded(part[0]) or sum(sizes) <= within_layers:  # layers inside of layers
                continue
            classes, layers, within_layers = {type(part[0]).__name__}, sizes, sum(sizes)
    every = sum(parameter.numel() for parameter in module.parameters())
    return sorted(classes), max(every - within_layers, *layers) / every if layers and every else 1.0


def weights(module: Any) -> Iterator[tuple[Any, str]]:
    """Each parameter's storage, and what it holds; under ZeRO-3 and FSDP 2 that of the rank's share."""
    for parameter in module.parameters():
        what = WEIGHTS if parameter.requires_grad else FROZEN
        if not parameter.dtype.is_floating_point or getattr(parameter, "quant_state", None) is not None:
            what = QUANTISED
        own = getattr(parameter, "ds_tensor", getattr(parameter, "_local_tensor", parameter))
        yield own.untyped_storage(), what


def _config(module: Any) -> dict[str, Any] | None:
    config = getattr(module, "config", None)
    if config is None or not hasattr(config, "to_dict"):
        return None
    try:
        values: dict[str, Any] = json.loads(json.dumps(config.to_dict(), default=str))
    except (TypeError, ValueError):
        return None
    return values
