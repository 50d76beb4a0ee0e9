"""The work behind ``zerokit tune``: plans, trials one after another, what is kept of them."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

from zerokit.domain.job import Job
from zerokit.domain.planned import Chosen
from zerokit.domain.strategy import Candidate
from zerokit.errors import InputError, ZerokitError
from zerokit.launcher import plan_agreement
from zerokit.launcher.launch import Launch
from zerokit.launcher.options import LaunchOptions, PathLike
from zerokit.launcher.run_folder import CONFIG_FILE
from zerokit.notes import warning
from zerokit.planner.against import Against, compared, kind_of
from zerokit.planner.documents import PlannedStrategy
from zerokit.planner.memory_source import Say
from zerokit.planner.models import another_model
from zerokit.planner.plan_result import check_folder, write_plan
from zerokit.planner.planned_for import PlannedFor
from zerokit.planner.rehearsed_search import LOOKED_THROUGH
from zerokit.planner.request import ResolvedRequest, refuse_other_engines, resolve
from zerokit.report import what_ran
from zerokit.report.schema import RunReport
from zerokit.script.agreement import refuse_unplannable
from zerokit.script.argument_warnings import named_model
from zerokit.script.arguments import ScriptOptions, refuse_misspelt
from zerokit.script.entry_points import Target
from zerokit.script.reader import read_target
from zerokit.script.unlike_job import with_optimizer_of
from zerokit.search.explain import strategy_words
from zerokit.search.plan import Plan, estimate_strategy, make_plan, make_space
from zerokit.search.sizing import distinct
from zerokit.search.space import Request
from zerokit.tuner.options import FEWEST_STEPS, TuneOptions
from zerokit.tuner.rehearsals import Rehearsing, TrialRehearsals
from zerokit.units import format_gib, format_seconds

_DECISIVE = ("ZeRO stage", "batch size per GPU", "gradient accumulation", "tensor parallel", "precision",
             "activation checkpointing")  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialMeasurement:
    """What a trial measured, over its ranks.

    Attributes:
        outcome: of ``report.json``; ``stopped`` at the step limit, ``ok`` when the script was done before.
        step_seconds: of the slowest rank, warm-up left out; None when too few steps were done.
        peak_bytes: of the fullest rank: GPU memory allocated, or host memory on CPU ranks.
        predicted_peak_bytes: the same as predicted (on CPU ranks with the measured process added).
        batch_columns, parameters: tokens of a sequence as the script feeds them, and its model's size, where
            they could be seen.
        problem: why the trial does not count; None when it does.
        differences: what ran otherwise than planned, each a sentence; then it does not count either.
    """

    outcome: str
    exit_code: int
    run_dir: Path
    steps: int = 0
    step_seconds: float | None = None
    peak_bytes: int | None = None
    predicted_peak_bytes: int | None = None
    memory: str = "gpu"
    batch_columns: int | None = None
    parameters: int | None = None
    problem: str | None = None
    differences: tuple[str, ...] = field(default=())

    @property
    def counts(self) -> bool:
        """Whether its step time is that of the plan."""
        return self.problem is None and not self.differences and self.step_seconds is not None


def run(launch: Launch) -> RunReport:
    """Run what was prepared, write its report and return it. Raises ReportNotWritten: the disk is full."""
    from zerokit.launcher.attempts import build_report
    from zerokit.launcher.prepare import write_files
    from zerokit.launcher.supervisor.supervisor import Supervisor
    from zerokit.launcher.verdict.report import write_report

    write_files(launch)
    report = build_report(launch, Supervisor(launch).run())
    write_report(launch.run_dir, report)
    return report


def attempt(
    options: LaunchOptions, run_dir: Path, say: Callable[[str], None], seq_len: int
) -> TrialMeasurement:
    """Prepare and run one trial in ``run_dir``; ``say`` hears what is worth knowing before it starts. Raises
    InputError, NodeUnusable: no trial can run like this. ReportNotWritten: the disk is full."""
    from zerokit.launcher.prepare import prepare

    with ExitStack() as stack:
        launch = prepare(options, run_dir, stack)
        for note in launch.notes:
            if note != launch.not_rehearsed:  # a trial's plan is none that the user made
                say(note)
        report = run(launch)
    chosen = cast(Chosen, (launch.plan or {}).get("chosen") or {})
    return measured(report.to_dict(), chosen, run_dir, seq_len)


def measured(report: Mapping[str, Any], chosen: Chosen, run_dir: Path, seq_len: int = 0) -> TrialMeasurement:
    """Read a trial's report beside the plan's choice; ``seq_len``: tokens of a sequence as planned."""
    ranks = report["ranks"]
    compared = report.get("predicted_vs_measured") or {}
    peak = compared.get("peak_bytes") or {}
    engine = dict(next((rank["engine"] for rank in ranks if rank.get("engine")), None) or {})
    if engine.get("batch_rows") == 1 and seq_len and (engine.get("batch_columns") or 0) > seq_len:
        engine |= {"batch_rows": None, "batch_columns": None}  # sequences laid end to end, as one
    seconds = _step_seconds(ranks)
    good = report["outcome"] in ("ok", "stopped")
    problem = None if good else _failure(report)
    if good and seconds is None:
        steps = min((rank["steps"] for rank in ranks), default=0)
        problem = (
            f"only {steps} optimizer steps were done by the script; {FEWEST_STEPS} are needed to time one"
            if steps
            else "no optimizer step of a DeepSpeed engine was seen"
        )
    return TrialMeasurement(
        outcome=report["outcome"],
        exit_code=report["exit_code"],
        run_dir=run_dir,
        steps=min((rank["steps"] for rank in ranks), default=0),
        step_seconds=seconds,
        peak_bytes=peak.get("measured"),
        predicted_peak_bytes=peak.get("predicted"),
        memory="host" if compared.get("kind") == "host_memory" else "gpu",
        batch_columns=engine.get("batch_columns"),
        parameters=engine.get("parameters"),
        problem=problem,
        differences=tuple(differences(chosen, engine)) if good and engine else (),
    )


def _step_seconds(ranks: list[dict[str, Any]]) -> float | None:
    """Of the slowest rank: all wait for it. A script that ended early has medians only."""
    timed = [(rank.get("timed") or {}).get("step_seconds") for rank in ranks]
    if not ranks or None in timed:
        timed = [rank["median_step_seconds"] if rank["steps"] >= FEWEST_STEPS else None for rank in ranks]
    measured = [seconds for seconds in timed if seconds]
    return max(measured) if measured and len(measured) == len(ranks) else None


def _failure(report: Mapping[str, Any]) -> str:
    """The failure in one line."""
    first = report.get("first_failure") or {}
    text = str(first.get("error") or report.get("why") or report["outcome"])
    location = (
        f" in {first['phase']}, step {first['step']}" if first.get("phase") and first.get("step") else ""
    )
    return text.strip().splitlines()[0][:300] + location if text.strip() else str(report["outcome"])


def differences(chosen: Chosen, engine: Mapping[str, Any]) -> list[str]:
    """Where what ran is not what was planned; a fact that is not known is no difference."""
    return [one.text for one in what_ran.of_engine(chosen, engine) if one.what in _DECISIVE]


RESULT_FILE = "tune.json"
_SAME_PARAMETERS = 0.02


@dataclass(slots=True, kw_only=True)
class Trial:
    """One plan to run, with what its rehearsal says, if it was rehearsed, and as ``planned`` without; and
    what came of it. ``theirs``: the user's configuration, which runs in place of a plan's, as number 0."""

    number: int
    candidate: Candidate
    arguments: tuple[str, ...]
    planned: Candidate
    measured: TrialMeasurement | None = None
    theirs: Against | None = None

    @property
    def words(self) -> str:
        """The plan in one line."""
        words = strategy_words(self.candidate.strategy)
        return words if self.theirs is None else f"{self.theirs.path}: {words}"

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
    """All of one ``zerokit tune``. Seconds. ``interrupted``: the exit code of a signal; ``describe``: what
    ``tune.json`` holds of it; ``told``: what was said of the script's arguments, which no trial says
    again."""

    target: Target
    read: ResolvedRequest
    options: dict[str, Any]
    plan: Plan
    job: Job
    against: Trial | None
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
        rehearsing: Rehearsing | None,
        describe: Callable[[Tuning], dict[str, Any]],
        *,
        show_progress: bool = True,
    ) -> Tuning:
        """Plan, and decide what to run. ``rehearsing``: as ``zerokit rehearse`` does; None: nothing is.
        Raises InputError: bad options, or a script that a plan's configuration cannot reach. Raises
        NothingFits: no plan fits."""
        check_folder(Path(settings["out"]))
        arguments = target.arguments
        facts = read_target(target)
        refuse_misspelt(arguments)
        style: Any = facts.style if settings["style"] == "auto" else settings["style"]
        if style == "none":
            raise InputError(
                f"no plan reaches this script: {facts.why}; if it takes a DeepSpeed configuration, say how "
                "with ⟨style⟩"
            )
        told = tuple(plan_agreement.read_of_source(facts, target, "tune")[1])
        for note in told:
            say(note)
        script_options = ScriptOptions.read(facts, style, arguments)
        refuse_unplannable(script_options, "deepspeed")
        refuse_other_engines(options, ["deepspeed"], "tune runs DeepSpeed's plans alone")
        read = resolve(with_optimizer_of(script_options, _of_this_machine(options)), say=say)
        request = read.request
        if not request.cluster.on_cpu and not read.found_here:
            raise InputError("tune runs here, and no GPU was found; ⟨device⟩ cpu tunes on CPU ranks")
        named = named_model(script_options)
        if named is not None and (unlike := another_model(*named, read.options, None)) is not None:
            trained = f"the trials train it, with plans for another; tune with ⟨model⟩ {named[0]}"
            say(warning("another-model", f"{unlike}: {trained}"))
        planned, count = (
            PlannedFor.of(request, script_options.fixed(), search_tensor=script_options.feeds_peers_alike),
            int(settings["top"]),
        )
        request = planned.request
        plan = planned.with_own_reasons(
            make_plan(replace(request, all_gpus=True), top=count * LOOKED_THROUGH)
        )
        job = make_space(request)[0].job
        memory = request.memory.detailed()
        candidates = [
            replace(candidate, memory=memory(job, candidate.strategy, request.cluster))
            for candidate in distinct([plan.chosen, *plan.alternatives], count)
        ]
        launch_options = LaunchOptions(
            target=target, device="cpu" if request.cluster.on_cpu else "cuda", launcher=settings["launcher"],
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
                seconds=settings["rehearsal_seconds"], rehearsing=rehearsing, say=say,
            ),
            plan=plan, job=job, launch_options=launch_options, out=os.fspath(settings["out"]), say=say,
            against=_against(settings["against"], options, script_options, read, plan, job),
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
        """Run every trial that an interruption allows, and keep what they measured. Raises InputError,
        NodeUnusable: no trial can run. ReportNotWritten: the disk is full."""
        from zerokit.launcher import run_folder as folder

        stem = Path(self.target.name).stem if self.target.script else self.target.name
        with ExitStack() as locks:
            self.folder = folder.make_run_folder(run_dir, f"tune-{stem}", locks)
            self.say(f"tune folder: {self.folder}")
            self._run_all()

    def _run_all(self) -> None:
        try:
            self._rehearse()
            for trial in (*([self.against] if self.against is not None else []), *self.trials):
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
        """Try what is best with what the rehearsals show. Raises NothingFits: nothing does, with what the
        script holds."""
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
        which = f"{trial.number} of {len(self.trials)}" if trial.number else "0"
        self.say(
            f"trial {which}: {trial.words}"
            + (f"; predicted {predicted} a step" if self.request.timed else "")
        )
        with ExitStack() as locks:
            name = str(self.folder / f"trial-{trial.number}")
            self._run_in(folder.make_run_folder(name, self.target.name, locks), trial)

    def _run_in(self, folder: Path, trial: Trial) -> None:
        self._write_plan(trial, folder / "plan")
        if trial.theirs is not None:
            (folder / "plan" / CONFIG_FILE).write_text(Path(trial.theirs.path).read_text())
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
            notes=self.plan.assumptions,
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
        seconds, tried = format_seconds(measurement.step_seconds), [t for t in self.trials if t.measured]
        why = f"{best.words}: {seconds} a step measured here, the fastest of {len(tried)} tried"
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


def _against(
    path: PathLike | None,
    options: Mapping[str, Any],
    script: ScriptOptions,
    read: ResolvedRequest,
    plan: Plan,
    job: Job,
) -> Trial | None:
    """The configuration to run beside the plans. Raises InputError: it is none of DeepSpeed, or for another
    job."""
    if path is None:
        return None
    path = os.fspath(path)
    if kind_of(path) != "deepspeed":
        raise InputError(f"⟨against⟩ {path}: tune runs a DeepSpeed JSON beside its plans")
    own = PlannedStrategy(candidate=plan.chosen, job=job, cluster=read.request.cluster)
    theirs = compared(path, None, options, options, own, read.model_name, None)
    assert theirs is not None
    candidate = theirs.theirs.planned.candidate
    return Trial(number=0, candidate=candidate, planned=candidate, theirs=theirs,
                 arguments=script.arguments(candidate.strategy))  # fmt: skip


def _result(measured: TrialMeasurement) -> str:
    if measured.problem is not None:
        return f"{measured.outcome}: {measured.problem}"
    if measured.differences:
        return f"does not count: {'; '.join(measured.differences)}"
    kind = "host" if measured.memory == "host" else "GPU"
    memory = f", {format_gib(measured.peak_bytes)} {kind} memory" if measured.peak_bytes else ""
    return f"{format_seconds(measured.step_seconds or 0.0)} a step{memory}"


def _of_this_machine(options: Mapping[str, Any]) -> Mapping[str, Any]:
    """The options without the GPU, which must be the one here. Raises InputError: what cannot be tuned, or
    GPUs that are not here."""
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
