"""The work behind ``zerokit tune``: plans, trials one after another, what is kept of them."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from zerokit.domain.job import Job
from zerokit.domain.strategy import Candidate
from zerokit.errors import InputError, ZerokitError
from zerokit.launcher import plan_agreement
from zerokit.launcher.options import LaunchOptions, check_launcher
from zerokit.planner.documents import PlannedStrategy
from zerokit.planner.memory_source import Say
from zerokit.planner.models import another_model
from zerokit.planner.plan_folder import check_folder, write_plan
from zerokit.planner.rehearsed_search import LOOKED_THROUGH
from zerokit.planner.request import ResolvedRequest, resolve
from zerokit.script.agreement import refuse_unplannable
from zerokit.script.argument_warnings import named_model
from zerokit.script.arguments import ScriptOptions, refuse_misspelt
from zerokit.script.entry_points import Target
from zerokit.script.planned_for import PlannedFor
from zerokit.script.reader import STYLES, read_script
from zerokit.script.unlike_job import with_optimizer_of
from zerokit.search.explain import strategy_words
from zerokit.search.plan import Plan, estimate_strategy, make_plan, make_space
from zerokit.search.sizing import distinct
from zerokit.search.space import Request
from zerokit.tuner.options import TuneOptions
from zerokit.tuner.rehearsals import Rehearse, TrialRehearsals
from zerokit.tuner.trial import TrialMeasurement, attempt
from zerokit.units import format_gib, format_seconds

RESULT_FILE = "tune.json"
_SAME_PARAMETERS = 0.02


@dataclass(slots=True, kw_only=True)
class Trial:
    """One plan to run, and what came of it.

    Attributes:
        candidate: with what its rehearsal says, where the script was rehearsed with it.
        planned: the same as predicted without a rehearsal.
    """

    number: int
    candidate: Candidate
    arguments: tuple[str, ...]
    planned: Candidate
    measured: TrialMeasurement | None = None

    @property
    def words(self) -> str:
        """The plan in one line."""
        return strategy_words(self.candidate.strategy)

    @property
    def counts(self) -> bool:
        """Whether it ran as planned, and was timed."""
        return self.measured is not None and self.measured.counts

    @property
    def seconds(self) -> float:
        """TrialMeasurement time of a step; only for a trial that counts."""
        assert self.measured is not None and self.measured.step_seconds is not None
        return self.measured.step_seconds


@dataclass(slots=True, kw_only=True)
class Tuning:
    """All of one ``zerokit tune``. Seconds.

    Attributes:
        interrupted: the exit code of a signal.
        describe: what ``tune.json`` holds of it.
        told: what was said of the script's arguments, which no trial says again.
    """

    target: Target
    read: ResolvedRequest
    options: dict[str, Any]
    plan: Plan
    job: Job
    trials: list[Trial]
    launch_options: LaunchOptions
    rehearsals: TrialRehearsals
    script: ScriptOptions
    out: str
    say: Say
    describe: Callable[[Tuning], dict[str, Any]]
    told: tuple[str, ...] = ()
    folder: Path | None = None
    interrupted: int | None = None
    files: dict[str, str] = field(default_factory=dict)
    calibration: dict[str, Any] | None = None

    # ---------------------------------------------------------------- before

    @classmethod
    def prepare(
        cls,
        target: Target,
        options: Mapping[str, Any],
        settings: TuneOptions,
        say: Say,
        rehearse: Rehearse | None,
        describe: Callable[[Tuning], dict[str, Any]],
        *,
        show_progress: bool = True,
    ) -> Tuning:
        """Plan, and decide what to run. ``rehearse``: as ``zerokit rehearse`` does; None: nothing is.

        Raises:
            InputError: bad options, or a script that a plan's configuration cannot reach.
            NothingFits: no plan fits.
        """
        check_launcher(settings["launcher"])
        check_folder(Path(settings["out"]))
        arguments = target.arguments
        script = Path(target.script) if target.script is not None else None
        facts = read_script(script, target.module, target.source)
        refuse_misspelt(arguments)
        style = settings["style"]
        if style == "auto":
            style = facts.style
        elif style not in STYLES:
            raise InputError(f"⟨style⟩ {style}: use auto, {', '.join(STYLES)}")
        _refuse_unreachable(style, facts.why)
        told = tuple(plan_agreement.read_of_source(facts, target, "tune")[1])
        for note in told:
            say(note)
        script_options = ScriptOptions.read(facts, style, arguments)
        refuse_unplannable(script_options)
        read = resolve(with_optimizer_of(script_options, _of_this_machine(options)), say=say)
        request = read.request
        if not request.on_cpu and not read.found_here:
            raise InputError("tune runs here, and no GPU was found; ⟨device⟩ cpu tunes on CPU ranks")
        _warn_of_another_model(script_options, read, say)
        planned, count = PlannedFor.of(request, script_options), int(settings["top"])
        request = planned.request
        plan = planned.with_own_reasons(
            make_plan(replace(request, all_gpus=True), top=count * LOOKED_THROUGH)
        )
        job = make_space(request)[0].job
        memory = request.exact_memory or request.memory
        candidates = [
            replace(candidate, memory=memory(job, candidate.strategy, request.cluster))
            for candidate in distinct([plan.chosen, *plan.alternatives], count)
        ]
        launch_options = LaunchOptions(
            target=target, device="cpu" if request.on_cpu else "cuda", launcher=settings["launcher"],
            style=style, heartbeat=settings["heartbeat"], grace=settings["grace"], show=settings["show"],
            show_progress=show_progress, stop_after_steps=int(settings["steps"]),
            limit_seconds=settings["timeout"], command="tune", no_arguments=True, accept_mismatch=True,
            no_trackers=True,
        )  # fmt: skip
        return cls(
            target=target, read=replace(read, request=request),
            options={**read.options, **planned.decided}, script=script_options,
            rehearsals=TrialRehearsals(
                target=target, script=script_options, request=request, job=job, count=count,
                seconds=settings["rehearsal_seconds"], rehearse=rehearse, say=say,
            ),
            plan=plan, job=job, launch_options=launch_options, out=os.fspath(settings["out"]), say=say,
            describe=describe, told=told, trials=[
                Trial(number=number, candidate=candidate, planned=candidate,
                      arguments=script_options.arguments(candidate.strategy))
                for number, candidate in enumerate(candidates, 1)
            ],
        )  # fmt: skip

    @property
    def request(self) -> Request:
        """What is planned for."""
        return self.read.request

    # ---------------------------------------------------------------- the trials

    def run(self, run_dir: str | None) -> None:
        """Run every trial that an interruption allows, and keep what they measured.

        Raises:
            InputError, NodeUnusable: no trial can run. ReportNotWritten: the disk is full.
        """
        from zerokit.launcher import run_folder as folder

        stem = Path(self.target.name).stem if self.target.script else self.target.name
        with ExitStack() as locks:
            self.folder = folder.make_run_folder(run_dir, f"tune-{stem}", locks)
            self.say(f"tune folder: {self.folder}")
            self._run_all()

    def _run_all(self) -> None:
        try:
            self._rehearse()
            for trial in self.trials:
                self._run(trial)
                self._keep()
                if self.interrupted is not None:
                    break
        except KeyboardInterrupt:  # between two trials; within one the supervisor hears it
            self.interrupted = 130
        best = self.fastest
        if best is not None and self.interrupted is None:
            self._write(best)
        self._keep()

    def _rehearse(self) -> None:
        """Try what is best with what the rehearsals show.

        Raises:
            NothingFits: nothing does, with what the script holds.
        """
        try:
            chosen = self.rehearsals.choose([trial.candidate for trial in self.trials])
        except ZerokitError:
            self._keep()
            raise
        if self.rehearsals.why_none is not None:
            return
        self.trials = [
            Trial(
                number=number,
                candidate=candidate,
                planned=estimate_strategy(self.request, candidate.strategy)[0],
                arguments=self.script.arguments(candidate.strategy),
            )
            for number, candidate in enumerate(chosen, 1)
        ]  # fmt: skip

    def _run(self, trial: Trial) -> None:
        assert self.folder is not None
        from zerokit.launcher import run_folder as folder

        predicted = format_seconds(trial.candidate.time.step_seconds)
        self.say(
            f"trial {trial.number} of {len(self.trials)}: {trial.words}"
            + (f"; predicted {predicted} a step" if self.request.timed else "")
        )
        with ExitStack() as locks:
            name = str(self.folder / f"trial-{trial.number}")
            self._run_in(folder.make_run_folder(name, self.target.name, locks), trial)

    def _run_in(self, folder: Path, trial: Trial) -> None:
        self._write_plan(trial, folder / "plan")
        launch_options = replace(
            self.launch_options,
            target=replace(self.target, arguments=trial.arguments),
            plan=str(folder / "plan"),
            run_dir=str(folder),
        )

        def say(note: str) -> None:
            if trial.number == 1 and note not in self.told:
                self.say(note)

        trial.measured = measurement = attempt(launch_options, folder, say, self.job.seq_len)
        if measurement.outcome == "interrupted":
            self.interrupted = measurement.exit_code
        self.say(f"trial {trial.number}: {_result(measurement)}")

    def _write_plan(
        self, trial: Trial, folder: Path, measured: dict[str, Any] | None = None
    ) -> dict[str, str]:
        planned = PlannedStrategy(
            candidate=trial.candidate, job=self.job, cluster=self.request.cluster,
            notes=self.plan.assumptions, timed=self.request.timed, on_cpu=self.request.on_cpu,
            script=self.rehearsals.profile(trial.arguments), parameters=self.request.shape.parameters,
        )  # fmt: skip
        return write_plan(folder, planned, self.options, assumptions=self.plan.assumptions, measured=measured)

    @property
    def fastest(self) -> Trial | None:
        """Of the trials that count."""
        return min((t for t in self.trials if t.counts), key=lambda trial: trial.seconds, default=None)

    def _write(self, best: Trial) -> None:
        """The fastest as the plan, as ``zerokit plan`` writes it, with what was measured."""
        measurement = best.measured
        assert measurement is not None and measurement.step_seconds is not None
        seconds, trial_count = (
            format_seconds(measurement.step_seconds),
            sum(t.measured is not None for t in self.trials),
        )
        why = f"{best.words}: {seconds} a step measured here, the fastest of {trial_count} tried"
        best.candidate = replace(best.candidate, why=why)
        measured = {"step_seconds": measurement.step_seconds, "peak_bytes": measurement.peak_bytes,
                    "memory": measurement.memory, "run_dir": str(measurement.run_dir)}  # fmt: skip
        self.files = self._write_plan(best, Path(self.out), measured)

    # ---------------------------------------------------------------- what is kept

    def _keep(self) -> None:
        """The result so far into tune.json, and the step times for later plans."""
        from zerokit.launcher import run_folder as folder

        assert self.folder is not None
        self._calibrate()
        folder.write_json(self.folder / RESULT_FILE, self.describe(self))

    def _calibrate(self) -> None:
        """Keep the step times of the trials that ran this very job as planned."""
        from zerokit.machine import tuned
        from zerokit.planner.calibration import keep

        measured = [(t.candidate.strategy, t.seconds) for t in self.trials if t.counts]
        if not measured:
            return
        why = self._other_job()
        if why is not None:
            self.calibration = {"file": None, "kept": 0, "why": why}
            return
        try:
            path, note = keep(self.request, self.job, measured)
        except OSError as error:
            why = f"{error.filename or tuned.path()}: {error.strerror}"
            self.calibration = {"file": None, "kept": 0, "why": why}
            return
        self.calibration = {"file": str(path), "kept": len(measured), "why": note}

    def _other_job(self) -> str | None:
        """Why the script's job is not the one that was planned for."""
        trial = next((t for t in self.trials if t.counts), None)
        if trial is None or (measured := trial.measured) is None:
            return None
        length, planned = measured.batch_columns, self.job.seq_len
        if length is not None:
            length *= trial.candidate.strategy.sequence_parallel
        if self.request.shape.head == "causal" and length is not None and length != planned:
            return (
                f"the script's sequences have {length} tokens, planned for {planned}: give ⟨seq_len⟩ {length}"
            )
        strategies = [t.candidate.strategy for t in self.trials]
        is_full = self.job.method == "full" and all(
            s.tensor_parallel * s.pipeline_parallel == 1 for s in strategies
        )
        expected = self.request.shape.parameters
        if is_full and measured.parameters and abs(measured.parameters / expected - 1) > _SAME_PARAMETERS:
            return (
                f"the script's model has {measured.parameters:,} parameters, planned for {expected:,}: "
                "name it with ⟨model⟩ or ⟨params⟩"
            )
        return None


def _result(measured: TrialMeasurement) -> str:
    if measured.problem is not None:
        return f"{measured.outcome}: {measured.problem}"
    if measured.differences:
        return f"does not count: {'; '.join(measured.differences)}"
    kind = "host" if measured.memory == "host" else "GPU"
    memory = f", {format_gib(measured.peak_bytes)} {kind} memory" if measured.peak_bytes else ""
    return f"{format_seconds(measured.step_seconds or 0.0)} a step{memory}"


def _of_this_machine(options: Mapping[str, Any]) -> Mapping[str, Any]:
    """The options without the GPU, which must be the one here.

    Raises:
        InputError: what cannot be tuned, or GPUs that are not here.
    """
    if options.get("inference"):
        raise InputError("⟨inference⟩: tune measures training steps")
    if options.get("vram"):
        raise InputError("⟨vram⟩: tune runs on the GPUs of this machine; leave it out")
    if not options.get("gpu") or options.get("device") == "cpu":
        return options
    from zerokit.catalog import gpus
    from zerokit.machine.detect import detect

    machine = detect()
    detected, reason = machine.catalog_gpu()
    requested = gpus.lookup(str(options["gpu"]))
    if detected is None or detected.name != requested.name:
        fix = "leave it out" if machine.gpus else "⟨device⟩ cpu in its place tunes on CPU ranks"
        raise InputError(f"⟨gpu⟩ {requested.name}: tune runs on this machine's GPUs ({reason}); {fix}")
    return {**options, "gpu": None}


def _warn_of_another_model(script: ScriptOptions, read: ResolvedRequest, say: Say) -> None:
    """The trials train the script's model, whatever was planned for."""
    named = named_model(script)
    unlike = another_model(*named, read.options, None) if named is not None else None
    if named is not None and unlike is not None:
        say(f"warning: {unlike}: the trials train it, with plans for another; tune with ⟨model⟩ {named[0]}")


def _refuse_unreachable(style: str, why: str) -> None:
    if style == "none":
        raise InputError(
            f"no plan reaches this script: {why}; if it takes a DeepSpeed configuration, say how with ⟨style⟩"
        )
