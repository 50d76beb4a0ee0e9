"""The half of the library that runs somebody's script: ``zerokit.launch()``, ``rehearse()`` and ``tune()``.

:mod:`zerokit.api` says what holds for all functions of the library.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from zerokit.launcher.supervisor.heartbeat_default import TUNE_SECONDS
from zerokit.planner.memory_source import plainly, silent
from zerokit.planner.options import PlanOptions, normalized
from zerokit.planner.signatures import shows_options

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from zerokit.launcher.attempts import DryRun, LaunchResult
    from zerokit.planner.memory_source import Say
    from zerokit.planner.plan_result import PlanResult
    from zerokit.rehearsal.result import Rehearsal
    from zerokit.tuner.result import TuneResult

Path = str | os.PathLike[str]


def launch(
    script: Path | None = None,
    arguments: Sequence[str] = (),
    *,
    plan: Path | PlanResult | None = None,
    recipe: Path | None = None,
    deepspeed: Path | None = None,
    no_plan: bool = False,
    module: str | None = None,
    device: str = "auto",
    launcher: str = "deepspeed",
    style: str = "auto",
    run_dir: Path | None = None,
    num_ranks: int | None = None,
    nodes: int | None = None,
    hostfile: Path | None = None,
    master_port: int | None = None,
    grace: float = 10.0,
    heartbeat: float | None = None,
    show: str = "first",
    no_arguments: bool = False,
    accept_mismatch: bool = False,
    no_trackers: bool = False,
    no_host_probe: bool = False,
    retry_smaller: bool = False,
    max_restarts: int = 0,
    resume_option: str | None = None,
    rehearsal_seconds: float = 180.0,
    unconfined: bool = False,
    dry_run: bool = False,
    say: Say = silent,
) -> LaunchResult | DryRun:
    """Run a training script with a plan, supervised and measured, and wait for its end.

    Args:
        script: its path, or ``module``: its name, as ``python -m`` takes it.
        arguments: the script's own, passed on as they are.
        plan: a folder (or ``plan.yaml``) of a plan, or what :func:`plan` returned; None: ``zerokit-plan``,
            where there is one in this folder.
        recipe: plan from a recipe first, and run that. deepspeed: a DeepSpeed JSON of your own, in place of a
            plan. no_plan: run without a plan, though there is a ``zerokit-plan``.
        device: ``auto`` (CUDA where there is a GPU, else CPU), ``cuda`` or ``cpu``.
        launcher: ``deepspeed``, ``accelerate`` or ``torchrun``.
        style: how the script takes its DeepSpeed configuration; ``auto`` reads its source.
        run_dir: where the report and all output go; None: ``runs/<timestamp>-<script>``.
        num_ranks: instead of the plan's number. nodes: how many hosts of the hostfile to use.
        hostfile: machines to run on. master_port: where the ranks meet; None: a free port.
        grace: seconds from SIGTERM to SIGKILL.
        heartbeat: seconds without progress after which the run counts as hung; 0: never; None: what the
            run has shown decides.
        show: which ranks' output to pass on: ``first``, ``all`` or ``none``.
        no_arguments: add no arguments of the plan to the script's.
        accept_mismatch: run a script that contradicts its plan.
        no_trackers: log no memory to the tracker that the script uses.
        no_host_probe: do not measure this host's speed before its first launch on GPUs.
        retry_smaller: after an out-of-memory run the next plan that would fit, at most 3 times.
        max_restarts: how often to start it again after a failure or a hang, from the newest checkpoint that
            every rank finished writing.
        resume_option: how the script takes a checkpoint, ``{folder}`` and ``{tag}`` filled in; a Trainer
            needs none.
        rehearsal_seconds: for the rehearsal that predicts a run which was not its plan's job or took other
            memory, or ran out of memory; 0: there is none.
        unconfined: rehearse even where the kernel gives no namespaces: what native code writes then remains.
        dry_run: return the command and its environment, and run nothing.
        say: hears, line by line, how it goes.

    Returns:
        The report (``report.json``) with the exit code that the command would end with; of a dry run, the
        command. A run that failed is no exception: see ``exit_code`` and ``outcome``.

    Raises:
        InputError: an argument that cannot be, or a script that contradicts its plan.
        NodeUnusable: a port or machine cannot be used.
    """
    from zerokit import planner
    from zerokit.doctor.launch_host import LaunchHostSpeeds
    from zerokit.launcher import attempts
    from zerokit.launcher.options import LaunchOptions
    from zerokit.launcher.plan_choice import choose_plan
    from zerokit.launcher.restarts import check_resume_option
    from zerokit.rehearsal.of_launch import LaunchRehearsals
    from zerokit.script.entry_points import named_target

    say = plainly(say)
    check_resume_option(resume_option)
    target = named_target(script, module, arguments)
    chosen = choose_plan(
        plan=_folder_of(plan), recipe=_text(recipe), deepspeed=_text(deepspeed), no_plan=no_plan,
        overrides=(), arguments=target.arguments, plan_recipe=planner.plan_recipe_into, say=say,
    )  # fmt: skip
    options = LaunchOptions(
        target=target, plan=chosen, deepspeed=_text(deepspeed), device=device, launcher=launcher, style=style,
        run_dir=_text(run_dir), grace_seconds=grace, heartbeat_seconds=heartbeat, num_ranks=num_ranks,
        nodes=nodes, hostfile=_text(hostfile), master_port=master_port, show_ranks=show,
        no_arguments=no_arguments, accept_mismatch=accept_mismatch, no_trackers=no_trackers,
        resume_option=resume_option,
    )  # fmt: skip
    if dry_run:
        return attempts.dry_run(options, say)
    return attempts.launch(
        options,
        retries=attempts.MOST_RETRIES if retry_smaller else 0,
        max_restarts=max_restarts,
        plan_again=planner.plan_into,
        rehearsals=LaunchRehearsals(seconds=rehearsal_seconds, unconfined=unconfined),
        host_speeds=LaunchHostSpeeds(probes=not no_host_probe),
        listener=attempts.Listener(say=say),
    )


def rehearse(
    script: Path | None = None,
    arguments: Sequence[str] = (),
    *,
    plan: Path | None = None,
    module: str | None = None,
    gpus: int | None = None,
    gpu: str | None = None,
    vram: str | int | None = None,
    rank: int = 0,
    ranks: str | Sequence[int] | None = None,
    steps: int = 5,
    launcher: str = "auto",
    host_speed: float | None = None,
    versions: Path | None = None,
    no_arguments: bool = False,
    accept_mismatch: bool = False,
    unconfined: bool = False,
    out: Path | None = None,
    say: Say = silent,
) -> Rehearsal:
    """Run a training script, unmodified, as one rank of N on a GPU that is not there.

    Args:
        script: its path, or ``module``: its name, as ``python -m`` takes it.
        arguments: the script's own, passed on as they are.
        plan: a folder (or ``plan.yaml``) of a plan, which the script gets as :func:`launch` would give it.
        gpus: ranks in all; None: the plan's, or 1. gpu: a name of the catalogue; None: the plan's, or this
            machine's. vram: memory per GPU, bytes or such as ``"24GiB"``.
        rank: which rank to run; ``ranks``: several, one after another, such as ``(0, 7)`` or ``"0,last"``.
        steps: optimizer steps at most; fewer where the peaks of all phases repeat.
        launcher: whose environment the script gets: ``auto``, ``none``, ``deepspeed``, ``torchrun`` or
            ``accelerate``.
        host_speed: the run's host over the reference host, as ``zerokit doctor --measure`` prints it there.
        versions: a lock file, requirements or a report of ``zerokit doctor --json`` with the versions that
            the run will have: differences from the ones here are among the warnings.
        no_arguments: add no arguments of the plan to the script's.
        accept_mismatch: run a script that contradicts its plan.
        unconfined: rehearse even where the kernel gives no namespaces: what native code writes then remains.
        out: a folder for what the script prints.
        say: hears, line by line, how it goes.

    Returns:
        Peaks by phase in bytes, what is live at the peak, the step time in seconds, and each value that was
        guessed. ``complete`` is false, and ``stopped`` says where and why, where it could not go to the end.

    Raises:
        InputError: an argument that cannot be, or a script that contradicts its plan.
    """
    from zerokit.rehearsal import request
    from zerokit.script.entry_points import named_target

    return request.rehearse(
        named_target(script, module, arguments), say=plainly(say), plan=_text(plan), gpus=gpus, gpu=gpu,
        vram=vram, rank=rank, ranks=ranks, steps=steps, launcher=launcher, host_speed=host_speed,
        versions=versions, no_arguments=no_arguments, accept_mismatch=accept_mismatch,
        unconfined=unconfined, out=out,
    )  # fmt: skip


@shows_options
def tune(
    script: Path | None = None,
    arguments: Sequence[str] = (),
    *,
    module: str | None = None,
    recipe: Path | None = None,
    top: int = 3,
    steps: int = 10,
    timeout: float = 900.0,
    out: Path = "zerokit-plan",
    run_dir: Path | None = None,
    launcher: str = "deepspeed",
    style: str = "auto",
    heartbeat: float = TUNE_SECONDS,
    grace: float = 10.0,
    show: str = "none",
    rehearsal_seconds: float = 600.0,
    unconfined: bool = False,
    dry_run: bool = False,
    say: Say = silent,
    **options: Unpack[PlanOptions],
) -> TuneResult:
    """Run a script with each of the planner's best plans for some steps on this machine; keep the fastest.

    Args:
        script: its path, or ``module``: its name, as ``python -m`` takes it.
        arguments: the script's own; ``{micro_batch}``, ``{gradient_accumulation}`` and ``{checkpointing}`` in
            them are filled in from each plan.
        recipe: a recipe's name or file, or a ``plan.yaml``, whose options hold where none is given here.
        top: how many plans to run.
        steps: optimizer steps of each, two of them to warm up.
        timeout: seconds for each, loading included.
        out: where the fastest plan's files go.
        run_dir: where the trials go; None: ``runs/<timestamp>-tune-<script>``.
        launcher: ``deepspeed``, ``accelerate`` or ``torchrun``.
        style: how the script takes its DeepSpeed configuration; ``auto`` reads its source.
        heartbeat: seconds without progress that count as hung; 0: never.
        grace: seconds from SIGTERM to SIGKILL.
        show: which ranks' output to pass on: ``first``, ``all`` or ``none``.
        rehearsal_seconds: on GPUs the script is rehearsed with each plan first, and one that cannot fit is
            not tried; after so long no further plan is rehearsed. 0: none is.
        unconfined: rehearse even where the kernel gives no namespaces: what native code writes then remains.
        dry_run: say what would be run, and run nothing.
        say: hears, line by line, how it goes.
        **options: see :data:`zerokit.planner.options.OPTIONS`.

    Returns:
        The trials with their seconds of a step and bytes; ``error`` says why none counts.

    Raises:
        InputError: an argument that cannot be, or a script that no plan reaches.
        NothingFits: no plan fits.
        NodeUnusable: no trial can run here. ReportNotWritten: the disk is full.
    """
    from functools import partial

    from zerokit import tuner
    from zerokit.emit.outside import remember
    from zerokit.script.entry_points import named_target
    from zerokit.script_planner.rehearsals import rehearse_strategy
    from zerokit.tuner.settings import TuneSettings

    remember(options.get("nvme"))
    target = named_target(script, module, arguments)
    settings = TuneSettings(
        top=top, steps=steps, timeout=timeout, out=os.fspath(out), launcher=launcher, style=style,
        heartbeat=heartbeat, grace=grace, show=show, rehearsal_seconds=rehearsal_seconds,
    )  # fmt: skip
    return tuner.tune(
        target, normalized(options), settings,
        recipe=_text(recipe), run_dir=_text(run_dir), dry_run=dry_run, say=plainly(say),
        rehearse=partial(rehearse_strategy, unconfined=unconfined),
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
