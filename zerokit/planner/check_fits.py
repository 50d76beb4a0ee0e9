"""Whether somebody's DeepSpeed file or accelerate YAML fits, as an estimate of it says."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from zerokit import planner
from zerokit.errors import InputError, NothingFits
from zerokit.linter.given_file import rehearsal_of
from zerokit.planner.answer import not_modelled
from zerokit.planner.auto_values import LEFT_OPEN
from zerokit.planner.check_result import Fit
from zerokit.planner.memory_source import Say
from zerokit.planner.options import BY_NAME, ELSEWHERE
from zerokit.search import headroom
from zerokit.search.explain import host_lack_words
from zerokit.units import format_gib
from zerokit.values import replace

_OF_THE_JOB = ("method", "lora-rank", "lora-targets", "lora-dropout", "trainer", "seq-len", "attention")
"""Of a plan's request: what its DeepSpeed file does not say."""
_ACCELERATE_STAGE = 2
"""Where the YAML names none (accelerate 1.15, utils/dataclasses.py, DeepSpeedPlugin.__post_init__)."""


def whether_it_fits(path: str, options: Mapping[str, Any], world_size: int | str | None, say: Say) -> Fit:
    """What an estimate of a DeepSpeed file says.

    What the file does not say comes from the options, else from the ``plan.yaml`` beside it that it was
    written with. Without either, activation checkpointing is left to the script: a file that fits only with
    it gets a warning.

    Raises:
        InputError: an option that cannot be.
    """
    return _fit(_estimate_options(path, options, world_size), path, say)


def whether_accelerate_fits(
    value: Mapping[str, Any], options: Mapping[str, Any], world_size: int | str | None, say: Say
) -> Fit | None:
    """What an estimate of an accelerate YAML says; None where it names a DeepSpeed file, which speaks for it.

    Accelerate takes the batch size per GPU from the script's DataLoader: the estimate takes ``micro_batch``,
    else 1, and the message says so.

    Raises:
        InputError: an option that cannot be.
    """
    block = value.get("deepspeed_config")
    if value.get("distributed_type") != "DEEPSPEED" or not isinstance(block, Mapping):
        return Fit(fits=None, severity=None, marked=f"it does not use DeepSpeed: {rehearsal_of(value)}")
    if block.get("deepspeed_config_file"):
        return None  # checked as a file of its own
    stage = block.get("zero_stage", _ACCELERATE_STAGE)
    strategy = {"zero": stage, "gradient_accumulation": block.get("gradient_accumulation_steps", 1)}
    if stage in (1, 2, 3):
        strategy["offload_optimizer"] = block.get("offload_optimizer_device", "none")
    if stage == 3:
        strategy["offload_param"] = block.get("offload_param_device", "none")
    # DeepSpeed runs in fp32 where it is no or absent, and beside fp8 in bf16 (accelerate 1.15,
    # utils/dataclasses.py, set_mixed_precision)
    precision = value.get("mixed_precision")
    strategy["precision"] = {"bf16": "bf16", "fp16": "fp16", "fp8": "bf16"}.get(str(precision), "fp32")
    ranks = world_size or value.get("num_processes")
    job = _given(options, ranks)
    stated = {name: str(value) for name, value in strategy.items() if value not in (None, "auto")}
    fit = _fit(job | stated, None, say)
    if precision is not None:
        return fit
    return replace(fit, marked=f"{fit.marked}; mixed_precision is not given, so fp32 is taken")


def _fit(estimate_options: Mapping[str, str], path: str | None, say: Say) -> Fit:
    fits, message = _answer(estimate_options, path, say)
    if fits is not False:
        return Fit(fits=fits, severity=None, marked=message)
    if "checkpointing" not in estimate_options:
        fits_then, _ = _answer({**estimate_options, "checkpointing": "full"}, path, say)
        if fits_then is not False:
            return Fit(
                fits=False,
                severity="warning",
                marked=f"{message} without activation checkpointing; it {'fits' if fits_then else 'may fit'} "
                "if the script turns that on",
            )
    return Fit(fits=False, severity="error", marked=message)


def _answer(estimate_options: Mapping[str, str], path: str | None, say: Say) -> tuple[bool | None, str]:
    """Whether it fits, and a sentence with the figures."""
    try:
        answer = planner.estimate(estimate_options, deepspeed=path, say=say)
    except NothingFits as error:
        return False, error.marked
    peak = f"peak of tensors {format_gib(answer.peak_allocated_bytes)}"
    left_open = _left_open(answer.planned.notes, estimate_options, path)
    required = f"{format_gib(answer.min_vram_bytes)} required"
    settings, length = answer.planned.strategy.settings, answer.planned.job.seq_len
    job = f"{peak}; {settings.precision}, batch size per GPU {settings.micro_batch}, {length:,} tokens each"
    assumed = ["⟨micro_batch⟩"] if path is None and "micro_batch" not in estimate_options else []
    assumed += [] if "seq_len" in estimate_options else ["⟨seq_len⟩"]
    if assumed:
        job += f": {' and '.join(assumed)} not given"
    if answer.fits is False:
        return False, f"does not fit: {required} on the worst GPU ({job}){left_open}"
    if answer.planned.fits is None:
        return None, f"{required} per GPU ({job}); ⟨gpu⟩ or ⟨vram⟩ tells whether it fits{left_open}"
    memory, gpu = answer.planned.candidate.memory, answer.planned.cluster.gpu
    available = format_gib(gpu.driver_vram_bytes)
    lack = host_lack_words(memory, answer.planned.cluster)
    host = f", and {lack}" if lack else ""
    fits = "fits" if answer.planned.is_sure else "may fit"
    if unmodelled := not_modelled(answer.planned.not_modelled):
        fits += f" ({unmodelled})"
    if not headroom.is_sure(memory, gpu):
        job = f"{headroom.headroom_words(memory, gpu)}; {job}"
    fits += " the GPU, but maybe not the host" if lack else ""
    return answer.fits, f"{fits}: {required} of {available} per GPU{host} ({job}){left_open}"


def _left_open(notes: Iterable[str], estimate_options: Mapping[str, str], path: str | None) -> str:
    """What was taken for the keys that the file leaves to the script, and the command that takes others."""
    taken = [note.split(LEFT_OPEN)[0] for note in notes if LEFT_OPEN in note]
    if not taken or path is None:
        return ""
    words = ["zerokit", "estimate", "--deepspeed", path]
    for name, value in estimate_options.items():
        words += [BY_NAME[name].option, value]
    return (
        f"; left to the script, and taken as: {', '.join(taken)} (`{shlex.join(words)}` takes other values)"
    )


def _estimate_options(path: str, options: Mapping[str, Any], world_size: int | str | None) -> dict[str, str]:
    """The options of the estimate."""
    given = _given(options, world_size)
    planned = _of_plan_beside(Path(path))
    if given.get("method") not in (None, planned.get("method")):  # the plan's adapters are of another method
        planned = {name: value for name, value in planned.items() if not name.startswith("lora_")}
    return planned | given


def _given(options: Mapping[str, Any], ranks: object) -> dict[str, str]:
    """The options that ``check`` takes for this, the number of GPUs from ``ranks`` where it was not given."""
    values = {name: options.get(name) for name in ELSEWHERE["check"]}
    values["gpus"] = values["gpus"] or ranks
    return {name: str(value) for name, value in values.items() if value}


def _of_plan_beside(path: Path) -> dict[str, str]:
    """What the plan that the file was written with says of its job."""
    from zerokit.emit import plan_file

    plan_path = path.parent / plan_file.FILE_NAME
    if not plan_path.is_file():
        return {}
    try:
        plan = plan_file.read(plan_path)
    except InputError:
        return {}
    if path.name not in plan.files.values():
        return {}
    decided = {
        name.replace("-", "_"): str(plan.request[name]) for name in _OF_THE_JOB if plan.request.get(name)
    }
    return decided | {"checkpointing": str(plan.chosen.get("activation_checkpointing", "none"))}
