"""A script that saves its model under a plan whose ZeRO-3 gathers no weights for that, said before it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from zerokit.domain.deepspeed_settings import CONVERTS_A_CHECKPOINT, CONVERTS_ADAPTERS
from zerokit.machine.versions import installed
from zerokit.script.reader import ScriptFacts


def warnings(facts: ScriptFacts, config: Mapping[str, Any], method: str) -> list[str]:
    """What to say where a save of the script's would lose the result of its run.

    Args:
        config: the DeepSpeed configuration that the script gets.
        method: what the plan trains: ``full``, ``lora`` or ``qlora``.
    """
    zero = config.get("zero_optimization")
    if not isinstance(zero, Mapping) or zero.get("stage") != 3:
        return []
    if zero.get("stage3_gather_16bit_weights_on_model_save") is True:
        return []
    adapters = method != "full"
    effects = {
        "save_model": f"writes no {'adapters' if adapters else 'weights'} that load",
        "get_state_dict": "ends with an error",  # accelerate 1.15.0, accelerator.py: a ValueError
    }
    if adapters and _saves_adapters(installed("transformers")):
        del effects["save_model"]
    name = next((name for name in effects if name in facts.mentions), None)
    if name is None:
        return []
    converts = CONVERTS_A_CHECKPOINT
    if adapters:
        converts = f"{CONVERTS_ADAPTERS} (deepspeed.utils.zero_to_fp32)"
    return [
        f"warning: the script's {name} {effects[name]}: the plan's ZeRO-3 does not gather the weights "
        "(stage3_gather_16bit_weights_on_model_save is false). Have it save checkpoints (save_strategy), and "
        f"convert one: {converts}"
    ]


def _saves_adapters(version: str | None) -> bool:
    """Whether a Trainer of this Transformers gathers adapters all the same: from 5.0 on (trainer.py,
    ``save_model``)."""
    major = (version or "").partition(".")[0]
    return major.isdecimal() and int(major) >= 5
