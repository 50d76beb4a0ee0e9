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

import inspect
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from zerokit.planner.memory_source import silent
from zerokit.planner.options import OPTIONS, PlanOptions, normalized

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from zerokit.launcher.attempts import DryRun, LaunchResult
    from zerokit.planner.checking import CheckResult
    from zerokit.planner.documents import Estimate
    from zerokit.planner.fewest import SizeResult
    from zerokit.planner.memory_source import Say
    from zerokit.planner.plan_result import PlanResult
    from zerokit.rehearsal.result import Rehearsal
    from zerokit.script.entry_points import Target
    from zerokit.tuner.result import TuneResult

__all__ = ["check", "estimate", "launch", "plan", "rehearse", "size", "tune"]

Path = str | os.PathLike[str]
F = TypeVar("F", bound=Callable[..., Any])


def _shows_options(function: F) -> F:
    """What ``help()`` and tab completion show: the options by name, as the table has them."""
    signature = inspect.signature(function)
    own = [p for p in signature.parameters.values() if p.kind is not inspect.Parameter.VAR_KEYWORD]
    kinds = PlanOptions.__annotations__
    named = [
        inspect.Parameter(
            option.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=False if option.is_flag else "auto" if option.name == "device" else None,
            annotation=kinds[option.name],
        )
        for option in OPTIONS
    ]
    function.__signature__ = signature.replace(parameters=[*own, *named])  # type: ignore[attr-defined]
    return function


@_shows_options
def plan(
    script: Path | None = None,
    arguments: Sequence[str] = (),
    *,
    module: str | None = None,
    rehearsal_seconds: float | None = None,
    recipe: Path | None = None,
    out: Path | None = None,
    top: int = 5,
    say: Say = silent,
    **options: Unpack[PlanOptions],
) -> PlanResult:
    """Choose the fastest DeepSpeed strategy that fits, and say why.

    With a script the plan is for what the script really allocates: it is rehearsed on GPUs that are not
    there, as are the best three strategies before one is chosen.

    Args:
        script: its path, or ``module``: its name, as ``python -m`` takes it; its model need not be named.
        arguments: the script's own.
        rehearsal_seconds: with a script, after so long no further rehearsal is begun; None: 600.
        recipe: a recipe's name or file, or a ``plan.yaml``, whose options hold where none is given here.
        out: a folder for ``ds_config.json``, ``accelerate.yaml`` and ``plan.yaml``; None: nothing is written
            (``PlanResult.write`` does it later).
        top: how many strategies to rank, the chosen one included.
        say: hears, line by line, of what takes long.
        **options: see :data:`zerokit.planner.options.OPTIONS`.

    Returns:
        The choice, what comes next, and what was rejected. ``chosen.estimate`` has memory in bytes and the
        time of an optimizer step in seconds.

    Raises:
        InputError: an argument that cannot be; ``field`` names it, the message says the fix.
        NothingFits: no strategy fits; the message names the nearest changes that would.

    >>> import zerokit
    >>> plan = zerokit.plan(model="llama-3.1-8b", gpus=8, gpu="h100-sxm-80gb", seq_len=4096, global_batch=64)
    >>> plan.chosen.micro_batch * plan.chosen.gradient_accumulation * plan.chosen.data_parallel
    64
    """
    from zerokit import planner, script_planner
    from zerokit.errors import InputError

    given = normalized(options)
    if script is None and module is None:
        if arguments or rehearsal_seconds is not None:
            raise InputError("⟨arguments⟩, ⟨rehearsal_seconds⟩: only with ⟨script⟩ or ⟨module⟩")
        return planner.plan(given, recipe=_text(recipe), out=_text(out), top=top, say=say)
    return script_planner.plan_script(
        _target(script, module, arguments),
        given,
        recipe=_text(recipe),
        out=_text(out),
        top=top,
        seconds=script_planner.DEFAULT_SECONDS if rehearsal_seconds is None else rehearsal_seconds,
        say=say,
    )


@_shows_options
def estimate(*, deepspeed: Path | None = None, say: Say = silent, **options: Unpack[PlanOptions]) -> Estimate:
    """Predict memory and step time of one strategy.

    What is not given takes its plain value: ZeRO-0 (or the file's stage), micro-batch 1, no accumulation, no
    parallelism but data, no activation checkpointing.

    Args:
        deepspeed: a ``ds_config.json``, which then decides the strategy.
        say: hears, line by line, of what takes long (a model of one's own is traced once).
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

    return planner.estimate(normalized(options), deepspeed=_text(deepspeed), say=say)


@_shows_options
def size(
    *, price: float | str | None = None, say: Say = silent, **options: Unpack[PlanOptions]
) -> SizeResult:
    """Find the fewest GPUs of each kind that can do the job, and how long and how costly it is there.

    Args:
        price: of a GPU-hour, in any currency; ``"h200=3.5,l40s=1.1"`` for several kinds.
        say: hears, line by line, of what takes long.
        **options: see :data:`zerokit.planner.options.OPTIONS`; ``gpu`` may name several kinds with commas
            (eight typical ones where it names none), ``gpus`` is the most to try.

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

    return planner.size(normalized(options), price=None if price is None else str(price), say=say)


def check(
    *paths: Path,
    kind: str | None = None,
    reader: str | None = None,
    world_size: int | str | None = None,
    deepspeed_classes: bool = False,
    deep: bool = False,
    fix: bool = False,
    unsafe: bool = False,
    ignore: Sequence[str] = (),
    deepspeed_version: str | None = None,
    accelerate_version: str | None = None,
    say: Say = silent,
    **options: Unpack[PlanOptions],
) -> CheckResult:
    """Find what DeepSpeed, Accelerate or the launcher would ignore, refuse or trip over in configurations.

    Args:
        *paths: DeepSpeed JSON, accelerate YAML, hostfiles, plans or recipes, or folders with them.
        kind: ``deepspeed``, ``accelerate``, ``hostfile``, ``plan`` or ``recipe`` for all; None: each is told.
        reader: who reads a DeepSpeed JSON (``--for``): ``raw``, ``trainer``, ``accelerate`` or ``all``.
        world_size: ranks of the run, for batch arithmetic.
        deepspeed_classes: also ask DeepSpeed's and Accelerate's own classes (imports them in a process).
        deep: also run the real ``deepspeed.initialize`` for every rank, on this CPU.
        fix: write the fixes that cannot change what runs; ``unsafe``: also those that let an ignored setting
            take effect.
        ignore: rules that are not told.
        deepspeed_version, accelerate_version: to check for; None: the installed one, else the newest known.
        say: hears what else is worth knowing.
        **options: of a plan, those that ``zerokit check --help`` lists; with a model, says whether it fits.

    Returns:
        Files with their findings; ``stopped`` is the error that kept a later step from its answer.

    Raises:
        InputError: an argument that cannot be; ``field`` names it.
    """
    from zerokit.errors import InputError
    from zerokit.planner.checking import CheckSettings
    from zerokit.planner.checking import check as check_paths
    from zerokit.planner.options import BY_NAME

    given = normalized(options)
    for name in given:
        if BY_NAME[name].in_check is None:
            raise InputError(f"⟨{name}⟩: check does not take it")
    settings = CheckSettings(
        kind=kind, reader=reader, world_size=world_size, deepspeed_classes=deepspeed_classes, deep=deep,
        fix=fix, unsafe=unsafe, ignore=frozenset(ignore),
        deepspeed_version=deepspeed_version, accelerate_version=accelerate_version,
    )  # fmt: skip
    return check_paths([os.fspath(path) for path in paths], given, settings, say=say)


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
    retry_smaller: bool = False,
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
        num_ranks: instead of the plan's number. nodes: the first so many hosts of the hostfile.
        hostfile: machines to run on. master_port: where the ranks meet; None: a free port.
        grace: seconds from SIGTERM to SIGKILL.
        heartbeat: seconds without progress after which the run counts as hung; 0: never; None: what the
            run has shown decides.
        show: which ranks' output to pass on: ``first``, ``all`` or ``none``.
        no_arguments: add no arguments of the plan to the script's.
        accept_mismatch: run a script that contradicts its plan.
        retry_smaller: after an out-of-memory run the next plan that would fit, at most 3 times.
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
    from zerokit.launcher import attempts
    from zerokit.launcher.options import LaunchOptions
    from zerokit.launcher.plan_choice import choose_plan
    from zerokit.rehearsal.of_launch import rehearse_launch

    target = _target(script, module, arguments)
    chosen = choose_plan(
        plan=_folder_of(plan), recipe=_text(recipe), deepspeed=_text(deepspeed), no_plan=no_plan,
        overrides=(), arguments=target.arguments, plan_recipe=planner.plan_recipe_into, say=say,
    )  # fmt: skip
    options = LaunchOptions(
        target=target, plan=chosen, deepspeed=_text(deepspeed), device=device, launcher=launcher, style=style,
        run_dir=_text(run_dir), grace_seconds=grace, heartbeat_seconds=heartbeat, num_ranks=num_ranks,
        nodes=nodes, hostfile=_text(hostfile), master_port=master_port, show_ranks=show,
        no_arguments=no_arguments, accept_mismatch=accept_mismatch,
    )  # fmt: skip
    if dry_run:
        return attempts.dry_run(options, say)
    return attempts.launch(
        options,
        retries=attempts.MOST_RETRIES if retry_smaller else 0,
        plan_again=planner.plan_into,
        rehearse=rehearse_launch,
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
    out: Path | None = None,
    say: Say = silent,
) -> Rehearsal:
    """Run a training script, unmodified, as one rank of N on a GPU that is not there.

    Args:
        script: its path, or ``module``: its name, as ``python -m`` takes it.
        arguments: the script's own, passed on as they are.
        plan: a folder (or ``plan.yaml``) of a plan, which the script gets as :func:`launch` would give it.
        gpus: ranks in all; None: the plan's, or 1. gpu: a name of the catalogue. vram: memory per GPU, bytes
            or such as ``"24GiB"``.
        rank: which rank to run; ``ranks``: several, one after another, such as ``(0, 7)`` or ``"0,last"``.
        steps: optimizer steps at most; fewer where the peaks of all phases repeat.
        launcher: whose environment the script gets: ``auto``, ``none``, ``deepspeed``, ``torchrun`` or
            ``accelerate``.
        host_speed: the run's host over the reference host, as ``zerokit doctor --measure`` prints it there.
        versions: a lock file, requirements or a report of ``zerokit doctor --json`` with the versions that
            the run will have: differences from the ones here are among the warnings.
        no_arguments: add no arguments of the plan to the script's.
        accept_mismatch: run a script that contradicts its plan.
        out: a folder for what the script prints.
        say: hears, line by line, how it goes.

    Returns:
        Peaks by phase in bytes, what is live at the peak, the step time in seconds, and each value that was
        guessed. ``complete`` is false, and ``stopped`` says where and why, where it could not go to the end.

    Raises:
        InputError: an argument that cannot be, or a script that contradicts its plan.
    """
    from zerokit.rehearsal import request

    return request.rehearse(
        _target(script, module, arguments), say=say, plan=_text(plan), gpus=gpus, gpu=gpu, vram=vram,
        rank=rank, ranks=ranks, steps=steps, launcher=launcher, host_speed=host_speed, versions=versions,
        no_arguments=no_arguments, accept_mismatch=accept_mismatch, out=out,
    )  # fmt: skip


@_shows_options
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
    heartbeat: float = 60.0,
    grace: float = 10.0,
    show: str = "none",
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
    from zerokit import tuner
    from zerokit.tuner.tuning import TuneSettings

    target = _target(script, module, arguments)
    settings = TuneSettings(
        top=top, steps=steps, timeout=timeout, out=os.fspath(out), launcher=launcher, style=style,
        heartbeat=heartbeat, grace=grace, show=show,
    )  # fmt: skip
    return tuner.tune(
        target, normalized(options), settings,
        recipe=_text(recipe), run_dir=_text(run_dir), dry_run=dry_run, say=say,
    )  # fmt: skip


def _text(path: Path | None) -> str | None:
    return None if path is None else os.fspath(path)


def _target(script: Path | None, module: str | None, arguments: Sequence[str]) -> Target:
    """What to run.

    Raises:
        InputError: neither or both are named.
    """
    from zerokit.errors import InputError
    from zerokit.script.entry_points import target_of

    if (script is None) == (module is None):
        raise InputError("⟨script⟩ or ⟨module⟩: name one of them")
    words = [] if script is None else [os.fspath(script)]
    return target_of(module, (*words, *map(str, arguments))).target


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
