"""One launch from its options to its report: the run, its retries after an out-of-memory, its restarts,
and signals that reach it while its report is written.
"""

from __future__ import annotations

import os
import shlex
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from zerokit.errors import InputError, NodeUnusable, ReportNotWritten
from zerokit.fields import as_options, silent
from zerokit.launcher import replan, restarts
from zerokit.launcher.checkpoint import newest_checkpoint
from zerokit.launcher.launch import HostSpeeds, Launch, Rehearsals, Say
from zerokit.launcher.options import LaunchOptions
from zerokit.launcher.rank_file import RankLog
from zerokit.launcher.replan import NoNextPlan, PlanAgain, SmallerPlan
from zerokit.notes import Note, warning
from zerokit.report import schema
from zerokit.report.measured import ended_well, wants_rehearsal
from zerokit.report.predicted import PredictedAgain
from zerokit.report.schema import RunReport

if TYPE_CHECKING:
    from zerokit.launcher.supervisor.supervisor import Ended

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interruptions:
    """Keeps the first signal from ending a launch that still has to tell how its run ended.

    The first, once the run ``is_over``, ends what may be skipped (a rehearsal, the search for a next plan)
    with a KeyboardInterrupt there, and nothing elsewhere. A second one ends the launch, with ``exit_code``,
    the run's own, once that is known. Before, signals do what they did without this.
    """

    def __init__(self, is_over: Callable[[], bool] = lambda: True) -> None:
        self.seen: list[signal.Signals] = []
        self.exit_code: int | None = None
        self._is_over = is_over
        self._skippable = False
        self._old: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Interruptions:
        if threading.current_thread() is threading.main_thread():  # only there can a handler be set
            for number in _SIGNALS:
                if signal.getsignal(number) is not signal.SIG_IGN:  # nohup stays in force
                    self._old[number] = signal.signal(number, self._heed)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._old.items():
            signal.signal(number, handler)

    @contextmanager
    def skippable(self) -> Iterator[None]:
        """What the first signal, before or meanwhile, ends: it raises KeyboardInterrupt there."""
        if self.seen:
            raise KeyboardInterrupt
        self._skippable = True
        try:
            yield
        finally:
            self._skippable = False

    @property
    def told_to_end(self) -> bool:
        """Whether a signal came that asks for more than skipping: nothing new is to be started."""
        return any(number is not signal.SIGINT for number in self.seen) or len(self.seen) > 1

    def _heed(self, number: int, frame: FrameType | None) -> None:
        if not self._is_over():
            handler = self._old[signal.Signals(number)]
            if callable(handler):
                handler(number, frame)
            else:
                signal.signal(number, signal.SIG_DFL)
                os.kill(os.getpid(), number)
            return
        self.seen.append(signal.Signals(number))
        if self._skippable:
            self._skippable = False  # what cleans up is not interrupted
            raise KeyboardInterrupt
        if len(self.seen) > 1:
            raise SystemExit(128 + number if self.exit_code is None else self.exit_code)


MOST_RETRIES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Listener:
    """Who hears how a launch goes, line by line, and the last output of a rank that failed, as it came; and
    is shown the report of a run, in its folder, when it is written."""

    say: Say = silent
    show: Callable[[RunReport, Path], None] = lambda report, folder: None
    failure: Say = silent


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchResult:
    """A launch that is over. ``run_dir`` and ``report`` are the first run's, below which retries have folders
    and from which they are linked; ``exit_code`` is the last run's."""

    run_dir: Path
    report: RunReport
    exit_code: int

    @property
    def outcome(self) -> str:
        """The first run's: ``ok``, ``rank_failed``, ``oom``, ``hung``, ``launcher_lost``, ``interrupted``."""
        return self.report.outcome

    def to_dict(self) -> dict[str, Any]:
        """``report.json``."""
        return self.report.to_dict()


@dataclass(frozen=True, slots=True, kw_only=True)
class DryRun:
    """What a launch would start: the command and its environment, secrets masked; whether it has a plan, and
    was rehearsed, as :attr:`Launch.rehearsal` has it."""

    argv: tuple[str, ...]
    unset: tuple[str, ...]
    environment: Mapping[str, str]
    rehearsal: str
    has_plan: bool


def dry_run(options: LaunchOptions, say: Say) -> DryRun:
    """Prepare a launch, and start nothing. GPUs that this machine lacks are a warning. Raises InputError,
    NodeUnusable: it could not be launched."""
    from zerokit.launcher.prepare import prepare
    from zerokit.launcher.secrets import Secrets

    secrets = Secrets(os.environ, options.target.arguments)
    run_dir = Path(options.run_dir or "runs/<timestamp>-<script>").absolute()
    with ExitStack() as stack:
        launch = prepare(options, run_dir, stack, dry_run=True)
        if options.point is not None:
            options.point.make_ready(launch.expected_ranks, say, dry_run=True)
        for note in launch.notes:
            say(note.with_text(secrets.text(note)) if isinstance(note, Note) else secrets.text(note))
        return DryRun(
            argv=tuple(secrets.argv(launch.command.argv)),
            unset=tuple(launch.command.unset_variables),
            environment={name: secrets.text(value) for name, value in launch.command.set_variables.items()},
            rehearsal=launch.rehearsal,
            has_plan=options.plan is not None,
        )


def launch(
    options: LaunchOptions,
    *,
    plan_again: PlanAgain,
    rehearsals: Rehearsals | None = None,
    host_speeds: HostSpeeds | None = None,
    listener: Listener | None = None,
) -> LaunchResult:
    """Run it; after an out-of-memory again, with the next plan that would fit, and after another failure
    from its newest checkpoint, as often as the options allow.

    Args:
        rehearsals: of the command, before its start, or after an out-of-memory, or a run of another job or of
            other memory than its plan's; None: there are none.

    Raises:
        InputError, NodeUnusable: it cannot be launched. NothingFits: as rehearsed, it needs more memory than
            the GPU has.
    """
    with ExitStack() as locks:  # the folders stay ours until the last retry is written into their reports
        return _Session(options, plan_again, rehearsals, host_speeds, listener or Listener(), locks).run()


@dataclass(slots=True, kw_only=True)
class Attempt:
    """One run that is over; the ``next`` plan to try after an out-of-memory, or why there is none; whether a
    signal told the launch to end, so that nothing new is to be started."""

    launch: Launch
    report: RunReport
    exit_code: int
    next: SmallerPlan | NoNextPlan | None
    logs: Mapping[int, RankLog]
    told_to_end: bool


@dataclass(slots=True)
class _Session:
    """A launch with its retries."""

    options: LaunchOptions
    plan_again: PlanAgain
    rehearsals: Rehearsals | None
    host_speeds: HostSpeeds | None
    listener: Listener
    locks: ExitStack
    say: Say = field(init=False)
    retries: int = field(init=False)

    def __post_init__(self) -> None:
        self.say = self.listener.say
        self.retries = MOST_RETRIES if self.options.retry_smaller else 0

    def run(self) -> LaunchResult:
        """The run, its retries with smaller plans, and its restarts."""
        first = self._attempt(self.options)
        last = first
        for number in range(1, self.retries + 1):
            if last.report.outcome != "oom" or last.told_to_end:
                break
            if not isinstance(last.next, SmallerPlan) or last.next.to_give or last.launch.plan is None:
                self.say(f"⟨retry_smaller⟩: no retry: {last.next}")
                break
            changes = replan.changes(last.launch.plan["chosen"], last.next.plan.chosen)
            self.say(f"⟨retry_smaller⟩: attempt {number + 1} of at most {self.retries + 1}: {changes}")
            again = replace(self.options, plan=str(last.next.folder))
            last = self._again(first, again, f"retry-{number}", changes)
        else:
            if self.retries and last.report.outcome == "oom":
                self.say(f"⟨retry_smaller⟩: out of memory again, after {self.retries} retries")
        if last is first and last.report.outcome not in ("ok", "oom"):
            last = self._restart(first)
        return LaunchResult(run_dir=first.launch.run_dir, report=first.report, exit_code=last.exit_code)

    def _restart(self, first: Attempt) -> Attempt:
        """Go on from the newest checkpoint, as often as allowed and as it is of use."""
        last, before, checkpoint = first, None, None
        most = self.options.max_restarts
        for number in range(1, most + 1):
            if last.report.outcome in ("ok", "stopped") or last.told_to_end:
                break
            newer = newest_checkpoint(last.logs, last.launch.expected_ranks)
            reason = restarts.why_not(last.report, before if newer is None else None)
            if reason is not None:
                self.say(f"⟨max_restarts⟩: no restart: {reason}")
                break
            checkpoint = newer or checkpoint
            try:
                options, changes = self.options, "from the beginning: no checkpoint is complete"
                if checkpoint is not None:
                    options = restarts.resumed(options, checkpoint, last.launch.script_options)
                    changes = f"from {checkpoint}"
                self.say(f"⟨max_restarts⟩: restart {number} of at most {most}: {changes}")
                before, last = last.report, self._again(first, options, f"restart-{number}", changes)
            except restarts.NoRestart as error:
                self.say(f"⟨max_restarts⟩: no restart: {error}")
                break
            except (InputError, NodeUnusable) as error:  # the first failure stays the run's own
                self.say(f"⟨max_restarts⟩: no restart: {error.marked}")
                if checkpoint is not None and isinstance(error, NodeUnusable):
                    run = shlex.quote(str(first.launch.run_dir))
                    self.say(f"the same command with ⟨resume⟩ {run} ⟨gpus⟩ N goes on with fewer GPUs")
                break
        return last

    def _again(self, first: Attempt, options: LaunchOptions, name: str, changes: str) -> Attempt:
        """A further attempt in a folder below the first one's, linked from its report."""
        run_dir = first.launch.run_dir
        last = self._attempt(replace(options, run_dir=str(run_dir / name)), retry_of=run_dir)
        outcome, code = last.report.outcome, last.exit_code
        retry = schema.Retry(folder=name, changes=changes, outcome=outcome, exit_code=code)
        first.report = first.report.model_copy(update={"retries": [*first.report.retries, retry]})
        if (error := _write(run_dir, first.report)) is not None:
            self.say(error.marked)
        return last

    def _attempt(self, options: LaunchOptions, retry_of: Path | None = None) -> Attempt:
        from zerokit.launcher import prepare, run_folder
        from zerokit.launcher.supervisor import supervisor

        folder = None if options.run_dir is None else os.fspath(options.run_dir)
        is_new = folder is None or not os.path.lexists(folder)
        run_dir = run_folder.make_run_folder(folder, options.target.name, self.locks, self.say)
        with ExitStack() as stack:
            try:
                launch = prepare.prepare(options, run_dir, stack)
                if self.rehearsals is not None and retry_of is None:
                    launch = self.rehearsals.before(launch, self.say)
                if options.point is not None:
                    options.point.make_ready(launch.expected_ranks, self.say)
                if self.host_speeds is not None:
                    self.host_speeds.before(launch, self.say)
                prepare.write_files(launch)
            except BaseException:
                # Nothing ran: an empty folder would only look like a run.
                if is_new:
                    self.locks.close()
                    with suppress(OSError):  # not empty: what was written tells why
                        run_dir.rmdir()
                raise
            for note in launch.notes:
                if retry_of is None or note != launch.not_rehearsed:  # once for all attempts
                    self.say(note)
            if self.retries and (reason := replan.why_not(launch)) is not None:
                self.say(warning("no-smaller-retry", f"⟨retry_smaller⟩ cannot help here: {reason}"))
            self.say(f"run folder: {run_dir}")
            running = supervisor.Supervisor(launch)
            interruptions = stack.enter_context(Interruptions(lambda: running.over))
            ended = running.run()
            return self._conclude(launch, ended, retry_of, interruptions)

    def _conclude(
        self, launch: Launch, ended: Ended, retry_of: Path | None, interruptions: Interruptions
    ) -> Attempt:
        """Write and show the report; the failure's own words come last."""
        from zerokit.launcher.verdict import report as verdict_report

        run_dir = launch.run_dir
        report = build_report(launch, ended)
        if retry_of is not None:
            report = report.model_copy(update={"retry_of": str(retry_of)})
        following, not_written = None, _write(run_dir, report)
        interruptions.exit_code = ended.verdict.exit_code
        if report.outcome == "oom":  # planning takes a while: the report is there already
            following, report = self._explain_memory(launch, report, interruptions)
            not_written = _write(run_dir, report)
        elif self.rehearsals is not None and (
            wants_rehearsal(report) or (self.rehearsals.done is not None and ended_well(report))
        ):
            try:
                with interruptions.skippable():
                    again = self.rehearsals.of_job(launch, report, self.say)
            except KeyboardInterrupt:
                again = PredictedAgain(why_not="its rehearsal was interrupted")
            report = verdict_report.with_prediction(report, launch.plan, again)
            not_written = _write(run_dir, report)
        if self.host_speeds is not None:
            self.host_speeds.after(launch, report)
        self.listener.show(report, run_dir)
        from zerokit.launcher.locks import stale_lock_warnings

        if ended.dropped_bytes:
            self.say(f"{ended.dropped_bytes} bytes of output could not be written, and were dropped")
        if ended.evidence.survivors:
            pids = ", ".join(map(str, ended.evidence.survivors))
            self.say(warning("not-killed", f"could not be killed: pid {pids} (stuck in the kernel)"))
        if ended.failure_tail.strip():
            self.listener.failure(ended.failure_tail.rstrip("\n"))
        self.say(ended.verdict.outcome.because(ended.verdict.why))
        if ended.verdict.first_failure is not None:
            self.say(f"its output: {run_dir}/logs/rank-{ended.verdict.first_failure.rank:05d}.err.log")
        self.say(f"run folder: {run_dir}")
        for line in stale_lock_warnings():
            self.say(line)
        exit_code = ended.verdict.exit_code
        if not_written is not None:
            self.say(not_written.marked)
            if not exit_code or ended.verdict.reports_missing:  # a full disk took the ranks' own reports too
                exit_code = not_written.exit_code
        return Attempt(
            launch=launch, report=report, exit_code=exit_code, next=following, logs=ended.evidence.logs,
            told_to_end=interruptions.told_to_end,
        )  # fmt: skip

    def _explain_memory(
        self, launch: Launch, report: RunReport, interruptions: Interruptions
    ) -> tuple[SmallerPlan | NoNextPlan, RunReport]:
        """Put the next plan that would fit into the report of an out-of-memory, or why there is none."""
        following: SmallerPlan | NoNextPlan
        try:
            with interruptions.skippable():
                following = replan.next_plan(launch, report, self.plan_again)
            changed: dict[str, Any] = {"next_plan": following.describe()}
        except NoNextPlan as error:
            following, changed = error, {"no_next_plan": as_options(str(error))}
        except KeyboardInterrupt:
            following = NoNextPlan("planning again was interrupted")
            changed = {"no_next_plan": str(following)}
        with suppress(KeyboardInterrupt), interruptions.skippable():
            changed["try_next"] = replan.ways_to_fit(launch, report)
        if self.rehearsals is not None:
            with suppress(KeyboardInterrupt), interruptions.skippable():
                changed["rehearsed"] = self.rehearsals.of_oom(launch, report, self.say)
        if report.first_failure is not None:
            failure = report.first_failure.model_copy(update=changed)
            report = report.model_copy(update={"first_failure": failure})
        return following, report


def build_report(launch: Launch, ended: Ended) -> RunReport:
    """The report of a run that is over."""
    from zerokit.launcher.verdict import report

    evidence = ended.evidence
    evidence.problems = [*launch.problems, *evidence.problems]
    engines = [log.last("engine") for log in evidence.logs.values()]
    built = report.build_report(
        evidence,
        verdict=ended.verdict,
        plan=launch.plan,
        predict_again=replan.predictor(launch.style, engines),
        elapsed_seconds=ended.elapsed_seconds,
    )
    more: dict[str, object] = {}
    if not built.outcome.is_whole:
        more["resume"] = restarts.by_hand(launch, evidence.logs)
    if evidence.cause is not None:
        more["hang"] = evidence.cause
        more["problems"] = [*built.problems, f"likely cause: {evidence.cause}"]
    return built.model_copy(update=more)


def _write(run_dir: Path, report: RunReport) -> ReportNotWritten | None:
    from zerokit.launcher.verdict.report import write_report

    try:
        write_report(run_dir, report)
    except ReportNotWritten as error:
        return error
    return None
