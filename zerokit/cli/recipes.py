"""``zerokit recipes``: list, show, copy and check plan requests kept as files."""

from __future__ import annotations

import json
from typing import Any

import click

from zerokit.cli.columns import aligned
from zerokit.errors import InputError, ZerokitError


@click.group("recipes")
def command() -> None:
    """Plan requests for common jobs, each with the strategy it is expected to give.

    Use one with `zerokit plan --recipe NAME` or `zerokit launch --recipe NAME train.py`.
    """


@command.command("list")
@click.option("--json", "as_json", is_flag=True, help="One object on standard output.")
def list_command(as_json: bool) -> None:
    """All recipes, by name."""
    from zerokit.planner import recipes

    found = [recipes.load(name) for name in recipes.names()]
    if as_json:
        body = [
            {"name": recipe.name, "title": recipe.title, "request": dict(recipe.request)} for recipe in found
        ]
        click.echo(json.dumps({"schema": "zerokit.recipes/1", "recipes": body}, indent=2))
        return
    rows = [("recipe", "for")] + [(recipe.name, recipe.title) for recipe in found]
    for line in aligned(rows):
        click.echo(line)


@command.command("show")
@click.argument("name", metavar="NAME|FILE")
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]…")
@click.option("--json", "as_json", is_flag=True, help="One object on standard output.")
def show_command(name: str, overrides: tuple[str, ...], as_json: bool) -> None:
    """One recipe, and the command it stands for."""
    import shlex

    from zerokit.planner import recipes

    recipe = recipes.with_overrides(recipes.load_any(name), overrides)
    if as_json:
        click.echo(json.dumps(_as_dict(recipe), indent=2))
        return
    if overrides:
        click.echo(f"{recipe.title}, with {' '.join(overrides)}")
    else:
        click.echo(recipe.path.read_text(encoding="utf-8").rstrip())
    click.echo(f"\nzerokit plan {shlex.join(recipe.arguments())}")


@command.command("copy")
@click.argument("name")
@click.argument("destination", default=".")
def copy_command(name: str, destination: str) -> None:
    """Copy a recipe to a folder or file, to be changed; never over an existing file."""
    from zerokit.planner import recipes

    click.echo(recipes.copy(name, destination))


@command.command("check")
@click.argument("names", nargs=-1, metavar="[NAME|FILE]…")
@click.option("--json", "as_json", is_flag=True, help="One object on standard output.")
@click.option("--write", is_flag=True, help="Write what is planned today into the files' expect block.")
def check_command(names: tuple[str, ...], as_json: bool, write: bool) -> int:
    """Read each recipe strictly, plan it, and compare with what it expects. All unless some are named."""
    from zerokit.planner import recipes

    results: dict[str, list[str]] = {}
    for name in names or recipes.names():
        try:
            results[name] = _check_one(recipes.load_any(name), write=write)
        except ZerokitError as error:
            results[name] = [str(error)]
    failed = sum(bool(problems) for problems in results.values())
    if as_json:
        body = {"schema": "zerokit.recipes-check/1", "ok": not failed, "problems": results}
        click.echo(json.dumps(body, indent=2))
    else:
        for name, problems in results.items():
            for problem in problems:
                click.echo(f"{name}: {problem}")
        click.echo(f"{len(results) - failed} of {len(results)} recipes as expected")
    return 2 if failed else 0


def _check_one(recipe: Any, *, write: bool) -> list[str]:
    import tempfile

    from zerokit.cli.inprocess import json_of
    from zerokit.planner import recipes

    with tempfile.TemporaryDirectory(prefix="zerokit-recipe-") as folder:
        chosen = json_of("plan", [*recipe.arguments(), "--top", "1", "--out", folder])["chosen"]
    if write:
        _write_expectation(recipe, chosen)
        return []
    if not recipe.expect:
        raise InputError("has no expect block; `zerokit recipes check --write` fills it")
    return recipes.differences(recipe, chosen)


def _write_expectation(recipe: Any, chosen: dict[str, Any]) -> None:
    """Put the planned strategy and figures below the request, which stays as its author wrote it."""
    from zerokit.files import write_whole
    from zerokit.planner import recipes
    from zerokit.strictload import load_yaml
    from zerokit.strictload.yamldump import dump_yaml

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
        "strategy": {key: chosen[key] for key in recipes.EXPECTED_STRATEGY},
        "prediction": recipes.prediction_of(chosen),
    }
    write_whole(recipe.path, f"{head}\n{dump_yaml({'expect': expect})}", through_links=True)


def _as_dict(recipe: Any) -> dict[str, Any]:
    return {
        "schema": "zerokit.recipe/1",
        "name": recipe.name,
        "title": recipe.title,
        "description": recipe.description,
        "request": dict(recipe.request),
        "arguments": recipe.arguments(),
        "expect": dict(recipe.expect),
    }
