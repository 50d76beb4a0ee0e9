"""``zerokit plan``: the fastest strategy that fits, its files and its reasons."""

from __future__ import annotations

import json
import shlex
from typing import Any

import click

from zerokit.cli import options as shared_options
from zerokit.cli.say import say
from zerokit.errors import InputError
from zerokit.planner.plan_folder import DEFAULT_FOLDER
from zerokit.units import parse_positive_int


@click.command(
    "plan",
    short_help="Choose the fastest DeepSpeed strategy that fits, and write its files.",
    epilog="Example: zerokit plan --params 70b --gpus 8",
)
@shared_options.shared
@click.option("--recipe", metavar="NAME|FILE", help="Options from a recipe or a plan.yaml; others given win.")
@click.option("--out", metavar="DIR", help=f"Where the files go. Default: {DEFAULT_FOLDER}.")
@click.option("--top", metavar="K", default="5", show_default=True, help="How many plans to show.")
@click.option("--json", "as_json", is_flag=True, help="Print the plan as JSON on standard output.")
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]…")
def command(
    recipe: str | None, out: str | None, top: str, as_json: bool, overrides: tuple[str, ...], **options: Any
) -> None:
    """Choose the fastest DeepSpeed strategy that fits, and say why.

    KEY=VALUE changes a key of the recipe: gpus=16 nodes=2; `key=` takes it out.
    """
    from zerokit import planner
    from zerokit.cli import show
    from zerokit.emit.deepspeed import trainer_arguments
    from zerokit.search.explain import cluster_words

    if overrides and recipe is None:
        raise InputError(f"{overrides[0]}: only with --recipe; write options as --name VALUE")
    folder = out or DEFAULT_FOLDER
    count = parse_positive_int(top, "⟨top⟩", 100)
    result = planner.plan(options, recipe=recipe, overrides=overrides, out=folder, top=count, say=say)
    body = result.to_dict(whole=as_json)
    if as_json:
        click.echo(json.dumps(body, indent=1, allow_nan=False))
        return
    title = f"Plan for {result.model_name} on {cluster_words(result.cluster)}"
    next_command = f"zerokit launch --plan {shlex.quote(folder)} train.py"
    if not result.job.inference and result.chosen.pipeline_parallel == 1:
        added = shlex.join(trainer_arguments(result.chosen.strategy))
        next_command += f"\n  which gives a script with a Hugging Face Trainer:\n    {added}"
    capacity = result.cluster.gpu.driver_vram_bytes
    click.echo(show.plan(body, title, capacity, on_cpu=result.on_cpu, next_command=next_command))
