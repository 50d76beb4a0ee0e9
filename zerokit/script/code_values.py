"""What a plan would choose, and a script's own code fixes: its data loader's batch among it, which is what
trains where the script feeds its engine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from zerokit.domain.job import OFFLOAD_DEVICES
from zerokit.domain.settings import BY_CALL, SETTINGS, Setting, Stated, compare
from zerokit.rules.known import is_same_optimizer
from zerokit.script.arguments import MICRO_BATCH, ScriptOptions, number, truth
from zerokit.script.code_statements import CodeSetting, made_once, training_batches

OFFLOAD = ("offload_optimizer", "offload_param")
BATCH = ("micro_batch", "gradient_accumulation")
_PRECISIONS = {"no": "fp32", "bf16": "bf16", "fp16": "fp16"}
_SIZED_OTHERWISE = frozenset({"split_batches", "batch_sampler", "find_executable_batch_size"})
PLANS_OPTIONS = frozenset(f"--{name.replace('_', dash)}" for name in MICRO_BATCH.in_scripts for dash in "_-")
"""Options of a script by which a plan tells it the batch."""


def code_values(options: ScriptOptions, *, on_cpu: bool = False) -> dict[str, Stated]:
    """The literals of its code, by the plan's name for them; not what an option has, which a plan fills in,
    nor what two calls say differently.

    Args:
        on_cpu: of CPU ranks, which hold everything in host memory, so that no offload is planned.
    """
    result: dict[str, Stated] = {}
    settings = made_once(options.facts.code_settings) if options.style == "accelerate" else []
    for setting in dict.fromkeys(BY_CALL.values()):
        passed = [one for one in settings if BY_CALL.get((one.call, one.name)) is setting]
        values = {_planned_value(setting, one) for one in passed}
        value = next(iter(values)) if len(values) == 1 else None
        if value is not None and not (on_cpu and setting.name in OFFLOAD):
            result[setting.name] = Stated(setting=setting, value=value, where=passed[0].text)
    loaded = loader_batch(options)
    return result if loaded is None else {**result, "micro_batch": loaded}


def _planned_value(setting: Setting, one: CodeSetting) -> int | str | None:
    """The value as a plan writes it; None: it is not fixed, or nothing that a plan has."""
    value = one.value
    if one.option or isinstance(value, bool):
        return None
    if setting.name == "zero_stage":
        return value if isinstance(value, int) and value in range(4) else None
    if setting.name == "gradient_accumulation":
        return number(value)
    if setting.name == "precision":
        return _PRECISIONS.get(str(value))
    return value if isinstance(value, str) and value in OFFLOAD_DEVICES else None


def unlike_plan(options: ScriptOptions, chosen: Mapping[str, Any], precision: str) -> list[str]:
    """Where the code asks Accelerate for something else than the plan, one sentence each.

    The plan's file reaches Accelerate by the environment and wins, without a word, over what the code says
    (accelerate 1.15, utils/dataclasses.py, ``DeepSpeedPlugin.__post_init__``).

    Args:
        precision: as the ranks will run.
    """
    if options.style != "accelerate":
        return []
    planned = {**chosen, "precision": "no" if precision == "fp32" else precision}
    planned.pop("gradient_clipping", None)  # changes neither memory nor time
    said = [
        (one.name, Stated(setting=setting, value=one.value, where=one.text))
        for one in made_once(options.facts.code_settings)
        if (setting := BY_CALL.get((one.call, one.name))) is not None and one.option is None
    ]
    return [
        f"{one.where}, but the plan has {name} {value}"
        for name, stated in said
        for one, value in compare(planned, [stated])
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


def loader_batch(options: ScriptOptions) -> Stated | None:
    """What the training's data loader is given in the source; None: not known, or a plan decides it.

    Only of scripts that feed their engine themselves. Where the loaders of a source differ, or one takes a
    size that is computed, only the run tells.
    """
    facts = options.facts
    feeds_itself = options.style == "accelerate" or (options.style == "raw" and not facts.reads_micro_batch)
    if not feeds_itself or _SIZED_OTHERWISE & (facts.mentions | facts.keywords):
        return None
    batches = [_loaded(setting, options) for setting in training_batches(facts.code_settings)]
    sizes = {None if batch is None else batch.value for batch in batches}
    return batches[0] if len(sizes) == 1 else None


def _loaded(setting: CodeSetting, options: ScriptOptions) -> Stated | None:
    if setting.option in PLANS_OPTIONS:
        return None  # filled in from the plan, and held to it
    given = options.given(setting.option.removeprefix("--")) if setting.option else None
    sequences = number(given[0] if given is not None else setting.value)
    if sequences is None:
        return None
    call = f"{setting.path}:{setting.line}: {setting.call}(batch_size={sequences})"
    default = f"{call}, the default of {setting.option}" if setting.option else call
    where = f"{given[1]} ({call})" if given is not None else default
    edit = (setting.option,) if setting.option else ()
    return Stated(setting=MICRO_BATCH, value=sequences, where=where, edit=edit)
