"""What a plan would choose, and a script's own code fixes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from zerokit.domain.job import OFFLOAD_DEVICES
from zerokit.rules.trainer_optimizers import is_same_optimizer
from zerokit.script.arguments import ScriptOptions
from zerokit.script.code_settings import PLANNED, CodeSetting, made_once
from zerokit.script.loader_batch import loader_batch
from zerokit.script.option_values import number, truth
from zerokit.search.space import Pins

OFFLOAD = ("offload_optimizer", "offload_param")
OPTIONS = {"zero_stage": "zero"}
"""Options of ``plan`` that are not called as the strategy calls them."""
_BATCH = {"micro_batch", "gradient_accumulation"}
_PRECISIONS = {"no": "fp32", "bf16": "bf16", "fp16": "fp16"}


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeValue:
    """A value of the plan's, and where it stands."""

    value: int | str
    location: str


def code_values(options: ScriptOptions, *, on_cpu: bool = False) -> dict[str, CodeValue]:
    """The literals of its code, by the plan's name for them; not what an option has, which a plan fills in,
    nor what two calls say differently.

    Args:
        on_cpu: of CPU ranks, which hold everything in host memory, so that no offload is planned.
    """
    result = {}
    settings = made_once(options.facts.code_settings) if options.style == "accelerate" else []
    for name in dict.fromkeys(PLANNED.values()):
        passed = [one for one in settings if PLANNED.get((one.call, one.name)) == name]
        values = {_value(name, one) for one in passed}
        value = next(iter(values)) if len(values) == 1 else None
        if value is not None and not (on_cpu and name in OFFLOAD):
            result[name] = CodeValue(value=value, location=passed[0].text)
    loaded = loader_batch(options)
    if loaded is not None:
        result["micro_batch"] = CodeValue(value=loaded.sequences, location=loaded.location)
    return result


def decided_options(options: ScriptOptions, chosen: Mapping[str, Any], *, on_cpu: bool) -> dict[str, str]:
    """What a script decides otherwise than a plan, as options of ``plan``; of its batch all that it decides.

    Args:
        chosen: the plan's choice.
        on_cpu: for CPU ranks, for which no plan is made with a script: a Trainer's checkpointing and its
            optimizer count too.
    """
    pins, _ = options.pins(Pins())
    precision, _ = options.precision("auto")
    decided: dict[str, object] = {
        "micro_batch": pins.micro_batch,
        "gradient_accumulation": pins.gradient_accumulation,
        "precision": None if precision == "auto" else precision,
    }
    decided |= {name: one.value for name, one in code_values(options, on_cpu=on_cpu).items()}
    decided = {name: value for name, value in decided.items() if value is not None}
    unlike = {name for name, value in decided.items() if value != chosen.get(name)}
    if unlike & _BATCH:
        unlike |= _BATCH & decided.keys()
    found = {
        OPTIONS.get(name, name.replace("_", "-")): str(decided[name]) for name in decided if name in unlike
    }
    return {**found, **(_of_trainer(options, chosen) if on_cpu and options.style == "trainer" else {})}


def _of_trainer(options: ScriptOptions, chosen: Mapping[str, Any]) -> dict[str, str]:
    """Checkpointing and optimizer of its arguments, where they are not the plan's, as options of ``plan``."""
    found = {}
    switch, optimizer = options.decided("gradient_checkpointing"), options.decided("optim")
    if switch is not None and (is_on := truth(switch[0])) is not None:
        mode = "full" if is_on else "none"
        if mode != chosen.get("activation_checkpointing", "none"):
            found["checkpointing"] = mode
    planned = (chosen.get("deepspeed_config") or {}).get("optimizer", {}).get("type")
    if optimizer is not None and planned and not is_same_optimizer(str(optimizer[0]), str(planned)):
        found["optimizer"] = str(optimizer[0])
    return found


def _value(name: str, setting: CodeSetting) -> int | str | None:
    """As the plan writes it; None: it is not fixed, or nothing that a plan has."""
    value = setting.value
    if setting.option or isinstance(value, bool):
        return None
    if name == "zero_stage":
        return value if isinstance(value, int) and value in range(4) else None
    if name == "gradient_accumulation":
        return number(value)
    if name == "precision":
        return _PRECISIONS.get(str(value))
    return value if isinstance(value, str) and value in OFFLOAD_DEVICES else None
