"""The plan or the DeepSpeed JSON that a user names: read, or what stands there instead is said."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from zerokit.emit import plan_file
from zerokit.emit.outside import check_outside
from zerokit.emit.plan_file import NotAPlan, PlanFile
from zerokit.errors import FileInputError, about
from zerokit.launcher.run_folder import CONFIG_FILE
from zerokit.strictload import Document


def read_plan(folder: str, run_dir: Path | None = None) -> tuple[PlanFile, dict[str, Any]]:
    """The plan file and its DeepSpeed configuration (``ds_config.json`` beside it goes first).

    Args:
        run_dir: where a run with it may write.

    Raises:
        InputError: no plan there, a file in it that cannot be read, or one that names what only a user may
            name.
    """
    plan = read_plan_file(folder, run_dir)
    path = plan.folder / CONFIG_FILE
    return plan, read_plan_config(path, run_dir) if path.is_file() else dict(plan.chosen["deepspeed_config"])


def read_plan_file(folder: str, run_dir: Path | None = None) -> PlanFile:
    """The plan file in a folder, or a plan file itself.

    Raises:
        InputError: no plan there; says what the file is, where that can be told.
    """
    from zerokit.linter.given_file import in_place_of_plan

    with about("plan"):
        try:
            return plan_file.read(folder, run_dir)
        except NotAPlan as error:
            other = in_place_of_plan(Path(error.path))
            if other is None:
                raise
            raise FileInputError(error.path, other) from None


def read_config(path: Path) -> dict[str, Any]:
    """The DeepSpeed JSON that ⟨deepspeed⟩ names.

    Raises:
        InputError: it cannot be read, or is none.
    """
    with about("deepspeed"):
        return dict(_load(path).value)


def read_plan_config(path: Path, run_dir: Path | None = None) -> dict[str, Any]:
    """A DeepSpeed JSON of a plan; ``run_dir``: where a run with it may write.

    Raises:
        InputError: it cannot be read, is none, or names what only a user may name.
    """
    with about("plan"):
        document = _load(path)
        check_outside(document, (), run_dir)
    return dict(document.value)


def _load(path: Path) -> Document:
    from zerokit.linter.given_file import load_deepspeed

    document = load_deepspeed(path)
    plan_file.check_config(document)
    return document
