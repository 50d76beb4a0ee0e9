"""``zerokit recipes``: list, show, copy and check the committed recipes."""

from __future__ import annotations

import click

from zerokit.cli.base import Group
from zerokit.cli.prose import aligned
from zerokit.cli.say import write as show
from zerokit.cli.say import write_json


@click.group("recipes", cls=Group)
def command() -> None:
    """Plan requests for common jobs, each with the strategy it is expected to give.

    Use one with `zerokit plan --recipe NAME` or `zerokit launch --recipe NAME train.py`.
    """


@command.command("list")
@click.option("--json", "as_json", is_flag=True, help="One object on standard output.")
def list_command(as_json: bool) -> None:
    """List all recipes by name."""
    from zerokit.planner import recipes

    loaded = [recipes.load(name) for name in recipes.names()]
    if as_json:
        body = [
            {"name": recipe.name, "title": recipe.title, "request": dict(recipe.request)} for recipe in loaded
        ]
        write_json({"schema": "zerokit.recipes/1", "recipes": body}, 2)
        return
    rows = [("recipe", "for")] + [(recipe.name, recipe.title) for recipe in loaded]
    for line in aligned(rows):
        show(line)


@command.command("show")
@click.argument("name", metavar="NAME|FILE")
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]…")
@click.option("--json", "as_json", is_flag=True, help="One object on standard output.")
def show_command(name: str, overrides: tuple[str, ...], as_json: bool) -> None:
    """Show one recipe and the command it stands for."""
    import shlex

    from zerokit.cli.prose import command_lines
    from zerokit.planner import recipes

    recipe = recipes.with_overrides(recipes.load_any(name), overrides)
    if as_json:
        write_json(recipe.to_dict(), 2)
        return
    if overrides:
        show(f"{recipe.title}, with {' '.join(overrides)}")
    else:
        show(recipe.path.read_text(encoding="utf-8").rstrip())
    show("\n".join(["", *command_lines(f"zerokit plan {shlex.join(recipe.arguments())}")]))


@command.command("copy")
@click.argument("name")
@click.argument("destination", default=".")
def copy_command(name: str, destination: str) -> None:
    """Copy a recipe to change it.

    The copy never replaces an existing file.
    """
    from zerokit.planner import recipes

    show(str(recipes.copy(name, destination)))


@command.command("check")
@click.argument("names", nargs=-1, metavar="[NAME|FILE]…")
@click.option("--json", "as_json", is_flag=True, help="One object on standard output.")
@click.option("--write", is_flag=True, help="Write what is planned today into the files' expect block.")
def check_command(names: tuple[str, ...], as_json: bool, write: bool) -> int:
    """Plan each recipe and compare with what it expects.

    All recipes, unless some are named. Unknown keys are errors.
    """
    from zerokit.planner import recipes
    from zerokit.planner.recipes import check_recipes

    results = check_recipes(names or recipes.names(), write=write)
    failed = sum(bool(problems) for problems in results.values())
    if as_json:
        body = {"schema": "zerokit.recipes-check/1", "ok": not failed, "problems": results}
        write_json(body, 2)
    else:
        for name, problems in results.items():
            for problem in problems:
                show(f"{name}: {problem}")
        show(f"{len(results) - failed} of {len(results)} recipes as expected")
    return 2 if failed else 0
