"""``zerokit launch``: run a training script with a plan, supervised and measured."""

from __future__ import annotations

import os
import re
import shlex
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from zerokit.cli.plan import DEFAULT_FOLDER
from zerokit.cli.script_command import ScriptCommand
from zerokit.errors import InputError, ReportNotWritten

if TYPE_CHECKING:
    from zerokit.report.schema import Retry, RunReport

MOST_RETRIES = 3

_IS_OVERRIDE = re.compile(r"[a-z][a-z_-]*=")


def _say(text: str) -> None:
    with suppress(OSError):
        click.echo(f"zerokit: {text}", err=True)


def _seconds(ctx: click.Context, param: click.Parameter, value: float) -> float:
    if not 0 <= value <= 1e6:
        raise InputError(f"--{param.name}: {value} must be between 0 and 1000000 seconds")
    return value


@click.command(
    cls=ScriptCommand,
    context_settings={"ignore_unknown_options": False, "allow_interspersed_args": False},
    epilog="Options after the script are the script's own, and reach it verbatim.",
)
@click.option(
    "--plan",
    metavar="DIR",
    help=f"A folder (or plan.yaml) that `zerokit plan` wrote. Default: {DEFAULT_FOLDER}, where there is one.",
)
@click.option("--no-plan", is_flag=True, help=f"Run without a plan, though there is a {DEFAULT_FOLDER}.")
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
    "--device", default="auto", metavar="auto|cuda|cpu", help="auto: CUDA where there is a GPU, else CPU."
)
@click.option("--launcher", default="deepspeed", metavar="deepspeed|accelerate|torchrun", show_default=True)
@click.option(
    "--style",
    default="auto",
    metavar="auto|raw|accelerate|trainer|none",
    help="How the script takes its DeepSpeed configuration; auto reads its source.",
)
@click.option("--run-dir", "--out", "run_dir", metavar="DIR", help="Default: runs/<timestamp>-<script>.")
@click.option(
    "--num-ranks", "--gpus", "num_ranks", type=click.IntRange(1, 65536), help="Instead of the plan's number."
)
@click.option("--nodes", type=click.IntRange(1, 65536), help="The first so many hosts of the hostfile.")
@click.option("--hostfile", metavar="FILE", help="Lines of: NAME slots=N. Runs there, never silently here.")
@click.option("--master-port", type=int, help="Where the ranks meet. Default: a free port.")
@click.option(
    "--grace", default=10.0, show_default=True, callback=_seconds, help="Seconds from SIGTERM to SIGKILL."
)
@click.option(
    "--heartbeat",
    default=60.0,
    show_default=True,
    callback=_seconds,
    help="Seconds without progress after which the run counts as hung; 0: never.",
)
@click.option("--show", default="first", metavar="first|all|none", help="Which ranks' output to pass on.")
@click.option(
    "-m", "--module", metavar="PKG.MOD", help="Run a module, as python -m does, instead of a script."
)
@click.option(
    "--retry-smaller",
    is_flag=True,
    help=f"After an out-of-memory run the next plan that would fit, at most {MOST_RETRIES} times.",
)
@click.option("--no-arguments", is_flag=True, help="Add nothing to the script's own arguments.")
@click.option(
    "--accept-mismatch", is_flag=True, help="Run a script whose own configuration contradicts the plan."
)
@click.option("--dry-run", is_flag=True, help="Print the exact command and environment, and run nothing.")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="SCRIPT [ARGS]...")
def command(arguments: tuple[str, ...], **options: Any) -> int:
    """Run SCRIPT, unmodified, under DeepSpeed with a plan; supervise it, and measure every rank.

    The run folder holds the plan, the configuration and command used, the output of every rank, and
    the report: predicted beside measured.
    """
    from zerokit.launcher import consoles
    from zerokit.launcher.prepare import Wishes

    module = options["module"]
    overrides: tuple[str, ...] = ()
    if options["recipe"] and module is None:
        overrides, arguments = _overrides(arguments)
    if module is None and not arguments:
        raise InputError("launch: name a script, for example: zerokit launch --plan DIR train.py")
    if options["show"] not in ("first", "all", "none"):
        raise InputError(f"--show {options['show']}: use first, all or none")
    resolved = consoles.target_of(module, arguments)
    if resolved.note is not None:
        _say(resolved.note)
    wishes = Wishes(
        target=resolved.target,
        plan=_plan(options, resolved.target.arguments, overrides),
        deepspeed=options["deepspeed"],
        device=options["device"],
        launcher=options["launcher"],
        style=options["style"],
        run_dir=options["run_dir"],
        grace_seconds=options["grace"],
        heartbeat_seconds=options["heartbeat"],
        num_ranks=options["num_ranks"],
        nodes=options["nodes"],
        hostfile=options["hostfile"],
        master_port=options["master_port"],
        show_ranks=options["show"],
        no_arguments=options["no_arguments"],
        accept_mismatch=options["accept_mismatch"],
    )
    with ExitStack() as stack:
        if options["dry_run"]:
            return _dry_run(wishes, stack)
    return _run(wishes, retries=MOST_RETRIES if options["retry_smaller"] else 0)


def _plan(options: dict[str, Any], arguments: tuple[str, ...], overrides: tuple[str, ...]) -> str | None:
    """The plan that the options name, or the one that `zerokit plan` wrote into this folder."""
    named = [name for name in ("plan", "recipe", "deepspeed", "no_plan") if options[name]]
    if len(named) > 1:
        text = " and ".join(f"--{name.replace('_', '-')}" for name in named)
        raise InputError(f"{text}: give one of them")
    if options["recipe"]:
        return _plan_from_recipe(options["recipe"], overrides)
    if named:
        plan: str | None = options["plan"]
        return plan
    if not Path(DEFAULT_FOLDER).is_dir():
        return None
    own = next((a for a in arguments if a.partition("=")[0] in ("--deepspeed", "--deepspeed_config")), None)
    if not (Path(DEFAULT_FOLDER) / "plan.yaml").is_file():
        _say(f"{DEFAULT_FOLDER} is not used: it holds no plan.yaml")
        return None
    if own is not None:
        _say(f"{DEFAULT_FOLDER} is not used: the script is given {own}; --plan {DEFAULT_FOLDER} uses it")
        return None
    _say(f"plan: {DEFAULT_FOLDER}, found here (--no-plan runs without one)")
    return DEFAULT_FOLDER


def _overrides(arguments: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The recipe's KEY=VALUE before the script, and the script with its arguments."""
    count = 0
    while count < len(arguments) and _IS_OVERRIDE.match(arguments[count]):
        count += 1
    return arguments[:count], arguments[count:]


def _plan_from_recipe(name: str, overrides: tuple[str, ...] = ()) -> str:
    """Plan into a temporary folder through the public command; the run folder keeps a copy."""
    import subprocess

    from zerokit.launcher.locks import temporary_folder
    from zerokit.launcher.own_process import own_process

    folder = str(temporary_folder("plans"))
    done = subprocess.run(
        own_process("zerokit", "plan", "--recipe", name, "--out", folder, "--", *overrides),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise InputError(f"--recipe {name}: {done.stderr.strip().removeprefix('zerokit: ')}")
    return folder


def _dry_run(wishes: Any, stack: ExitStack) -> int:
    from zerokit.launcher.prepare import prepare
    from zerokit.launcher.secrets import Secrets

    secrets = Secrets(os.environ, wishes.target.arguments)
    shown = Path(wishes.run_dir or "runs/<timestamp>-<script>").absolute()
    prepared = prepare(wishes, shown, stack)
    for note in prepared.notes:
        _say(secrets.text(note))
    for name in prepared.command.unset_variables:
        click.echo(f"unset {name}")
    for name, value in sorted(prepared.command.set_variables.items()):
        click.echo(f"export {name}={shlex.quote(secrets.text(value))}")
    click.echo(shlex.join(secrets.argv(prepared.launch.argv)))
    return 0


@dataclass(slots=True, kw_only=True)
class _Attempt:
    """One run that is over. ``next``: the plan to try after an out-of-memory, or why there is none."""

    prepared: Any
    report: RunReport
    exit_code: int
    next: Any = None

    @property
    def run_dir(self) -> Path:
        folder: Path = self.prepared.launch.run_dir
        return folder


def _run(wishes: Any, retries: int) -> int:
    """Run it; after an out-of-memory as often again, with the next plan that would fit, as allowed."""
    with ExitStack() as locks:  # the folders stay ours until the last retry is written into their reports
        return _run_locked(wishes, retries, locks)


def _run_locked(wishes: Any, retries: int, locks: ExitStack) -> int:
    from zerokit.launcher import replan
    from zerokit.report.schema import Retry

    last = first = _attempt(wishes, retries > 0, locks)
    for number in range(1, retries + 1):
        if last.report.outcome != "oom":
            break
        if not isinstance(last.next, replan.NextPlan):
            _say(f"--retry-smaller: no retry: {last.next}")
            break
        changes = replan.changes(last.prepared.plan["chosen"], last.next.plan.chosen)
        _say(f"--retry-smaller: attempt {number + 1} of at most {retries + 1}: {changes}")
        name = f"retry-{number}"
        again = replace(wishes, plan=str(last.next.folder), run_dir=str(first.run_dir / name))
        last = _attempt(again, True, locks, retry_of=first.run_dir)
        outcome, code = last.report.outcome, last.exit_code
        _note_retry(first, Retry(folder=name, changes=changes, outcome=outcome, exit_code=code))
    else:
        if retries and last.report.outcome == "oom":
            _say(f"--retry-smaller: out of memory again, after {retries} retries")
    return last.exit_code


def _note_retry(first: _Attempt, retry: Retry) -> None:
    """Link a retry from the first run's report."""
    first.report = first.report.model_copy(update={"retries": [*first.report.retries, retry]})
    if (error := _write(first.run_dir, first.report)) is not None:
        _say(str(error))


def _attempt(wishes: Any, retry_smaller: bool, locks: ExitStack, retry_of: Path | None = None) -> _Attempt:
    from zerokit.launcher import prepare, replan
    from zerokit.launcher import run_folder as folder
    from zerokit.launcher.supervisor import supervisor

    run_dir = folder.make_run_folder(wishes.run_dir, wishes.target.name, locks)
    with ExitStack() as stack:
        try:
            prepared = prepare.prepare(wishes, run_dir, stack)
            prepare.write_files(prepared)
        except Exception:
            # Nothing ran: an empty folder would only look like a run.
            if wishes.run_dir is None:
                locks.close()
                with suppress(OSError):  # not empty: what was written tells why
                    run_dir.rmdir()
            raise
        for note in prepared.notes:
            _say(note)
        if retry_smaller and (reason := replan.why_not(prepared)) is not None:
            _say(f"warning: --retry-smaller cannot help here: {reason}")
        _say(f"run folder: {run_dir}")
        ended = supervisor.Supervisor(prepared.launch).run()
    return _conclude(prepared, ended, retry_of)


def _show(report: RunReport) -> None:
    """Print the table; a reader that went away must not turn a failed run into exit code 0."""
    import sys

    from zerokit.launcher import conclude

    try:
        conclude.show(report)
        sys.stdout.flush()
    except (OSError, SystemExit):  # rich ends the process with 1 at a broken pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _conclude(prepared: Any, ended: Any, retry_of: Path | None) -> _Attempt:
    """Write and show the report; the failure's own words come last."""
    from zerokit.files import home_folder
    from zerokit.launcher import conclude
    from zerokit.launcher.build_locks import stale_locks

    run_dir: Path = prepared.launch.run_dir
    report = conclude.build(prepared, ended)
    if retry_of is not None:
        report = report.model_copy(update={"retry_of": str(retry_of)})
    following, not_written = None, _write(run_dir, report)
    if report.outcome == "oom":  # planning takes a while: the report is there already
        following, report = _explain_memory(prepared, report)
        not_written = _write(run_dir, report)
    _show(report)
    if ended.dropped_bytes:
        _say(f"{ended.dropped_bytes} bytes of output could not be written, and were dropped")
    if ended.survivors:
        _say(
            f"warning: could not be killed: pid {', '.join(map(str, ended.survivors))} (stuck in the kernel)"
        )
    if ended.failure_tail.strip():
        with suppress(OSError):
            click.echo(ended.failure_tail.rstrip("\n"), err=True)
    exit_code: int = ended.verdict.exit_code
    _say(f"{ended.verdict.outcome}: {ended.verdict.why}")
    _say(f"run folder: {run_dir}")
    for lock in stale_locks(os.environ, home_folder()):
        _say(f"warning: {lock.what}; remove it: {lock.command}")
    if not_written is not None:
        _say(str(not_written))
        # On a full disk the ranks' own reports are missing too; their exit codes were seen.
        failed = ended.verdict.exit_code and not ended.verdict.reports_missing
        exit_code = ended.verdict.exit_code if failed else not_written.exit_code
    return _Attempt(prepared=prepared, report=report, exit_code=exit_code, next=following)


def _write(run_dir: Path, report: RunReport) -> ReportNotWritten | None:
    from zerokit.launcher import conclude

    try:
        conclude.write(run_dir, report)
    except ReportNotWritten as error:
        return error
    return None


def _explain_memory(prepared: Any, report: RunReport) -> tuple[Any, RunReport]:
    """Put the next plan that would fit into the report of an out-of-memory, or why there is none."""
    from zerokit.launcher import replan
    from zerokit.report import schema

    following: Any
    try:
        following = replan.next_plan(prepared, report.first_failure)
        changed: dict[str, Any] = {"next_plan": schema.NextPlan(**following.describe())}
    except replan.NoNextPlan as error:
        following, changed = error, {"no_next_plan": str(error)}
    if report.first_failure is not None:
        failure = report.first_failure.model_copy(update=changed)
        report = report.model_copy(update={"first_failure": failure})
    return following, report
