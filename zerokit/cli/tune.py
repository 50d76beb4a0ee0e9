"""``zerokit tune``: run the planner's top candidates here for some steps, keep the fastest."""

from __future__ import annotations

from typing import Any

import click

from zerokit.cli import options as shared_options
from zerokit.cli.say import is_loud, say, write, write_json
from zerokit.cli.script_command import ScriptCommand, no_script
from zerokit.errors import InputError
from zerokit.launcher.supervisor.heartbeat_default import TUNE_SECONDS
from zerokit.planner.plan_folder import DEFAULT_FOLDER
from zerokit.units import parse_positive_int


@click.command(
    "tune",
    cls=ScriptCommand,
    context_settings={"ignore_unknown_options": False, "allow_interspersed_args": False},
    epilog="Options after the script are the script's own. {micro_batch}, {gradient_accumulation} and "
    "{checkpointing} (true or false) in them are filled in from each plan. "
    "Example: zerokit tune --model llama-3.1-8b train.py --batch {micro_batch}",
    groups={
        "Runs": (
            "top",
            "steps",
            "timeout",
            "heartbeat",
            "grace",
            "rehearsal_seconds",
            "unconfined",
            "launcher",
            "style",
            "module",
        ),
    },
)
@shared_options.shared("tune")
@click.option("--recipe", metavar="NAME|FILE", help="Options from a recipe or a plan.yaml; others given win.")
@click.option("--top", metavar="K", default="3", show_default=True, help="How many plans to run.")
@click.option(
    "--steps", metavar="N", default="10", show_default=True, help="Optimizer steps of each, two to warm up."
)
@click.option(
    "--timeout", metavar="SECONDS", default=900.0, show_default=True, help="For each, loading included."
)
@click.option(
    "--rehearsal-seconds",
    metavar="SECONDS",
    default=600.0,
    show_default=True,
    help="On GPUs: after this time no further plan is rehearsed; 0 rehearses none.",
)
@shared_options.unconfined
@click.option("--out", metavar="DIR", help=f"Where the fastest plan's files go. [default: {DEFAULT_FOLDER}]")
@click.option("--run-dir", metavar="DIR", help="Run folder. [default: runs/<timestamp>-tune-<script>]")
@click.option(
    "--launcher",
    default="deepspeed",
    metavar="deepspeed|accelerate|torchrun",
    show_default=True,
    help="What starts the ranks.",
)
@click.option(
    "--style", default="auto", metavar="auto|raw|accelerate|trainer", help="As for `zerokit launch`."
)
@click.option(
    "--heartbeat",
    default=TUNE_SECONDS,
    show_default=True,
    metavar="SECONDS",
    help="Time without progress that counts as hung; 0: never.",
)
@click.option(
    "--grace", default=10.0, show_default=True, metavar="SECONDS", help="Time from SIGTERM to SIGKILL."
)
@click.option("--show", default="none", metavar="first|all|none", help="Which ranks' output to pass on.")
@click.option("-m", "--module", metavar="PKG.MOD", help="Run a module, as python -m does.")
@click.option("--dry-run", is_flag=True, help="Print what would be run, and run nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON on standard output.")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="SCRIPT [ARGS]...")
def command(arguments: tuple[str, ...], **options: Any) -> int:
    """Run SCRIPT with each of the planner's best plans for a few steps; keep the one that is fastest.

    On GPUs the script is rehearsed with each plan first: one that cannot fit is not tried, and the table
    has the rehearsed figures too. A plan that runs out of memory, fails, hangs or takes too long is passed
    over. The step times are kept for later plans on this machine. A trial ends in the middle of the script:
    what follows the training loop is not reached.
    """
    from functools import partial

    from zerokit import tuner
    from zerokit.script.entry_points import target_of
    from zerokit.script_planner.rehearsals import rehearse_strategy
    from zerokit.tuner.settings import TuneSettings

    names = ("recipe", "top", "steps", "timeout", "out", "run_dir", "launcher", "style", "heartbeat", "grace",
             "rehearsal_seconds", "unconfined", "show", "module", "dry_run", "as_json")  # fmt: skip
    tune_options = {name: options.pop(name) for name in names}
    if tune_options["module"] is None and not arguments:
        raise no_script("--model gpt2")
    if tune_options["as_json"] and tune_options["show"] != "none":
        raise InputError("--json: standard output carries the result; leave --show out")
    settings = TuneSettings(
        top=parse_positive_int(tune_options["top"], "⟨top⟩", 20),
        steps=parse_positive_int(tune_options["steps"], "⟨steps⟩", 10_000),
        out=tune_options["out"] or DEFAULT_FOLDER,
        show_progress=is_loud(),
        **{
            name: tune_options[name]
            for name in ("timeout", "launcher", "style", "heartbeat", "grace", "show", "rehearsal_seconds")
        },
    )
    resolved = target_of(tune_options["module"], arguments, "tune")
    if resolved.note is not None:
        say(resolved.note)
    result = tuner.tune(
        resolved.target, options, settings,
        recipe=tune_options["recipe"], run_dir=tune_options["run_dir"], dry_run=tune_options["dry_run"],
        say=say, rehearse=partial(rehearse_strategy, unconfined=tune_options["unconfined"]),
    )  # fmt: skip
    _print(result.to_dict(), tune_options["as_json"])
    if result.interrupted is not None:
        say(f"interrupted; what was measured is in {result.tuning.folder}")
        return result.interrupted
    if result.error is not None:
        raise result.error
    return 0


def _print(body: dict[str, Any], as_json: bool) -> None:
    if as_json:
        write_json(body)
        return
    from zerokit.cli.tune_table import text

    write(text(body))
