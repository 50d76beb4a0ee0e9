"""``zerokit plan``: the fastest strategy that fits, its files and its reasons."""

from __future__ import annotations

import json
import os
import shlex
from pathlib import Path
from typing import Any

import click

from zerokit.cli import options as shared_options
from zerokit.errors import InputError
from zerokit.units import parse_positive_int

DEFAULT_FOLDER = "zerokit-plan"


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
    import gc

    # a plan makes little that collecting would free, and looking for it takes a tenth of its time
    gc.disable()
    try:
        _plan(recipe, overrides, out or DEFAULT_FOLDER, top, as_json, options)
    finally:
        gc.enable()


def _plan(
    recipe: str | None,
    overrides: tuple[str, ...],
    out: str,
    top: str,
    as_json: bool,
    options: dict[str, Any],
) -> None:
    from zerokit.cli import show
    from zerokit.emit.deepspeed import trainer_arguments
    from zerokit.planner import documents
    from zerokit.search.explain import cluster_words
    from zerokit.search.plan import make_plan, make_space

    if recipe is not None:
        from zerokit.cli.recipe_options import merged

        options = merged(recipe, options, overrides)
    elif overrides:
        raise InputError(f"{overrides[0]}: only with --recipe; write options as --name VALUE")
    count = parse_positive_int(top, "--top", 100)
    read = shared_options.read(options)
    request = read.request
    made = make_plan(request, top=count)
    job = make_space(request)[0].job
    body = documents.plan(
        made, shared_options.given(options), job, request.cluster,
        timed=request.timed, on_cpu=request.on_cpu, whole=as_json,
    )  # fmt: skip
    body["chosen"]["parameters"] = request.shape.parameters
    body["files"] = write_files(Path(out), body, made, job, request.cluster)
    if as_json:
        click.echo(json.dumps(body, indent=1, allow_nan=False))
        return
    title = f"Plan for {read.model_name} on {cluster_words(request.cluster)}"
    next_command = f"zerokit launch --plan {shlex.quote(out)} train.py"
    if not job.inference and made.chosen.strategy.pipeline_parallel == 1:
        added = shlex.join(trainer_arguments(made.chosen.strategy))
        next_command += f"\n  which gives a script with a Hugging Face Trainer:\n    {added}"
    capacity = request.cluster.gpu.driver_vram_bytes
    click.echo(show.plan(body, title, capacity, on_cpu=request.on_cpu, next_command=next_command))


def check_folder(folder: Path) -> None:
    """Refuse an ``--out`` that is no folder and cannot become one; makes nothing.

    Raises:
        InputError: names what is in the way.
    """
    try:
        there = next(place for place in (folder, *folder.parents) if place.exists())
    except OSError as error:
        raise InputError(f"--out {folder}: cannot be written: {error.strerror or error}") from None
    if not there.is_dir():
        raise InputError(f"--out {folder}: cannot be written: {there} is a file; name a folder")
    if not os.access(there, os.W_OK | os.X_OK):
        raise InputError(f"--out {folder}: cannot be written: {there} is read-only here; name another")


def write_files(folder: Path, body: dict[str, Any], made: Any, job: Any, cluster: Any) -> dict[str, str]:
    """Write the DeepSpeed files, accelerate.yaml and plan.yaml; returns kind → path.

    Raises:
        InputError: the folder cannot be written.
    """
    from zerokit.emit import plan_file
    from zerokit.emit.deepspeed import trainer_arguments
    from zerokit.emit.files import plan_files
    from zerokit.files import write_whole
    from zerokit.linter.emitted import verify
    from zerokit.planner import documents

    strategy = made.chosen.strategy
    emitted = plan_files(strategy, job, nodes=cluster.nodes, folder=folder)
    verify(
        emitted.texts,
        ranks=strategy.world_size // strategy.pipeline_parallel,
        gpus_per_node=cluster.gpus_per_node,
    )
    check_folder(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in emitted.texts.items():
            write_whole(folder / name, text, through_links=True)
    except OSError as error:
        raise InputError(f"--out {folder}: cannot be written: {error.strerror or error}") from None
    files = {**emitted.names, "plan": plan_file.FILE_NAME}
    chosen = {**body["chosen"], "estimate": {**body["chosen"]["estimate"]}}
    # ranks alike once: the file is read by people
    chosen["estimate"]["per_rank"] = documents.per_rank(made.chosen.memory.ranks, world_size=0)
    plan_file.write(
        folder,
        body["request"],
        chosen,
        assumptions=made.assumptions,
        reasons=emitted.reasons,
        files=files,
        cluster={"nodes": cluster.nodes, "gpu": cluster.gpu.name},
        trainer_arguments=() if job.inference else trainer_arguments(strategy),
    )
    return {kind: str(folder / name) for kind, name in files.items()}
