"""``zerokit tune``: the planner's best few, each run for some steps on this machine; the fastest is kept."""

from __future__ import annotations

import json
import time
from contextlib import suppress
from typing import Any

import click

from zerokit.cli import options as shared_options
from zerokit.cli.plan import DEFAULT_FOLDER
from zerokit.cli.script_command import ScriptCommand
from zerokit.errors import InputError
from zerokit.units import parse_positive_int


def _say(text: str) -> None:
    with suppress(OSError):
        click.echo(f"zerokit: {text}", err=True)


@click.command(
    "tune",
    cls=ScriptCommand,
    context_settings={"ignore_unknown_options": False, "allow_interspersed_args": False},
    short_help="Run the planner's best few for some steps here, keep the fastest.",
    epilog="Options after the script are the script's own. {micro_batch}, {gradient_accumulation} and "
    "{checkpointing} (true or false) in them are filled in from each plan. "
    "Example: zerokit tune --model llama-3.1-8b train.py --batch {micro_batch}",
)
@shared_options.shared
@click.option("--recipe", metavar="NAME|FILE", help="Options from a recipe or a plan.yaml; others given win.")
@click.option("--top", metavar="K", default="3", show_default=True, help="How many plans to run.")
@click.option(
    "--steps", metavar="N", default="10", show_default=True, help="Optimizer steps of each, two to warm up."
)
@click.option(
    "--timeout", metavar="SECONDS", default=900.0, show_default=True, help="For each, loading included."
)
@click.option("--out", metavar="DIR", help=f"Where the fastest plan's files go. Default: {DEFAULT_FOLDER}.")
@click.option("--run-dir", metavar="DIR", help="Default: runs/<timestamp>-tune-<script>.")
@click.option("--launcher", default="deepspeed", metavar="deepspeed|accelerate|torchrun", show_default=True)
@click.option(
    "--style", default="auto", metavar="auto|raw|accelerate|trainer", help="As for `zerokit launch`."
)
@click.option(
    "--heartbeat",
    default=60.0,
    show_default=True,
    help="Seconds without progress that count as hung; 0: never.",
)
@click.option("--grace", default=10.0, show_default=True, help="Seconds from SIGTERM to SIGKILL.")
@click.option("--show", default="none", metavar="first|all|none", help="Which ranks' output to pass on.")
@click.option("-m", "--module", metavar="PKG.MOD", help="Run a module, as python -m does.")
@click.option("--dry-run", is_flag=True, help="Print what would be run, and run nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON on standard output.")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="SCRIPT [ARGS]...")
def command(arguments: tuple[str, ...], **options: Any) -> int:
    """Run SCRIPT with each of the planner's best plans for a few steps; keep the one that is fastest.

    A plan that runs out of memory, fails, hangs or takes too long is passed over. The step times are kept
    for later plans on this machine. A trial ends in the middle of the script: what follows the training
    loop is not reached.
    """
    from zerokit.cli.tune_result import body, conclude
    from zerokit.cli.tuning import Tuning
    from zerokit.launcher.consoles import target_of

    started = time.monotonic()
    names = ("recipe", "top", "steps", "timeout", "out", "run_dir", "launcher", "style", "heartbeat", "grace",
             "show", "module", "dry_run", "as_json")  # fmt: skip
    own = {name: options.pop(name) for name in names}
    if own["module"] is None and not arguments:
        raise InputError("tune: name a script, for example: zerokit tune --model gpt2 train.py")
    for name, least in (("timeout", 1), ("heartbeat", 0), ("grace", 0)):
        if not least <= own[name] <= 1e6:
            raise InputError(f"--{name} {own[name]:g}: use {least} to 1000000 seconds")
    if own["show"] not in ("first", "all", "none"):
        raise InputError(f"--show {own['show']}: use first, all or none")
    if own["as_json"] and own["show"] != "none":
        raise InputError("--json: standard output is the result's; leave --show out")
    resolved = target_of(own["module"], arguments)
    if resolved.note is not None:
        _say(resolved.note)
    tuning = Tuning.prepare(
        target=resolved.target,
        options=_options(options, own["recipe"]),
        top=parse_positive_int(own["top"], "--top", 20),
        steps=_steps(own["steps"]),
        out=own["out"] or DEFAULT_FOLDER,
        launcher=own["launcher"],
        style=own["style"],
        limit_seconds=own["timeout"],
        heartbeat_seconds=own["heartbeat"],
        grace_seconds=own["grace"],
        show_ranks=own["show"],
        say=_say,
    )
    if own["dry_run"]:
        _print(body(tuning), own["as_json"])
        return 0
    tuning.run(own["run_dir"])
    _print(body(tuning) | {"seconds": round(time.monotonic() - started, 3)}, own["as_json"])
    return conclude(tuning)


def _steps(text: str) -> int:
    from zerokit.launcher.rank.step_limit import WARM_UP_STEPS
    from zerokit.launcher.trial import FEWEST_STEPS

    steps = parse_positive_int(text, "--steps", 10_000)
    if steps < FEWEST_STEPS:
        raise InputError(f"--steps {steps}: at least {FEWEST_STEPS}, of which {WARM_UP_STEPS} warm up")
    return steps


def _options(options: dict[str, Any], recipe: str | None) -> dict[str, Any]:
    """The plan's options, with the recipe's; a GPU that is named must be the one here."""
    if recipe is not None:
        from zerokit.cli.recipe_options import merged

        options = merged(recipe, options)
    if options.get("inference"):
        raise InputError("--inference: tune times training steps")
    if options.get("vram"):
        raise InputError("--vram: tune runs on the GPUs of this machine; leave it out")
    if options.get("gpu") and options.get("device") != "cpu":
        from zerokit.catalog import gpus
        from zerokit.machine.detect import detect

        here, reason = detect().catalog_gpu()
        wanted = gpus.lookup(str(options["gpu"]))
        if here is None or here.name != wanted.name:
            raise InputError(
                f"--gpu {wanted.name}: tune runs on this machine's GPUs ({reason}); leave it out"
            )
        options = {**options, "gpu": None}
    return options


def _print(body: dict[str, Any], as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(body, indent=1, allow_nan=False))
        return
    from zerokit.cli.tune_table import text

    click.echo(text(body))
