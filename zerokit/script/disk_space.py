"""Whether a save fits the file system that the script writes to, said before the run."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from zerokit.units import format_gib

_OUTPUT_OPTIONS = (
    "--output_dir", "--output-dir", "--output_path", "--save_dir", "--save-dir", "--checkpoint_dir",
    "--checkpoint-dir", "--ckpt_dir", "--out_dir",
)  # fmt: skip


def warnings(
    chosen: Mapping[str, Any],
    arguments: Sequence[str],
    values: Mapping[str, object] | None = None,
    *,
    is_trainer: bool = False,
) -> list[str]:
    """What must be said where the free space is less than weights and one checkpoint take.

    Args:
        chosen: the strategy of a ``plan.yaml``; one written before plans knew what saves take says nothing.
        arguments: the script's own, of which an output folder is taken; without one, the working directory.
        values: of the file that the arguments name, where they name none themselves.
        is_trainer: the script trains with a Trainer, which leaves the frozen weights under adapters out of
            its checkpoints.
    """
    estimate = chosen.get("estimate")
    saving = estimate.get("saving") if isinstance(estimate, Mapping) else None
    if not isinstance(saving, Mapping):
        return []
    weights, checkpoint = (saving.get(f"{kind}_bytes") for kind in ("weights", "checkpoint"))
    if not isinstance(weights, int) or not isinstance(checkpoint, int):
        return []
    frozen = saving.get("frozen_bytes")
    if is_trainer and isinstance(frozen, int):
        checkpoint -= frozen
    folder = output_folder(arguments, values or {})
    try:
        existing = next(parent for parent in (folder, *folder.absolute().parents) if parent.exists())
        free = shutil.disk_usage(existing).free
    except (OSError, StopIteration):
        return []
    if free >= weights + checkpoint:
        return []
    return [
        f"warning: {folder.absolute()} has {format_gib(free, 1)} free on this machine: if the script saves "
        f"the planned model there, its weights take {format_gib(weights, 1)} and each DeepSpeed checkpoint "
        f"{format_gib(checkpoint, 1)}"
    ]


def output_folder(arguments: Sequence[str], values: Mapping[str, object]) -> Path:
    """The folder that the script's arguments, or else the file that they name, give for its output; the
    working directory if neither does."""
    for at, argument in enumerate(arguments):
        option, equals, value = argument.partition("=")
        if option in _OUTPUT_OPTIONS or (equals and f"--{option}" in _OUTPUT_OPTIONS):
            if equals:
                return Path(value)
            if at + 1 < len(arguments):
                return Path(arguments[at + 1])
    named = (values.get(option.removeprefix("--")) for option in _OUTPUT_OPTIONS)
    return Path(next((value for value in named if isinstance(value, str)), ""))
