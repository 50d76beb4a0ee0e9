"""What ``check`` finds in plans, in the files that lie beside one, and in recipes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from zerokit.errors import FileInputError, InputError
from zerokit.fields import as_options
from zerokit.linter.files import CheckedFile, internal_error
from zerokit.linter.finding import Finding
from zerokit.planner.recipes import Recipe
from zerokit.strictload import Document, Location


def add_plans_and_recipes(checked: Sequence[CheckedFile]) -> None:
    """Add the findings about plans, their files, and recipes."""
    for file in checked:
        if file.document is None:
            continue
        if file.kind in ("deepspeed", "accelerate"):
            file.findings += _named_by_plan(file.path, file.document, file.kind)
        if file.kind not in ("plan", "recipe"):
            continue
        try:
            if file.kind == "plan":
                from zerokit.emit import plan_file

                plan_file.read(file.path)
            else:
                from zerokit.planner.recipes import parse_recipe

                _look_up(parse_recipe(file.document), file.document)
        except InputError as error:
            line, column = (error.line, error.column) if isinstance(error, FileInputError) else (1, 1)
            file.findings.append(
                Finding(
                    path=file.path,
                    location=Location(line or 1, column or 1),
                    rule=f"{file.kind}-invalid",
                    severity="error",
                    marked=error.message if isinstance(error, FileInputError) else error.marked,
                    marked_fix="",
                )
            )
        except Exception as error:
            file.findings.append(internal_error(file.path, error))


def _named_by_plan(path: str, document: Document, kind: str) -> Iterator[Finding]:
    """What a file of a plan names outside of a run folder."""
    from zerokit.emit import outside, plan_file

    folder = Path(path).parent
    if not (folder / plan_file.FILE_NAME).is_file():
        return
    table, folders = (outside.DEEPSPEED, ()) if kind == "deepspeed" else (outside.ACCELERATE, (str(folder),))
    for named in outside.outside(document.value, folders, table):
        if named.path[-1] == "deepspeed_config_file" and (folder / Path(named.written).name).is_file():
            continue  # a plan that was moved
        yield Finding(
            path=path,
            location=document.location(named.path),
            rule="plan-invalid",
            severity="error",
            marked=outside.say(named),
            marked_fix="",
        )


def _look_up(recipe: Recipe, document: Document) -> None:
    """The model and GPU that a recipe names.

    Raises:
        FileInputError: there is no such thing.
    """
    from zerokit.catalog import gpus, models

    for key, look_up in (("gpu", gpus.lookup), ("model", models.lookup)):
        name = recipe.request.get(key)
        if name is None or (key == "model" and ("/" in name or Path(name).exists())):
            continue
        try:
            look_up(name)
        except InputError as error:
            raise document.error((key,), as_options(error.marked)) from None
