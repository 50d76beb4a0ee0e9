"""``zerokit plan``: the fastest strategy that fits, its files and its reasons."""

from __future__ import annotations

import json
from typing import Any

import click

from zerokit.cli import options as shared_options
from zerokit.cli.base import Command
from zerokit.cli.say import say
from zerokit.errors import InputError
from zerokit.planner.plan_folder import DEFAULT_FOLDER
from zerokit.units import parse_positive_int


@click.command(
    "plan",
    cls=Command,
    short_help="Choose the fastest DeepSpeed strategy that fits, and write its files.",
    examples=(
        (
            "LoRA on 4-bit weights, one 24 GB card",
            "zerokit plan --model llama-3.1-8b --method qlora --gpus 1 --gpu rtx-4090",
        ),
        (
            "All weights of an 8B model on 8 GPUs",
            "zerokit plan --model llama-3.1-8b --gpus 8 --gpu h100-sxm-80gb",
        ),
        ("70B on two nodes", "zerokit plan --model llama-3.1-70b --gpus 16 --nodes 2 --gpu h200"),
    ),
)
@shared_options.shared
@click.option("--recipe", metavar="NAME|FILE", help="Options from a recipe or a plan.yaml; others given win.")
@click.option("--out", metavar="DIR", help=f"Where the files go. Default: {DEFAULT_FOLDER}.")
@click.option("--top", metavar="K", default="5", show_default=True, help="How many plans to show.")
@shared_options.explain
@click.option("--json", "as_json", is_flag=True, help="Print the plan as JSON on standard output.")
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]…")
def command(
    recipe: str | None,
    out: str | None,
    top: str,
    explain: bool,
    as_json: bool,
    overrides: tuple[str, ...],
    **options: Any,
) -> None:
    """Choose the fastest DeepSpeed strategy that fits, and say why.

    What is not given of the strategy and the batch is searched.

    KEY=VALUE changes a key of the recipe: gpus=16 nodes=2; `key=` takes it out.
    """
    from zerokit import planner
    from zerokit.cli import show

    if overrides and recipe is None:
        raise InputError(f"{overrides[0]}: only with --recipe; write options as --name VALUE")
    folder = out or DEFAULT_FOLDER
    count = parse_positive_int(top, "⟨top⟩", 100)
    result = planner.plan(options, recipe=recipe, overrides=overrides, out=folder, top=count, say=say)
    if as_json:
        click.echo(json.dumps(result.to_dict(), indent=1, allow_nan=False))
        return
    click.echo(show.plan(result, folder, explain=explain))
