"""Which plan a launch runs with: the one that is named, planned from a recipe, or found in this folder."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from zerokit.commands import DEFAULT_FOLDER
from zerokit.emit import plan_file
from zerokit.errors import InputError
from zerokit.temporary import is_temporary, make_folder

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
    """The folder of the plan; None: the script runs without one.

    Args:
        arguments: the script's; a DeepSpeed file among them goes before a plan that only lies here.

    Raises:
        InputError: more than one is named, or the recipe cannot be planned.
    """
    named = {"plan": plan, "recipe": recipe, "deepspeed": deepspeed, "no_plan": no_plan}
    named_options = [name for name, value in named.items() if value]
    if len(named_options) > 1:
        raise InputError(f"{' and '.join(f'⟨{name}⟩' for name in named_options)}: give one of them")
    if recipe:
        return _planned(recipe, overrides, plan_recipe)
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
        say(
            f"{DEFAULT_FOLDER} is not used: the script is given {own_config}; ⟨plan⟩ {DEFAULT_FOLDER} uses it"
        )
        return None
    title = plan_file.title_of(DEFAULT_FOLDER)
    what = f": {title}" if title else ""
    say(f"plan: {DEFAULT_FOLDER}, found here{what} (⟨no_plan=True⟩ runs without one)")
    return DEFAULT_FOLDER


def _planned(recipe: str, overrides: Sequence[str], plan_recipe: PlanRecipe) -> str:
    """Plan into a temporary folder; the run folder keeps a copy."""
    folder = make_folder("plan")
    plan_recipe(recipe, overrides, folder)
    return str(folder)
