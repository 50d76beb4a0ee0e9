"""The plan or the DeepSpeed JSON that a user names: read, or what stands there instead is said."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from zerokit.commands import DEFAULT_FOLDER
from zerokit.emit import plan_file
from zerokit.emit.outside import check_outside
from zerokit.emit.plan_file import NotAPlan, PlanFile
from zerokit.errors import FileInputError, InputError, about
from zerokit.launcher.run_folder import CONFIG_FILE
from zerokit.strictload import Document
from zerokit.temporary import is_temporary, make_folder


def read_plan(folder: str, run_dir: Path | None = None) -> tuple[PlanFile, dict[str, Any] | None]:
    """The plan file and its DeepSpeed configuration (``ds_config.json`` beside it goes first); None: it is
    another engine's. ``run_dir``: where a run with it may write. Raises InputError: no plan there, a file in
    it that cannot be read, or one that names what only a user may name."""
    plan = read_plan_file(folder, run_dir, engines=("deepspeed", "fsdp2"))
    if plan.engine != "deepspeed":
        return plan, None
    path = plan.folder / CONFIG_FILE
    return plan, read_plan_config(path, run_dir) if path.is_file() else dict(plan.chosen["deepspeed_config"])


_OF_ANOTHER_ENGINE = {
    "deepspeed": "is a plan for DeepSpeed",
    "fsdp2": "is a plan for FSDP2: its files are beside it, and `zerokit launch`, `rehearse`, `emit sbatch`, "
    "`emit kubernetes` and `convert` take it",
    "ddp": "is a plan without an engine, which no command takes: `zerokit launch --no-plan --gpus N SCRIPT` "
    "runs the script, and `zerokit rehearse SCRIPT` rehearses it",
}
"""Engine of a plan -> what is said of it where that is of no use."""


def read_plan_file(
    folder: str, run_dir: Path | None = None, *, engines: Sequence[str] = ("deepspeed",)
) -> PlanFile:
    """The plan file in a folder, or a plan file itself; ``engines``: those whose plans are of use. Raises
    InputError: no plan there; says what the file is, where that can be told."""
    from zerokit.linter.files import in_place_of_plan

    with about("plan"):
        try:
            plan = plan_file.read(folder, run_dir)
            if plan.engine not in engines:
                if plan.engine == "fsdp2":
                    plan.strategy()  # refuses what no command takes
                raise FileInputError(plan.path, _OF_ANOTHER_ENGINE[plan.engine])
            return plan
        except NotAPlan as error:
            other = in_place_of_plan(Path(error.path))
            if other is None:
                raise
            raise FileInputError(error.path, other) from None


def read_config(path: Path) -> dict[str, Any]:
    """The DeepSpeed JSON that ⟨deepspeed⟩ names. Raises InputError: it cannot be read, or is none."""
    with about("deepspeed"):
        return dict(_load(path).value)


def read_plan_config(path: Path, run_dir: Path | None = None) -> dict[str, Any]:
    """A DeepSpeed JSON of a plan; ``run_dir``: where a run with it may write. Raises InputError: it cannot be
    read, is none, or names what only a user may name."""
    with about("plan"):
        document = _load(path)
        check_outside(document, (), run_dir)
    return dict(document.value)


def _load(path: Path) -> Document:
    from zerokit.linter.files import load_deepspeed

    document = load_deepspeed(path)
    plan_file.check_config(document)
    return document


_OWN = ("--deepspeed", "--deepspeed_config")

PlanRecipe = Callable[[str, Sequence[str], Path], None]
"""Plans a recipe with its overrides (``key=value``), and writes the plan into a folder."""


def choose_plan(
    *,
    plan: str | None,
    recipe: str | None,
    deepspeed: str | None,
    no_plan: bool,
    overrides: Sequence[str],
    arguments: Sequence[str],
    plan_recipe: PlanRecipe,
    say: Callable[[str], None],
) -> str | None:
    """The folder of the plan; None: the script runs without one. A DeepSpeed file among its arguments goes
    before a plan that only lies here. Raises InputError: more than one is named, or the recipe cannot be
    planned."""
    named = {"plan": plan, "recipe": recipe, "deepspeed": deepspeed, "no_plan": no_plan}
    named_options = [f"⟨{name}⟩" for name, value in named.items() if value]
    if len(named_options) > 1:
        raise InputError(f"{' and '.join(named_options)}: give one of them")
    if recipe:
        folder = make_folder("plan")  # temporary; the run folder keeps a copy
        plan_recipe(recipe, overrides, folder)
        return str(folder)
    if named_options:
        if plan is not None and not is_temporary(Path(plan)) and (title := plan_file.title_of(plan)):
            say(f"{plan}: {title}")
        return plan
    own_config = next((argument for argument in arguments if argument.partition("=")[0] in _OWN), None)
    if not Path(DEFAULT_FOLDER).is_dir():
        if own_config is None:
            say(
                f"no plan is used: there is no {DEFAULT_FOLDER} here; `zerokit plan` makes one, and "
                "⟨plan⟩ DIR names one that lies elsewhere"
            )
        return None
    if not (Path(DEFAULT_FOLDER) / plan_file.FILE_NAME).is_file():
        say(f"{DEFAULT_FOLDER} is not used: it holds no plan.yaml")
        return None
    if own_config is not None:
        given = f"the script is given {own_config}"
        say(f"{DEFAULT_FOLDER} is not used: {given}; ⟨plan⟩ {DEFAULT_FOLDER} uses it")
        return None
    title = plan_file.title_of(DEFAULT_FOLDER)
    what = f": {title}" if title else ""
    say(f"plan: {DEFAULT_FOLDER}, found here{what} (⟨no_plan=True⟩ runs without one)")
    return DEFAULT_FOLDER
