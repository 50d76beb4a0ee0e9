"""What a plan would choose, and a script's own code fixes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from zerokit.domain.job import OFFLOAD_DEVICES
from zerokit.domain.settings import BY_CALL, SETTINGS, Stated, compare
from zerokit.rules.known import is_same_optimizer
from zerokit.script.arguments import ScriptOptions, number, truth
from zerokit.script.code_statements import made_once

OFFLOAD = ("offload_optimizer", "offload_param")
BATCH = ("micro_batch", "gradient_accumulation")
_PRECISIONS = {"no": "fp32", "bf16": "bf16", "fp16": "fp16"}


def code_stated(options: ScriptOptions) -> list[Stated]:
    """What an Accelerate script's code passes, by calls of classes that it makes at one place; the value of
    an option of its own is what the user gave, else the option's default."""
    result = []
    for one in made_once(options.facts.code_settings):
        setting = BY_CALL.get((one.call, one.name))
        if setting is None:
            continue
        given = options.given(one.option.removeprefix("--")) if one.option else None
        value = one.value if given is None else given[0]
        value = _PRECISIONS.get(str(value)) if setting.name == "precision" else value
        where = one.text if given is None else f"{given[1]} ({one.path}:{one.line})"
        edit = (one.option,) if one.option else ()
        result.append(Stated(setting=setting, value=value, where=where, edit=edit))
    return result


def code_values(options: ScriptOptions, *, on_cpu: bool = False) -> dict[str, Stated]:
    """The literals of its code, by the plan's name for them; not what an option has, which a plan fills in,
    nor what two calls say differently.

    Args:
        on_cpu: of CPU ranks, which hold everything in host memory, so that no offload is planned.
    """
    stated = [one for one in code_stated(options) if not one.edit] if options.style == "accelerate" else []
    by_name: dict[str, list[Stated]] = {}
    for one in stated:
        by_name.setdefault(one.setting.name, []).append(one)
    return {
        name: passed[0]
        for name, passed in by_name.items()
        if len({one.value for one in passed}) == 1
        and _is_planned(name, passed[0].value)
        and not (on_cpu and name in OFFLOAD)
    }


def _is_planned(name: str, value: object) -> bool:
    """Whether a plan may have the value."""
    values = {
        "zero_stage": range(4),
        **dict.fromkeys(OFFLOAD, OFFLOAD_DEVICES),
        "precision": _PRECISIONS.values(),
    }
    if isinstance(value, bool) or name == "gradient_clipping":
        return False
    return value in values[name] if name in values else number(value) is not None


def unlike_plan(options: ScriptOptions, chosen: Mapping[str, Any], precision: str) -> list[str]:
    """Where the code asks Accelerate for something else than the plan, one sentence each.

    The plan's file reaches Accelerate by the environment and wins, without a word, over what the code says
    (accelerate 1.15, utils/dataclasses.py, ``DeepSpeedPlugin.__post_init__``).

    Args:
        precision: as the ranks will run.
    """
    planned = {**chosen, "precision": precision}
    planned.pop("gradient_clipping", None)  # changes neither memory nor time
    stated = [one for one in code_stated(options) if not one.edit] if options.style == "accelerate" else []
    return [
        f"{one.where}, but the plan has {one.setting.name} {value}" for one, value in compare(planned, stated)
    ]


def decided_options(options: ScriptOptions, chosen: Mapping[str, Any], *, on_cpu: bool) -> dict[str, str]:
    """What a script decides otherwise than a plan, as options of ``plan``; of its batch all that it decides.

    Args:
        chosen: the plan's choice.
        on_cpu: for CPU ranks, for which no plan is made with a script: a Trainer's checkpointing and its
            optimizer count too.
    """
    precision = options.fixed_precision()
    decided = {one.setting.name: one.value for one in options.fixed() if one.setting.name in BATCH}
    decided |= {} if precision is None else {"precision": precision[0]}
    decided |= {name: one.value for name, one in code_values(options, on_cpu=on_cpu).items()}
    unlike = {name for name, value in decided.items() if value != chosen.get(name)}
    if unlike & {*BATCH}:
        unlike |= {*BATCH} & decided.keys()
    names = dict.fromkeys((*BATCH, "precision", *decided))
    found = {SETTINGS[name].option: str(decided[name]) for name in names if name in unlike}
    if not on_cpu or options.style != "trainer":
        return found
    switch, optimizer = options.decided("gradient_checkpointing"), options.decided("optim")
    if switch is not None and (is_on := truth(switch[0])) is not None:
        mode = "full" if is_on else "none"
        if mode != chosen.get("activation_checkpointing", "none"):
            found["checkpointing"] = mode
    planned = (chosen.get("deepspeed_config") or {}).get("optimizer", {}).get("type")
    if optimizer is not None and planned and not is_same_optimizer(str(optimizer[0]), str(planned)):
        found["optimizer"] = str(optimizer[0])
    return found
