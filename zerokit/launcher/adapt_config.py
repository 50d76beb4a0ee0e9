"""The plan's DeepSpeed configuration as this script, on this device, with so many ranks, can take it.

Every change comes with its reason, which is printed and kept in the run folder.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import Any

from zerokit.machine.host import bf16_in_hardware
from zerokit.rules.known import TRAINER_FILLS
from zerokit.script.reader import ScriptFacts
from zerokit.units import counted

_COMPILED_FOR_CUDA = tuple(
    f"zero_quantized_{what}" for what in ("weights", "nontrainable_weights", "gradients")
)


@dataclass(slots=True, kw_only=True)
class Adapted:
    """A DeepSpeed configuration to use, and what was changed in it and why."""

    config: dict[str, Any]
    changes: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


def adapt(
    config: dict[str, Any],
    *,
    style: str,
    device: str,
    ranks: int,
    planned_ranks: int,
    facts: ScriptFacts,
    cpu_has_bf16: bool | None = None,
) -> Adapted:
    """The configuration for a script of this style on this device.

    ``planned_ranks``: the world size the configuration was made for. ``cpu_has_bf16``: whether CPU ranks
    multiply bf16 in hardware; None: as this machine's do.
    """
    adapted = Adapted(config=copy.deepcopy(config))
    if device == "cpu":
        _for_cpu(adapted, bf16_in_hardware() if cpu_has_bf16 is None else cpu_has_bf16)
    if ranks != planned_ranks and adapted.config.pop("train_batch_size", None) is not None:
        adapted.changes.append(
            f"train_batch_size removed: the plan is for {counted(planned_ranks, 'rank')}, this run has "
            f"{ranks}; micro-batch and accumulation are kept, so the global batch changes"
        )
    if style == "trainer":
        _for_trainer(adapted)
    elif style == "accelerate":
        _for_accelerate(adapted, facts)
    return adapted


def precision(config: dict[str, Any]) -> str:
    """``bf16``, ``fp16`` or ``fp32``."""
    return next((name for name in ("bf16", "fp16") if _enabled(config, name)), "fp32")


def _for_cpu(adapted: Adapted, has_bf16: bool) -> None:
    config = adapted.config
    if _enabled(config, "fp16"):
        config["fp16"] = {"enabled": False}
        if has_bf16:
            config["bf16"] = {"enabled": True}
            adapted.changes.append("fp16 → bf16: DeepSpeed refuses fp16 on CPU ranks")
        else:
            adapted.changes.append(
                "fp16 → fp32: DeepSpeed refuses fp16 on CPU ranks, and these CPUs emulate bf16, at a "
                "twentieth of the speed; weights and activations take twice the planned bytes"
            )
    elif _enabled(config, "bf16") and not has_bf16:
        adapted.warnings.append(
            "these CPUs emulate bf16, at about a twentieth of the speed of fp32; for speed plan with "
            "⟨device⟩ cpu, which takes fp32 here"
        )
    optimizer = config.get("optimizer")
    if isinstance(optimizer, dict) and str(optimizer.get("type", "")).lower() in ("adam", "adamw"):
        parameters = optimizer.setdefault("params", {})
        if parameters.get("torch_adam") is not True:
            parameters["torch_adam"] = True
            adapted.changes.append(
                "torch_adam set: CPU ranks use PyTorch's Adam, as DeepSpeed's would have to be compiled first"
            )
    zero = config.get("zero_optimization")
    if not isinstance(zero, dict):
        return
    for key in ("offload_optimizer", "offload_param"):
        block = zero.get(key)
        if isinstance(block, dict) and block.get("device", "none") != "none":
            del zero[key]
            adapted.changes.append(f"{key} removed: CPU ranks keep everything in host memory already")
    for key in _COMPILED_FOR_CUDA:
        if zero.get(key):
            zero[key] = False
            adapted.changes.append(f"{key} set to false: its kernels are for GPUs")
    if config.pop("aio", None) is not None:
        adapted.changes.append("aio removed: nothing is offloaded to NVMe on CPU ranks")


def _for_trainer(adapted: Adapted) -> None:
    config = adapted.config
    filled = []
    for dotted in TRAINER_FILLS:
        block: Any = config
        *parents, name = dotted.split(".")
        for parent in parents:
            block = block.get(parent) if isinstance(block, dict) else None
        if isinstance(block, dict) and name in block and block[name] != "auto":
            block[name] = "auto"
            filled.append(name)
    for name in ("bf16", "fp16"):
        block = config.setdefault(name, {})
        if block.get("enabled") != "auto":
            block["enabled"] = "auto"
            filled.append(f"{name}.enabled")
    if filled:
        adapted.changes.append(
            f"left to the Trainer, which fills them from its TrainingArguments (auto): {', '.join(filled)}"
        )


def _complete_dummies(adapted: Adapted, facts: ScriptFacts) -> None:
    """Accelerate takes a ``DummyOptim`` beside a ``DummyScheduler`` only (1.15, accelerator.py:2282), and the
    plan has an optimizer and no scheduler."""
    config = adapted.config
    if facts.asks_for_optimizer:
        del config["optimizer"]
        adapted.changes.append(
            "optimizer removed: the script makes its own, as it does its scheduler; "
            "Accelerate refuses one of the two from the file"
        )
    elif "lr_scheduler_callable" not in facts.keywords:
        names = ("warmup_min_lr", "warmup_max_lr", "warmup_num_steps", "total_num_steps")
        config["scheduler"] = {"type": "WarmupDecayLR", "params": dict.fromkeys(names, "auto")}
        adapted.changes.append(
            "scheduler WarmupDecayLR added, filled from the script's DummyScheduler: Accelerate refuses a "
            "DummyScheduler beside a file without a scheduler"
        )


def _for_accelerate(adapted: Adapted, facts: ScriptFacts) -> None:
    config = adapted.config
    has_dummies = {"DummyOptim", "DummyScheduler"} <= facts.mentions
    if has_dummies and "optimizer" in config and "scheduler" not in config:
        _complete_dummies(adapted, facts)
    for block, dummy in (("optimizer", "DummyOptim"), ("scheduler", "DummyScheduler")):
        if block in config and dummy not in facts.mentions:
            del config[block]
            adapted.changes.append(
                f"{block} removed: the script makes its own, and Accelerate refuses two "
                f"(it would use this one for a {dummy})"
            )
    if "optimizer" not in config:
        config["zero_allow_untested_optimizer"] = True
    if "zero_optimization" not in config:
        config["zero_optimization"] = {"stage": 0}
        adapted.changes.append("zero_optimization.stage 0 written out: Accelerate refuses a file without it")


def _enabled(config: dict[str, Any], block: str) -> bool:
    value = config.get(block)
    return isinstance(value, dict) and value.get("enabled") is True
