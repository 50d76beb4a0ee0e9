"""The half of the library that runs somebody's script: ``zerokit.launch()``, ``rehearse()`` and ``tune()``.

:mod:`zerokit.api` says what holds for all functions of the library.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from zerokit.fields import plainly, silent
from zerokit.launcher.options import LaunchArguments, LaunchOptions
from zerokit.options import divided, takes
from zerokit.planner.options import normalized, shows_options
from zerokit.rehearsal.options import RehearsalArguments
from zerokit.tuner.options import TuneOptions

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from zerokit.fields import Say
    from zerokit.launcher.attempts import DryRun, LaunchResult, Listener
    from zerokit.planner.plan_result import PlanResult
    from zerokit.rehearsal.result import Rehearsal
    from zerokit.script.entry_points import Target
    from zerokit.tuner.result import TuneResult

Path = str | os.PathLike[str]


@takes(LaunchArguments)
def launch(asked: LaunchArguments) -> LaunchResult | DryRun:
    """Run a training script with a plan, supervised and measured, and wait for its end.

    Args:
        script: its path, or ``module``: its name, as ``python -m`` takes it.
        arguments: the script's own, passed on as they are.
        **options: what :func:`plan` returned may stand for its folder, as ``plan``.
        say: hears, line by line, how it goes.

    Returns:
        The report (``report.json``) with the exit code that the command would end with; of a dry run, the
        command. A run that failed is no exception: see ``exit_code`` and ``outcome``.

    Raises:
        InputError: an argument that cannot be, or a script that contradicts its plan.
        NodeUnusable: a port or machine cannot be used.
        NothingFits: as rehearsed before its start, it needs more memory than the GPU has.
    """
    from zerokit.launcher.attempts import Listener
    from zerokit.script.entry_points import named_target

    target = named_target(asked.script, asked.module, asked.arguments)
    return run_launch(asked, target, listener=Listener(say=plainly(asked.say)))


def run_launch(
    asked: LaunchArguments,
    target: Target,
    *,
    listener: Listener,
    overrides: Sequence[str] = (),
    show_progress: bool = True,
) -> LaunchResult | DryRun:
    """Make the launch that was asked for, of this script.

    Args:
        overrides: ``key=value`` that change the recipe.
        show_progress: a line on how far the run is goes to the terminal.

    Raises:
        InputError, NodeUnusable: as :func:`launch`.
    """
    from zerokit import planner
    from zerokit.doctor.launch_host import LaunchHostSpeeds
    from zerokit.launcher import attempts
    from zerokit.launcher.given_plan import choose_plan
    from zerokit.launcher.restarts import check_resume_option

    check_resume_option(asked.resume_option)
    plan = choose_plan(
        plan=_folder_of(asked.plan), recipe=_text(asked.recipe), deepspeed=_text(asked.deepspeed),
        no_plan=asked.no_plan, overrides=overrides, arguments=target.arguments,
        plan_recipe=planner.plan_recipe_into, say=listener.say,
    )  # fmt: skip
    options = LaunchOptions.of(asked, target=target, plan=plan, show_progress=show_progress)
    if asked.dry_run:
        return attempts.dry_run(options, listener.say)
    from zerokit.rehearsal.of_launch import BEFORE_SECONDS, MOST_SECONDS, LaunchRehearsals

    limit = asked.rehearsal_seconds
    before = BEFORE_SECONDS if limit is None else limit
    return attempts.launch(
        options,
        plan_again=planner.plan_into,
        rehearsals=LaunchRehearsals(
            seconds=MOST_SECONDS if limit is None else limit,
            before_seconds=0 if asked.no_rehearsal else before,
            unconfined=asked.unconfined,
            no_cache=asked.no_cache,
        ),
        host_speeds=LaunchHostSpeeds(probes=not asked.no_host_probe),
        listener=listener,
    )


@takes(RehearsalArguments)
def rehearse(asked: RehearsalArguments) -> Rehearsal:
    """Run a training script, unmodified, as one rank of N on a GPU that is not there.

    Args:
        script: its path, or ``module``: its name, as ``python -m`` takes it.
        arguments: the script's own, passed on as they are.
        **options: as the command line takes them.
        say: hears, line by line, how it goes.

    Returns:
        Peaks by phase in bytes, what is live at the peak, the step time in seconds, and each value that was
        guessed. ``complete`` is false, and ``stopped`` says where and why, where it could not go to the end.

    Raises:
        InputError: an argument that cannot be, or a script that contradicts its plan.
    """
    from zerokit.rehearsal.request import rehearse as rehearse_target
    from zerokit.script.entry_points import named_target

    target = named_target(asked.script, asked.module, asked.arguments)
    return rehearse_target(target, replace(asked, say=plainly(asked.say)))


@partial(shows_options, own=TuneOptions)
def tune(
    script: Path | None = None,
    arguments: Sequence[str] = (),
    *,
    say: Say = silent,
    **options: Unpack[TuneOptions],
) -> TuneResult:
    """Run a script with each of the planner's best plans for some steps on this machine; keep the fastest.

    Args:
        script: its path, or ``module``: its name, as ``python -m`` takes it.
        arguments: the script's own; ``{micro_batch}``, ``{gradient_accumulation}`` and ``{checkpointing}`` in
            them are filled in from each plan.
        say: hears, line by line, how it goes.
        **options: see :data:`zerokit.planner.options.OPTIONS`.

    Returns:
        The trials with their seconds of a step and bytes; ``error`` says why none counts.

    Raises:
        InputError: an argument that cannot be, or a script that no plan reaches.
        NothingFits: no plan fits.
        NodeUnusable: no trial can run here. ReportNotWritten: the disk is full.
    """
    from zerokit import tuner
    from zerokit.emit.outside import remember
    from zerokit.script.entry_points import named_target
    from zerokit.script_planner.rehearsals import rehearsing

    remember(options.get("nvme"))
    settings, plan_options = divided(TuneOptions, options)
    target = named_target(script, settings["module"], arguments)
    return tuner.tune(
        target, normalized(plan_options), settings, say=plainly(say),
        rehearsing=partial(rehearsing, unconfined=settings["unconfined"], no_cache=settings["no_cache"]),
    )  # fmt: skip


def _text(path: Path | None) -> str | None:
    return None if path is None else os.fspath(path)


def _folder_of(plan: Path | PlanResult | None) -> str | None:
    """The folder of a plan; one that was not written yet is written to a temporary folder."""
    from zerokit.planner.plan_result import PlanResult

    if not isinstance(plan, PlanResult):
        return _text(plan)
    if plan.files:
        return os.path.dirname(plan.files["plan"])  # noqa: PTH120
    from zerokit.temporary import make_folder

    folder = make_folder("plan")
    plan.write(folder)
    return str(folder)
