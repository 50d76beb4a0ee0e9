"""``zerokit launch``: run a training script under DeepSpeed with a plan, and measure it."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import click

from zerokit.cli.options import unconfined
from zerokit.cli.say import echo, is_loud, say, write
from zerokit.cli.script_command import ScriptCommand, no_script
from zerokit.errors import InputError
from zerokit.messages import quoted
from zerokit.planner.plan_folder import DEFAULT_FOLDER

if TYPE_CHECKING:
    from pathlib import Path

    from zerokit.launcher.attempts import DryRun
    from zerokit.report.schema import RunReport

_MOST_RETRIES = 3  # as zerokit.launcher.attempts has it, for the help
_IS_OVERRIDE = re.compile(r"[a-z][a-z_-]*=")


def _seconds(ctx: click.Context, param: click.Parameter, value: float | None) -> float | None:
    if value is not None and not 0 <= value <= 1e6:
        raise InputError(f"⟨{param.name}⟩: {value} must be between 0 and 1000000 seconds")
    return value


@click.command(
    cls=ScriptCommand,
    context_settings={"ignore_unknown_options": False, "allow_interspersed_args": False},
    epilog="Options after the script are the script's own, and reach it verbatim.",
    groups={
        "Plan": ("plan", "no_plan", "deepspeed", "recipe", "accept_mismatch"),
        "Script": ("module", "style", "no_arguments", "no_trackers"),
        "Ranks": ("gpus", "num_ranks", "device", "nodes", "hostfile", "master_port", "launcher"),
        "Failures": ("heartbeat", "grace", "max_restarts", "resume_option", "retry_smaller"),
        "Prediction": ("rehearsal_seconds", "unconfined", "no_host_probe"),
    },
)
@click.option(
    "--plan",
    metavar="DIR",
    help=f"A folder (or plan.yaml) that `zerokit plan` wrote. [default: {DEFAULT_FOLDER}, if it exists]",
)
@click.option("--no-plan", is_flag=True, help=f"Run without a plan, even if {DEFAULT_FOLDER} exists.")
@click.option(
    "--deepspeed",
    metavar="FILE",
    help="A DeepSpeed JSON of your own in place of a plan; nothing is predicted.",
)
@click.option(
    "--recipe",
    metavar="NAME",
    help="Plan from a recipe first, and run that; KEY=VALUE before SCRIPT changes it.",
)
@click.option(
    "--device",
    default="auto",
    metavar="auto|cuda|cpu",
    show_default=True,
    help="Where the ranks run; auto: CUDA where there is a GPU, else CPU.",
)
@click.option(
    "--launcher",
    default="deepspeed",
    metavar="deepspeed|accelerate|torchrun",
    show_default=True,
    help="What starts the ranks.",
)
@click.option(
    "--style",
    default="auto",
    metavar="auto|raw|accelerate|trainer|none",
    show_default=True,
    help="How the script takes its DeepSpeed configuration; auto reads its source.",
)
@click.option(
    "--run-dir", "--out", "run_dir", metavar="DIR", help="Run folder. [default: runs/<timestamp>-<script>]"
)
@click.option(
    "--num-ranks",
    metavar="N",
    type=click.IntRange(1, 65536),
    help="Ranks in all, on GPUs or CPUs. [default: the plan's number]",
)
@click.option(
    "--gpus",
    metavar="N",
    type=click.IntRange(1, 65536),
    help="Ranks in all, one on each GPU. [default: the plan's number]",
)
@click.option(
    "--nodes", metavar="N", type=click.IntRange(1, 65536), help="Use the first N hosts of the hostfile."
)
@click.option("--hostfile", metavar="FILE", help="Machines to run on, one line each: NAME slots=N.")
@click.option("--master-port", metavar="PORT", type=int, help="Where the ranks meet. [default: a free port]")
@click.option(
    "--grace",
    metavar="SECONDS",
    default=10.0,
    show_default=True,
    callback=_seconds,
    help="When ranks are stopped: time from SIGTERM to SIGKILL.",
)
@click.option(
    "--heartbeat",
    metavar="SECONDS",
    type=float,
    callback=_seconds,
    help="Time without progress after which the run counts as hung; 0: never. [default: adapts to the run, "
    "from 60 s (300 s for what it does for the first time) to 600 s]",
)
@click.option(
    "--show",
    default="first",
    metavar="first|all|none",
    show_default=True,
    help="Which ranks' output to pass on to the terminal.",
)
@click.option(
    "-m", "--module", metavar="PKG.MOD", help="Run a module, as python -m does, instead of a script."
)
@click.option(
    "--retry-smaller",
    is_flag=True,
    help=f"After an out-of-memory error, run the next plan that would fit, at most {_MOST_RETRIES} times.",
)
@click.option(
    "--max-restarts",
    type=click.IntRange(0, 1000),
    default=0,
    show_default=True,
    metavar="N",
    help="After a failure or a hang, restart the script, at most N times, from the newest checkpoint that "
    "every rank finished writing.",
)
@click.option(
    "--resume-option",
    metavar="OPTION",
    help="How the script takes a checkpoint: an option of its own, with {folder} and {tag} filled in where "
    "they stand in it. A Trainer needs none; empty: it finds its checkpoint by itself.",
)
@click.option("--no-arguments", is_flag=True, help="Add nothing from the plan to the script's arguments.")
@click.option(
    "--accept-mismatch",
    is_flag=True,
    help="Run a script whose own configuration contradicts the plan, or a DeepSpeed file with errors.",
)
@click.option(
    "--no-trackers",
    is_flag=True,
    help="Log no memory to the TensorBoard, W&B, MLflow or Trackio that the script uses.",
)
@click.option(
    "--no-host-probe",
    is_flag=True,
    help="Do not measure this host's speed before its first launch on GPUs, some 15 s.",
)
@click.option(
    "--rehearsal-seconds",
    metavar="SECONDS",
    type=float,
    default=180.0,
    show_default=True,
    callback=_seconds,
    help="Time for the rehearsal that predicts a run which was not its plan's job or took other memory, or "
    "ran out of memory; 0: none.",
)
@unconfined
@click.option("--dry-run", is_flag=True, help="Print the exact command and environment, and run nothing.")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="SCRIPT [ARGS]...")
def command(arguments: tuple[str, ...], **options: Any) -> int:
    """Run SCRIPT, unmodified, under DeepSpeed with a plan; supervise it, and measure every rank.

    The run folder holds the plan, the configuration and command used, the output of every rank, and
    the report: predicted beside measured.
    """
    from zerokit.doctor.launch_host import LaunchHostSpeeds
    from zerokit.launcher import attempts
    from zerokit.launcher.options import LaunchOptions
    from zerokit.launcher.plan_choice import choose_plan
    from zerokit.launcher.restarts import check_resume_option
    from zerokit.planner import plan_into, plan_recipe_into
    from zerokit.rehearsal.of_launch import LaunchRehearsals
    from zerokit.script import entry_points

    module = options["module"]
    overrides: tuple[str, ...] = ()
    if options["recipe"] and module is None:
        overrides, arguments = _overrides(arguments)
    if module is None and not arguments:
        raise no_script("--plan DIR")
    resolved = entry_points.target_of(module, arguments)
    if resolved.note is not None:
        say(resolved.note)
    plan = choose_plan(
        **{name: options[name] for name in ("plan", "recipe", "deepspeed", "no_plan")},
        overrides=overrides, arguments=resolved.target.arguments, plan_recipe=plan_recipe_into, say=say,
    )  # fmt: skip
    if options["num_ranks"] and options["gpus"]:
        raise InputError("⟨num_ranks⟩ and ⟨gpus⟩ say the same: give one of them")
    shared_options = ("deepspeed", "device", "launcher", "style", "run_dir", "nodes", "hostfile",
            "master_port", "no_arguments", "accept_mismatch", "no_trackers", "resume_option")  # fmt: skip
    check_resume_option(options["resume_option"])
    launch_options = LaunchOptions(
        target=resolved.target, plan=plan, grace_seconds=options["grace"],
        heartbeat_seconds=options["heartbeat"], show_ranks=options["show"], show_progress=is_loud(),
        num_ranks=options["num_ranks"] or options["gpus"], asks_for_gpus=options["gpus"] is not None,
        **{name: options[name] for name in shared_options},
    )  # fmt: skip
    if options["dry_run"]:
        _show_dry_run(attempts.dry_run(launch_options, say), has_plan=plan is not None)
        return 0
    result = attempts.launch(
        launch_options,
        retries=attempts.MOST_RETRIES if options["retry_smaller"] else 0,
        max_restarts=options["max_restarts"],
        plan_again=plan_into,
        rehearsals=LaunchRehearsals(seconds=options["rehearsal_seconds"], unconfined=options["unconfined"]),
        host_speeds=LaunchHostSpeeds(probes=not options["no_host_probe"]),
        listener=attempts.Listener(say=say, show=_show, failure=_print_failure),
    )
    return result.exit_code


def _overrides(arguments: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The recipe's KEY=VALUE before the script, and the script with its arguments."""
    count = 0
    while count < len(arguments) and _IS_OVERRIDE.match(arguments[count]):
        count += 1
    return arguments[:count], arguments[count:]


def _show_dry_run(dry: DryRun, *, has_plan: bool) -> None:
    for name in dry.unset:
        write(f"unset {name}")
    for name, value in sorted(dry.environment.items()):
        write(f"export {name}={quoted(value)}")
    write(" ".join(map(quoted, dry.argv)))
    unseen = (
        "a dry run does not start the script, so not every wrong or missing option or file of its own is seen"
    )
    if dry.rehearsal == "done":
        say(f"{unseen}; the plan's rehearsal ran the script with these options")
    elif dry.rehearsal == "other devices":
        say(f"{unseen}; the plan's rehearsal ran the script with these options, on the plan's GPUs")
    elif dry.rehearsal == "named":
        say(f"{unseen}; the `zerokit plan` command above rehearses the script, and sees them")
    else:
        say(
            f"{unseen}: `zerokit rehearse` with the same {'plan, ' if has_plan else ''}script and arguments "
            "runs it on simulated GPUs, for some minutes"
        )


def _print_failure(text: str) -> None:
    with suppress(OSError):
        echo(text)


def _show(report: RunReport, folder: Path) -> None:
    """Print the table; a reader that went away must not turn a failed run into exit code 0."""
    import sys

    from zerokit.report.render import print_report

    try:
        print_report(
            report, traceback=False, folder=folder
        )  # the failed rank's own output is on the terminal
        sys.stdout.flush()
    except (OSError, SystemExit):  # rich ends the process with 1 at a broken pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
