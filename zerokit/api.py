"""The library: what ``zerokit.plan()`` and its neighbours do, and the one place that joins the rooms for it.

Arguments have the names of the command line's options, with underscores: ``gpus=8``, ``seq_len=4096``,
``vram="24GiB"`` (or bytes). :data:`zerokit.planner.options.OPTIONS` lists those of a plan; ``None`` means not
given. Errors are those of :mod:`zerokit.errors`; an :class:`~zerokit.errors.InputError` names the argument in
``field``. Results know ``to_dict()``, which is what the command prints with ``--json``. Sizes are bytes,
times seconds.

>>> import zerokit
>>> plan = zerokit.plan(params="8b", gpus=4, gpu="h200", seq_len=4096)
>>> plan.chosen.zero_stage, plan.chosen.precision
(1, 'bf16')
>>> plan.chosen.estimate.fits
True
>>> plan.to_dict()["schema"]
'zerokit.plan/1'
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from zerokit.fields import silent
from zerokit.launcher.options import LaunchArguments, LaunchOptions
from zerokit.notes import plainly
from zerokit.options import divided, takes
from zerokit.planner.options import ELSEWHERE, CheckOptions, PlanOptions, normalized, shows_options
from zerokit.rehearsal.options import RehearsalArguments
from zerokit.tuner.options import TuneOptions

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from zerokit.fields import Say
    from zerokit.launcher.attempts import DryRun, LaunchResult, Listener
    from zerokit.planner.checking import CheckResult
    from zerokit.planner.conversion import Conversion
    from zerokit.planner.documents import Estimate
    from zerokit.planner.plan_result import PlanResult
    from zerokit.planner.size_result import SizeResult
    from zerokit.rehearsal.result import Rehearsal
    from zerokit.script.entry_points import Target
    from zerokit.snapshots.explanation import Explanation
    from zerokit.trainer_files.reading import TrainerFile
    from zerokit.tuner.result import TuneResult

__all__ = ["check", "convert", "estimate", "explain", "launch", "plan", "rehearse", "size", "tune"]

Path = str | os.PathLike[str]


@shows_options
def plan(
    script: Path | None = None,
    arguments: Sequence[str] = (),
    *,
    module: str | None = None,
    file: Path | None = None,
    kind: str | None = None,
    against: Path | None = None,
    rehearsal_seconds: float | None = None,
    unconfined: bool = False,
    no_cache: bool = False,
    recipe: Path | None = None,
    out: Path | None = None,
    top: int = 5,
    say: Say = silent,
    **options: Unpack[PlanOptions],
) -> PlanResult:
    """Choose the fastest strategy that fits, and say why.

    With a script the plan is for what the script really allocates: it is rehearsed on GPUs that are not
    there, as are the best three strategies before one is chosen.

    Args:
        script: its path, or ``module``: its name, as ``python -m`` takes it; its model need not be named.
        arguments: the script's own.
        file: what a trainer reads (axolotl, LLaMA-Factory, ms-swift, TRL): the plan is for its job, at its
            global batch, and ``PlanResult.changes`` is what it changes there. ``kind``: whose it is, where
            its keys do not tell.
        against: what you run today, a DeepSpeed JSON, an accelerate YAML or a trainer's file: the plan says
            how much faster it is, and why (``PlanResult.against``); not with a script.
        rehearsal_seconds: with a script, after so long it is rehearsed only until one plan is that fits;
            None: 600.
        unconfined: with a script, rehearse it even where the kernel gives no namespaces: what native code
            writes then remains.
        no_cache: with a script, rehearse it even where the answer of an unchanged rehearsal is kept.
        recipe: a recipe's name or file, or a ``plan.yaml``, whose options hold where none is given here.
        out: a folder for ``ds_config.json``, ``accelerate.yaml`` and ``plan.yaml``; None: nothing is written
            (``PlanResult.write`` does it later).
        top: how many strategies to rank, the chosen one included.
        say: is told, line by line, what takes long.
        **options: see :data:`zerokit.planner.options.OPTIONS`.

    Returns:
        The choice, what comes next, and what was rejected. ``chosen.estimate`` has memory in bytes and the
        time of an optimizer step in seconds.

    Raises:
        InputError: an argument that cannot be; ``field`` names it, the message says the fix.
        NothingFits: no strategy fits; the message names the nearest changes that would.

    >>> import zerokit
    >>> plan = zerokit.plan(model="llama-3.1-8b", gpus=8, gpu="h100-sxm-80gb", seq_len=4096, global_batch=64)
    >>> plan.strategies[0].zero_stage == plan.chosen.zero_stage, len(plan.strategies)
    (True, 5)
    >>> plan.chosen.micro_batch * plan.chosen.gradient_accumulation * plan.chosen.data_parallel
    64
    """
    from zerokit import planner, script_planner
    from zerokit.emit.outside import remember
    from zerokit.errors import InputError
    from zerokit.script.entry_points import named_target

    remember(options.get("nvme"))
    normalized_options = normalized(options)
    if script is None and module is None:
        if arguments or rehearsal_seconds is not None or unconfined or no_cache:
            raise InputError(
                "⟨arguments⟩, ⟨rehearsal_seconds⟩, ⟨unconfined⟩, ⟨no_cache⟩: only with ⟨script⟩ or ⟨module⟩"
            )
        return planner.plan(
            normalized_options,
            file=_trainer_file(file, kind),
            against=_text("against", against),
            recipe=_text("recipe", recipe),
            out=_text("out", out),
            top=top,
            say=plainly(say),
        )
    for name, given in (("file", file), ("against", against)):
        if given is not None:
            raise InputError(f"⟨{name}⟩: a script says the job itself; leave one of them out", field=name)
    return script_planner.plan_script(
        named_target(script, module, arguments),
        normalized_options,
        recipe=_text("recipe", recipe),
        out=_text("out", out),
        top=top,
        seconds=script_planner.DEFAULT_SECONDS if rehearsal_seconds is None else rehearsal_seconds,
        unconfined=unconfined,
        no_cache=no_cache,
        say=plainly(say),
    )


@shows_options
def estimate(
    *,
    file: Path | None = None,
    kind: str | None = None,
    deepspeed: Path | None = None,
    accelerate: Path | None = None,
    say: Say = silent,
    **options: Unpack[PlanOptions],
) -> Estimate:
    """Predict memory and step time of one strategy.

    What is not given takes its plain value: ZeRO-0 (or the file's stage), micro-batch 1, no accumulation, no
    parallelism but data, no activation checkpointing. An ``"auto"`` micro-batch of the file is a Trainer's 8.

    Args:
        file: what a trainer reads, as it stands: its job, batch and engine; ``kind`` as for :func:`plan`.
        deepspeed: a ``ds_config.json``, which then decides the strategy.
        accelerate: an accelerate YAML with FSDP2 or DeepSpeed, or a Trainer's arguments with FSDP, likewise;
            ``gpus`` are then its ``num_processes`` unless given.
        say: is told, line by line, what takes long (a model outside the catalogue is traced once).
        **options: see :data:`zerokit.planner.options.OPTIONS`.

    Returns:
        Bytes and seconds; ``fits`` is None where neither a GPU nor its memory was named.

    Raises:
        InputError: an argument or a value of the file that cannot be; ``field`` names the argument.

    >>> import zerokit
    >>> found = zerokit.estimate(model="llama-3.1-8b", gpus=8, gpu="h200", zero=3)
    >>> found.fits, found.basis, len(found.per_rank)
    (True, 'traced', 8)
    """
    from zerokit import planner

    return planner.estimate(
        normalized(options), deepspeed=_text("deepspeed", deepspeed),
        accelerate=_text("accelerate", accelerate), file=_trainer_file(file, kind), say=plainly(say),
    )  # fmt: skip


@shows_options
def size(
    *,
    file: Path | None = None,
    kind: str | None = None,
    price: float | str | None = None,
    tokens: float | str | None = None,
    cheapest: bool = False,
    say: Say = silent,
    **options: Unpack[PlanOptions],
) -> SizeResult:
    """Find the fewest GPUs of each kind that can do the job, and how long and how costly it is there.

    Args:
        file: what a trainer reads, whose job it is; ``kind`` as for :func:`plan`.
        price: of a GPU-hour, in any currency; ``"h200=3.5,l40s=1.1"`` for several kinds. Without it, that of
            the cheapest provider of a dated table, in US dollars.
        tokens: what the job trains on: time and cost are of all of it, too.
        cheapest: the lowest cost comes first.
        say: is told, line by line, what takes long.
        **options: see :data:`zerokit.planner.options.OPTIONS`.

    Returns:
        A row for each kind of GPU, method and offload; ``nothing_fits`` says so where no row has GPUs.

    Raises:
        InputError: an argument that cannot be; ``field`` names it.

    >>> import zerokit
    >>> found = zerokit.size(params="7b", gpu="h200", method="qlora")
    >>> [(row.gpu, row.gpus) for row in found.sizes]
    [('h200', 1), ('h200', 1)]
    """
    from zerokit import planner

    return planner.size(
        normalized(options), file=_trainer_file(file, kind), price=None if price is None else str(price),
        tokens=None if tokens is None else str(tokens), cheapest=cheapest, say=plainly(say),
    )  # fmt: skip


@partial(shows_options, own=CheckOptions)
def check(*paths: Path, say: Say = silent, **options: Unpack[CheckOptions]) -> CheckResult:
    """Find what DeepSpeed, Accelerate or the launcher would ignore, refuse or trip over in configurations.

    Args:
        *paths: DeepSpeed JSON, accelerate YAML, hostfiles, plans or recipes, or folders with them.
        say: hears what else is worth knowing.
        **options: its own, and of a plan those that tell whether a file fits, with a model.

    Returns:
        Files with their findings; ``stopped`` is the error that kept a later step from its answer.

    Raises:
        InputError: an argument that cannot be; ``field`` names it.
    """
    from zerokit.errors import InputError
    from zerokit.planner.checking import check as check_paths

    settings, plan_options = divided(CheckOptions, options)
    normalized_options = normalized(plan_options)
    for name in normalized_options:
        if name not in ELSEWHERE["check"]:
            raise InputError(f"⟨{name}⟩: check does not take it")
    return check_paths(
        [str(_text("paths", path)) for path in paths], normalized_options, settings, say=plainly(say)
    )


def convert(
    path: Path,
    *,
    to: str | None = None,
    gpus: int | None = None,
    nodes: int | None = None,
    model: str | None = None,
    out: Path | None = None,
) -> Conversion:
    """Convert a file for DeepSpeed into its FSDP2 counterpart, or back; or one for FSDP version 1.

    Args:
        path: a plan's folder, a DeepSpeed JSON, an accelerate YAML or a Trainer's arguments.
        to: ``fsdp2`` or ``deepspeed``; None: the other one than the file's.
        gpus: all ranks, where the file does not say them. nodes: that they are on.
        model: whose layers are named as those to wrap; None: Accelerate takes the model's own.
        out: a folder for the new files; None: nothing is written (``Conversion.write`` does it later).

    Returns:
        The new files' texts, and what became of each key: kept, changed, left to the script, lost.

    Raises:
        InputError: the file cannot be read or converted; the message names the key.
    """
    from zerokit.planner.conversion import convert as convert_file

    return convert_file(
        str(_text("path", path)), to=to, gpus=gpus, nodes=nodes, model=model, out=_text("out", out)
    )


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
        plan=_folder_of(asked.plan), recipe=_text("recipe", asked.recipe),
        deepspeed=_text("deepspeed", asked.deepspeed),
        no_plan=asked.no_plan, overrides=overrides, arguments=target.arguments,
        plan_recipe=planner.plan_recipe_into, say=listener.say,
    )  # fmt: skip
    options = LaunchOptions.of(asked, target=target, plan=plan, show_progress=show_progress)
    if asked.resume is not None:
        from zerokit.launcher.resume import resuming

        options = resuming(options, planner.plan_into, listener.say)
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


def explain(snapshot: Path, later: Path | None = None, *, rehearsal: Path | None = None) -> Explanation:
    """Say what a memory snapshot of PyTorch's holds, without running anything of the file; of two, what grew.

    Args:
        snapshot: a file of ``torch.cuda.memory._dump_snapshot``. ``later``: another, which is explained in
            its place and compared with it.
        rehearsal: the result of ``zerokit rehearse --json`` of the same command, shown beside it.

    Returns:
        By device, in bytes: the peak by phase, what was live at it by module and line, what stays from step
        to step, what is free and in which pieces, and why an allocation failed. ``notes`` say what the file
        does not tell.

    Raises:
        InputError: a file that cannot be read or is none of these.
    """
    from pathlib import Path as FilePath

    from zerokit.snapshots.explanation import explain as explain_files

    named = [FilePath(path) for path in (snapshot, later) if path is not None]
    return explain_files(*named, rehearsal=FilePath(rehearsal) if rehearsal is not None else None)


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


def _folder_of(plan: Path | PlanResult | None) -> str | None:
    """The folder of a plan; one that was not written yet is written to a temporary folder."""
    from zerokit.planner.plan_result import PlanResult

    if not isinstance(plan, PlanResult):
        return _text("plan", plan)
    if plan.files:
        return os.path.dirname(plan.files["plan"])  # noqa: PTH120
    from zerokit.temporary import make_folder

    folder = make_folder("plan")
    plan.write(folder)
    return str(folder)


def _trainer_file(file: Path | None, kind: str | None) -> TrainerFile | None:
    if file is None:
        return None
    from zerokit.trainer_files.reading import read_trainer_file

    return read_trainer_file(str(_text("file", file)), kind)


def _text(name: str, path: Path | None) -> str | None:
    from zerokit.errors import InputError

    if path is not None and not isinstance(path, str | os.PathLike):
        raise InputError(f"⟨{name}⟩: expected a path, got {path!r:.60}", field=name)
    return None if path is None else os.fspath(path)
