"""After a run that did another job than its plan's: the prediction for the job that ran."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from zerokit import planner
from zerokit.domain.settings import BY_OPTION
from zerokit.errors import InputError, NothingFits
from zerokit.planner.effects import IN_FILE
from zerokit.planner.options import OPTIONS
from zerokit.report.predicted import PredictedAgain
from zerokit.report.what_ran import Difference, chosen_as_ran
from zerokit.temporary import temporary_folder

_FROM_THE_FILE = frozenset((*IN_FILE, "tp"))
"""Options that the plan's DeepSpeed configuration decides, which the estimate is made of."""
_OF_THE_JOB = ("seq-len", "method", "lora-rank", "lora-targets")
"""Options of a request in which what ran may differ from it."""


def feeds_more_rows(style: str, engines: Iterable[Mapping[str, Any] | None]) -> bool:
    """Whether a Trainer's loss takes more rows than its batch has, by what the ranks' engines ran with:
    pairs, as DPO's, or groups."""
    return style == "trainer" and any(
        (engine.get("batch_rows") or 0) > (engine.get("loader_rows") or engine.get("micro_batch") or 0) > 0
        for engine in engines
        if engine
    )


def predict_again(plan: Mapping[str, Any], differing: list[Difference]) -> PredictedAgain:
    """The plan with the estimate for what ran, where the batch, length, accumulation, precision, stage,
    checkpointing or optimizer differ, or LoRA's rank and modules, or all weights were trained. No plan where
    something differs that a plan's options cannot say (another model, a second engine, adapters that are not
    LoRA alone) or the estimate cannot be made."""
    request, chosen = plan.get("request"), plan.get("chosen")
    if not isinstance(request, Mapping) or not isinstance(chosen, Mapping):
        return PredictedAgain(why_not="the plan does not say what it was made for")
    config = json.loads(json.dumps(chosen.get("deepspeed_config") or {}))
    plan_options = {option.name for option in OPTIONS} - _FROM_THE_FILE
    options = {
        name: str(value) for key, value in request.items() if (name := key.replace("-", "_")) in plan_options
    }
    options["checkpointing"] = str(chosen.get("activation_checkpointing", "none"))
    for difference in differing:
        if not _apply(difference, config, options):
            return PredictedAgain(why_not=f"no option of a plan says it: {difference.text}")
    micro = config.get("train_micro_batch_size_per_gpu")
    accumulation = config.get("gradient_accumulation_steps", 1)
    if isinstance(micro, int) and isinstance(accumulation, int):
        config["train_batch_size"] = micro * accumulation * int(chosen.get("data_parallel") or 1)
    with temporary_folder("predict") as folder:
        path = folder / "ds_config.json"
        path.write_text(json.dumps(config), encoding="utf-8")
        try:
            answer = planner.estimate(options, deepspeed=path)
        except (InputError, NothingFits) as error:
            return PredictedAgain(why_not=str(error))
    ran = {**chosen_as_ran(chosen, differing), "estimate": answer.to_dict()}
    asked = {name: options[key] for name in _OF_THE_JOB if (key := name.replace("-", "_")) in options}
    return PredictedAgain(plan={**plan, "request": {**request, **asked}, "chosen": ran})


def _apply(difference: Difference, config: dict[str, Any], options: dict[str, str]) -> bool:
    """Put what ran in place of what was planned; whether that could be said."""
    value, setting = difference.ran, BY_OPTION.get(difference.option or "")
    name = setting.name if setting is not None else ""
    if setting is None or (name == "method" and value != "all" and difference.lora is None):
        return False
    if name == "method":
        for adapters in ("lora_rank", "lora_targets"):
            options.pop(adapters, None)
        options["method"] = "full"
        if difference.lora is not None:
            options["method"], options["lora_rank"] = "lora", str(difference.lora.rank)
            options["lora_targets"] = ",".join(difference.lora.targets)
    elif name == "activation_checkpointing" and value in ("none", "full"):
        options["checkpointing"] = value
    elif name == "precision" and value in ("bf16", "fp16", "fp32"):
        config["bf16"], config["fp16"] = {"enabled": value == "bf16"}, {"enabled": value == "fp16"}
    elif name == "optimizer":
        config["optimizer"] = {"type": value}
        config["zero_allow_untested_optimizer"] = True  # DeepSpeed took it
    elif name == "seq_len" and value.isdigit():
        options["seq_len"] = value
    elif value.isdigit() and setting.deepspeed:
        *blocks, key = setting.deepspeed.split(".")
        block = config
        for one in blocks:
            block = block.setdefault(one, {})
        block[key] = int(value)
    else:
        return False
    return True
