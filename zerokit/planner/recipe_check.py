"""Whether a recipe still plans to what it says, and writing down what it plans to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from zerokit import planner
from zerokit.errors import InputError, ZerokitError
from zerokit.fields import as_options
from zerokit.files import write_whole
from zerokit.planner import recipes
from zerokit.planner.recipes import EXPECTED_STRATEGY, Recipe, differences, prediction_of
from zerokit.strictload import load_yaml
from zerokit.strictload.yamldump import dump_yaml
from zerokit.temporary import temporary_folder


def check_recipe(recipe: Recipe, *, write: bool = False) -> list[str]:
    """Plan it, and say where the plan is not what it expects; ``write``: make that its expectation instead.

    Raises:
        InputError: it expects nothing yet, or cannot be planned or written.
        NothingFits: no strategy fits.
    """
    with temporary_folder("recipe") as folder:
        chosen = planner.plan(recipe.options(), top=1, out=folder).chosen.to_dict()
    if write:
        _write_expectation(recipe, chosen)
        return []
    if not recipe.expect:
        raise InputError("has no expect block; `zerokit recipes check --write` fills it")
    return differences(recipe, chosen)


def check_recipes(names: Iterable[str], *, write: bool = False) -> dict[str, list[str]]:
    """What is wrong with each recipe, by its name or file; nothing where it plans to what it expects."""
    problems: dict[str, list[str]] = {}
    for name in names:
        try:
            problems[name] = check_recipe(recipes.load_any(name), write=write)
        except ZerokitError as error:
            problems[name] = [as_options(error.marked)]
    return problems


def _write_expectation(recipe: Recipe, chosen: Mapping[str, Any]) -> None:
    """Put the planned strategy and figures below the request, which stays as its author wrote it."""
    document = load_yaml(recipe.path)
    if "schema" in document.value:
        raise InputError("is a plan, which holds its prediction already; --write is for recipes")
    head = document.text
    if "expect" in document.value:
        if list(document.value)[-1] != "expect":
            raise document.error(("expect",), "expect must be the last key, for --write to replace it")
        line = document.keys[("expect",)].line
        head = "".join(document.text.splitlines(keepends=True)[: line - 1])
    head = head.rstrip() + "\n"
    expect = {
        "strategy": {key: chosen[key] for key in EXPECTED_STRATEGY},
        "prediction": prediction_of(chosen),
    }
    write_whole(recipe.path, f"{head}\n{dump_yaml({'expect': expect})}", through_links=True)
