"""Whether somebody's DeepSpeed file fits, as ``zerokit estimate`` sees it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from zerokit.cli.inprocess import json_of
from zerokit.errors import InputError, NothingFits
from zerokit.units import format_gib

_PASSED_ON = (
    "model", "params", "gpus", "nodes", "gpu", "vram", "seq_len", "method", "lora_rank", "checkpointing",
)  # fmt: skip
_OF_THE_JOB = ("method", "lora-rank", "lora-targets", "seq-len", "attention")
"""Of a plan's request: what its DeepSpeed file does not say."""


def why_it_does_not_fit(
    path: str, options: Mapping[str, Any]
) -> tuple[Literal["error", "warning"], str] | None:
    """Severity and a sentence with the figures, or ``None`` when the file fits (or no memory was named).

    What a DeepSpeed file does not say comes from the options, else from the ``plan.yaml`` beside it that it
    was written with. Without either, activation checkpointing is left to the script: a file that fits only
    with it gets a warning.
    """
    arguments = _arguments(path, options)
    answer = _estimate(arguments)
    if answer is None:
        return None
    if "--checkpointing" not in arguments and _estimate([*arguments, "--checkpointing", "full"]) is None:
        return "warning", f"{answer} without activation checkpointing; it fits if the script turns that on"
    return "error", answer


def _estimate(arguments: list[str]) -> str | None:
    try:
        answer = json_of("estimate", arguments)
    except NothingFits as error:
        return str(error)
    if answer["fits"] is not False:
        return None
    return (
        f"does not fit: the worst GPU needs {format_gib(answer['min_vram_bytes'])} "
        f"(peak of tensors {format_gib(answer['peak_allocated_bytes'])})"
    )


def _arguments(path: str, options: Mapping[str, Any]) -> list[str]:
    given = {name.replace("_", "-"): options.get(name) for name in _PASSED_ON}
    if options.get("world_size") and not options.get("gpus"):
        given["gpus"] = options["world_size"]
    planned = _of_plan_beside(Path(path))
    if given["method"] not in (None, planned.get("method")):  # the plan's adapters are of another method
        planned = {name: value for name, value in planned.items() if not name.startswith("lora-")}
    asked = planned | {name: str(value) for name, value in given.items() if value}
    return ["--deepspeed", path, *(part for name, value in asked.items() for part in (f"--{name}", value))]


def _of_plan_beside(path: Path) -> dict[str, str]:
    """What the plan that the file was written with says of its job."""
    from zerokit.emit import plan_file

    place = path.parent / plan_file.FILE_NAME
    if not place.is_file():
        return {}
    try:
        plan = plan_file.read(place)
    except InputError:
        return {}
    if path.name not in plan.files.values():
        return {}
    found = {name: str(plan.request[name]) for name in _OF_THE_JOB if plan.request.get(name)}
    return found | {"checkpointing": str(plan.chosen.get("activation_checkpointing", "none"))}
