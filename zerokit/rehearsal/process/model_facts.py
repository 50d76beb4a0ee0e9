"""Which model an engine trains and how, in the planner's words: its configuration, adapters, quantisation."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import Any

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


def weights(module: Any) -> Iterator[tuple[Any, str]]:
    """Each parameter's storage, and what it holds; under ZeRO-3 that of the rank's share."""
    for parameter in module.parameters():
        what = WEIGHTS if parameter.requires_grad else FROZEN
        if not parameter.dtype.is_floating_point or getattr(parameter, "quant_state", None) is not None:
            what = QUANTISED
        yield getattr(parameter, "ds_tensor", parameter).untyped_storage(), what


def _config(module: Any) -> dict[str, Any] | None:
    config = getattr(module, "config", None)
    if config is None or not hasattr(config, "to_dict"):
        return None
    try:
        values: dict[str, Any] = json.loads(json.dumps(config.to_dict(), default=str))
    except (TypeError, ValueError):
        return None
    return values
