"""Options that could change nothing are refused: every option has its effect or says why not."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from zerokit.domain.settings import SETTINGS, value_at
from zerokit.domain.strategy import Strategy
from zerokit.errors import InputError

Options = Mapping[str, Any]

_STAGE_3_SIZES = ("prefetch_bucket", "persistence", "sub_group")
_BUCKETS = ("reduce_bucket", "overlap_comm")
_OF_TRAINING = (
    "optimizer", "loss", "padding", "offload_activations", "gradient_accumulation", "eval_batch",
    "checkpointing", "reentrant", "reduce_bucket", "overlap_comm", "set", "sub_group", "offload_optimizer",
    "pp", "sp", "cp", "pipeline_module", "all_gpus",
)  # fmt: skip
_ZERO = "zero_optimization"
IN_FILE: Mapping[str, tuple[str, ...]] = {
    **{row.argument: (row.deepspeed,) for row in SETTINGS.values() if row.deepspeed and row.option},
    "precision": ("bf16.enabled", "fp16.enabled"),
    "nvme": (f"{_ZERO}.offload_optimizer.nvme_path", f"{_ZERO}.offload_param.nvme_path"),
    "prefetch_bucket": (f"{_ZERO}.stage3_prefetch_bucket_size",),
    "persistence": (f"{_ZERO}.stage3_param_persistence_threshold",),
    "sub_group": (f"{_ZERO}.sub_group_size",),
    "reduce_bucket": (f"{_ZERO}.reduce_bucket_size",),
    "overlap_comm": (f"{_ZERO}.overlap_comm",),
    "global_batch": ("train_batch_size",),
}
"""What a DeepSpeed file decides, where it does not leave it to the script, and the keys that say it."""


def is_given(options: Options, name: str) -> bool:
    """Whether an option was given a value that asks for something; ``auto`` asks for nothing."""
    return options.get(name) not in (None, False, "auto")


def refuse_idle(options: Options, *, single: bool, file: bool = False) -> None:
    """Refuse what nothing would be changed by.

    ``single``: one strategy is estimated, whose stage is 0 where none is named; a search tries them all.
    ``file``: a DeepSpeed file says the stage.

    Raises:
        InputError: names the option and what it needs.
    """
    serves, named = is_given(options, "inference"), options.get("zero")
    stage = str(named) if named not in (None, "auto") else "0" if single else None
    stage = None if file else stage
    devices = (options.get("offload_optimizer"), options.get("offload_param"))
    for problem in _idle(
        options,
        (_OF_TRAINING, serves, "not with ⟨inference⟩, which does not train"),
        (("zero",), serves and str(named) in ("1", "2"),
         "stages 1 and 2 divide what only training has; ⟨inference⟩ takes 0 or 3"),
        (_BUCKETS, stage == "0", "DeepSpeed reads it with ⟨zero⟩ 1, 2 or 3"),
        (_STAGE_3_SIZES, stage in ("0", "1", "2"), "only with ⟨zero⟩ 3"),
        (("nvme",), single and "nvme" not in devices, "only with ⟨offload_⟩… nvme"),
        (("reentrant",), str(options.get("checkpointing") or single or "auto") not in ("auto", "full"),
         "only with ⟨checkpointing⟩ full"),
        (("set",), stage in ("0", "1", "2") and _quantises(options),
         "DeepSpeed quantises what it sends with ⟨zero⟩ 3 only"),
        (("margin",), single, "estimate counts one strategy, whatever room it leaves"),
        (("all_gpus",), single, "estimate takes all of the GPUs that it is given"),
        (("pipeline_module",), single and str(options.get("pp") or "1") in ("1", "auto"),
         "estimate takes the degree: ⟨pp⟩ N"),
    ):  # fmt: skip
        raise InputError(problem)


def _idle(options: Options, *rules: tuple[tuple[str, ...], bool, str]) -> Iterator[str]:
    """Of the rules that apply, each option that was given and changes nothing, and why."""
    for names, applies, why in rules:
        for name in names:
            if applies and is_given(options, name):
                yield f"{_as_written(options, name)}: {why}"


def unread(options: Options, strategies: Sequence[Strategy]) -> tuple[str, ...]:
    """Of the options that a search takes for any strategy: those that none of the chosen ones reads."""
    if not strategies:
        return ()
    settings = [strategy.settings for strategy in strategies]
    stages = {one.zero_stage for one in settings}
    chosen = " or ".join(sorted({one.title for one in settings}))
    devices = {device for one in settings for device in (one.optimizer_device, one.weights_device)}
    checkpoints = any(one.checkpointing == "full" for one in strategies)
    without_stage_3 = 3 not in stages
    sent = f"only ZeRO-3 quantises what it sends, and {chosen} was chosen"
    return tuple(_idle(
        options,
        (_STAGE_3_SIZES, without_stage_3, f"only ZeRO-3 reads it, and {chosen} was chosen"),
        (("set",), without_stage_3 and _quantises(options), sent),
        (_BUCKETS, stages <= {0, None}, f"{chosen}, which was chosen, does not read it"),
        (("reentrant",), not checkpoints, "nothing is checkpointed"),
        (("nvme",), "nvme" not in devices, "nothing is offloaded to it"),
    ))  # fmt: skip


def refuse_beside_file(
    options: Options, path: Path, config: Mapping[str, Any], left_open: Collection[str]
) -> None:
    """Refuse what a DeepSpeed JSON decides, but for the options that it leaves open. Raises InputError: names
    the option, and the key of the file with its value."""
    if is_given(options, "set"):
        raise InputError(f"{_as_written(options, 'set')}: {path} decides it: set it there")
    for name, keys in IN_FILE.items():
        if is_given(options, name) and name not in left_open:
            edits = " and ".join(f"{key} ({_value_at(config, key)})" for key in keys)
            raise InputError(f"⟨{name}⟩: {path} decides it: set {edits} in it, or leave out ⟨{name}⟩")


def _value_at(config: Mapping[str, Any], key: str) -> str:
    if (value := value_at(config, key)) is None:
        return "not set now"
    is_whole = isinstance(value, float) and value.is_integer()
    return f"{json.dumps(int(value) if is_whole else value)} now"


def _quantises(options: Options) -> bool:
    return "zero_quantized_" in str(options.get("set"))


def _as_written(options: Options, name: str) -> str:
    value = options.get(name)
    return f"⟨{name}⟩" if value is True else f"⟨{name}⟩ {value}"
