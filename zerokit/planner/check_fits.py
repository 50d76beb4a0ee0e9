"""Whether somebody's DeepSpeed file fits, as an estimate of it says."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from zerokit import planner
from zerokit.errors import InputError, NothingFits
from zerokit.fields import as_options
from zerokit.planner.memory_source import Say
from zerokit.planner.options import OPTIONS
from zerokit.units import format_gib

_OF_THE_JOB = ("method", "lora-rank", "lora-targets", "seq-len", "attention")
"""Of a plan's request: what its DeepSpeed file does not say."""


def why_it_does_not_fit(
    path: str, options: Mapping[str, Any], world_size: int | str | None, say: Say
) -> tuple[Literal["error", "warning"], str] | None:
    """Severity and a sentence with the figures, or ``None`` when the file fits (or no memory was named).

    What a DeepSpeed file does not say comes from the options, else from the ``plan.yaml`` beside it that it
    was written with. Without either, activation checkpointing is left to the script: a file that fits only
    with it gets a warning.

    Raises:
        InputError: an option that cannot be.
    """
    estimate_options = _estimate_options(path, options, world_size)
    answer = _lack(path, estimate_options, say)
    if answer is None:
        return None
    if (
        "checkpointing" not in estimate_options
        and _lack(path, {**estimate_options, "checkpointing": "full"}, say) is None
    ):
        return "warning", f"{answer} without activation checkpointing; it fits if the script turns that on"
    return "error", answer


def _lack(path: str, estimate_options: Mapping[str, str], say: Say) -> str | None:
    """What is lacking, in a sentence; None where nothing is."""
    try:
        answer = planner.estimate(estimate_options, deepspeed=path, say=say)
    except NothingFits as error:
        return as_options(error.marked)
    if answer.fits is not False:
        return None
    return (
        f"does not fit: the worst GPU needs {format_gib(answer.min_vram_bytes)} "
        f"(peak of tensors {format_gib(answer.peak_allocated_bytes)})"
    )


def _estimate_options(path: str, options: Mapping[str, Any], world_size: int | str | None) -> dict[str, str]:
    """The options of the estimate."""
    values = {option.name: options.get(option.name) for option in OPTIONS if option.in_check is not None}
    if world_size and not values["gpus"]:
        values["gpus"] = world_size
    planned = _of_plan_beside(Path(path))
    if values["method"] not in (None, planned.get("method")):  # the plan's adapters are of another method
        planned = {name: value for name, value in planned.items() if not name.startswith("lora_")}
    return planned | {name: str(value) for name, value in values.items() if value}


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
