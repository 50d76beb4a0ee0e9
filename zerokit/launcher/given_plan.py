"""The plan or the DeepSpeed JSON that a user names: read, or what stands there instead is said."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from zerokit.emit import plan_file
from zerokit.emit.plan_file import NotAPlan, PlanFile
from zerokit.errors import FileInputError, about
from zerokit.launcher.run_folder import CONFIG_FILE


def read_plan(folder: str) -> tuple[PlanFile, dict[str, Any]]:
    """The plan file and its DeepSpeed configuration (``ds_config.json`` beside it goes first).

    Raises:
        InputError: no plan there, or a file in it that cannot be read.
    """
    plan = read_plan_file(folder)
    path = plan.folder / CONFIG_FILE
    return plan, read_config(path, "plan") if path.is_file() else dict(plan.chosen["deepspeed_config"])


def read_plan_file(folder: str) -> PlanFile:
    """The plan file in a folder, or a plan file itself.

    Raises:
        InputError: no plan there; says what the file is, where that can be told.
    """
    from zerokit.linter.given_file import in_place_of_plan

    with about("plan"):
        try:
            return plan_file.read(folder)
        except NotAPlan as error:
            other = in_place_of_plan(Path(error.path))
            if other is None:
                raise
            raise FileInputError(error.path, other) from None


def read_config(path: Path, argument: str) -> dict[str, Any]:
    """A DeepSpeed JSON, which this argument names.

    Raises:
        InputError: it cannot be read, or is none.
    """
    from zerokit.linter.given_file import load_deepspeed

    with about(argument):
        document = load_deepspeed(path)
        plan_file.check_config(document)
    return dict(document.value)
