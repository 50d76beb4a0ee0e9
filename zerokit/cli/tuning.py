"""The work behind ``zerokit tune``: plans, trials one after another, what is kept of them."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from zerokit.cli import options as shared_options
from zerokit.cli import payload
from zerokit.cli.plan import write_files
from zerokit.core.advice import strategy_words
from zerokit.core.job import Job
from zerokit.core.planning import Plan, Request, make_plan, make_space, time_model
from zerokit.core.strategy import Candidate
from zerokit.errors import (
    InputError,
    LauncherLost,
    NodeUnusable,
    RankFailed,
    ReportNotWritten,
    RunHung,
    ZerokitError,
)
from zerokit.run.command import Target
from zerokit.run.prepare import Wishes
from zerokit.run.scriptargs import PLACEHOLDERS, ScriptOptions
from zerokit.run.style import STYLES, read_script
from zerokit.run.trial import Measured, attempt
from zerokit.units import format_gib, format_seconds

SCHEMA = "zerokit.tune/1"
RESULT_FILE = "tune.json"
_SAME_PARAMETERS = 0.02
_FAILURES = (RankFailed, RunHung, LauncherLost, NodeUnusable, ReportNotWritten)


@dataclass(slots=True, kw_only=True)
class Trial:
    """One plan to run, and what came of it."""

    number: int
    candidate: Candidate
    arguments: tuple[str, ...]
    measured: Measured | None = None

    @property
    def words(self) -> str:
        """The plan in one line."""
        return strategy_words(self.candidate.strategy)


@dataclass(slots=True, kw_only=True)
class Tuning:
    """All of one ``zerokit tune``. Seconds; ``interrupted`` is the exit code of a signal."""

    target: Target
    read: shared_options.Read
    given: dict[str, Any]
    made: Plan
    job: Job
    trials: list[Trial]
    wishes: Wishes
    out: str
    say: Callable[[str], None]
    folder: Path | None = None
    interrupted: int | None = None
    files: dict[str, str] = field(default_factory=dict)
    calibration: dict[str, Any] | None = None

    # ---------------------------------------------------------------- before

    @classmethod
    def prepare(
        cls, *, script: str | None, module: str | None, arguments: tuple[str, ...], options: dict[str, Any],
        top: int, steps: int, out: str, launcher: str, style: str, limit_seconds: float,
        heartbeat_seconds: float, grace_seconds: float, show_ranks: str, say: Callable[[str], None],
    ) -> Tuning:  # fmt: skip
        """Plan, and decide what to run.

        Raises:
            InputError: bad options, or a script that a plan's configuration cannot reach.
            NothingFits: no plan fits.
        """
        target = Target(script=script, module=module, arguments=arguments)
        facts = read_script(Path(script) if script is not None else None, module)
        if style == "auto":
            style = facts.style
        elif style not in STYLES:
            raise InputError(f"--style {style}: use auto, {', '.join(STYLES)}")
        _refuse_own_configuration(style, facts.why, arguments)
        read = shared_options.read(options)
        request = read.request
        if not request.on_cpu and not read.found_here:
            raise InputError("tune runs here, and no GPU was found; --device cpu tunes on CPU ranks")
        script_options = ScriptOptions(facts=facts, style=style, given=arguments)
        pins, notes = script_options.pins(request.pins)
        request = replace(request, pins=pins, assumptions=(*request.assumptions, *notes))
        made = make_plan(request, top=top)
        job = make_space(request)[0].job
        candidates = [made.chosen, *made.alternatives][:top]
        memory = request.exact_memory or request.memory
        trials = [
            Trial(
                number=number,
                candidate=replace(each, memory=memory(job, each.strategy, request.cluster)),
                arguments=script_options.arguments(each.strategy),
            )
            for number, each in enumerate(candidates, 1)
        ]
        wishes = Wishes(
            target=target, device="cpu" if request.on_cpu else "cuda", launcher=launcher, style=style,
            heartbeat_seconds=heartbeat_seconds, grace_seconds=grace_seconds, show_ranks=show_ranks,
            stop_after_steps=steps, limit_seconds=limit_seconds,
        )  # fmt: skip
        return cls(
            target=target, read=replace(read, request=request), given=shared_options.given(options),
            made=made, job=job, trials=trials, wishes=wishes, out=out, say=say,
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
        from zerokit.run import folder

        stem = Path(self.target.name).stem if self.target.script else self.target.name
        self.folder = folder.make_run_folder(run_dir, f"tune-{stem}")
        self.say(f"tune folder: {self.folder}")
        try:
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

    def _run(self, trial: Trial) -> None:
        assert self.folder is not None
        from zerokit.run import folder

        predicted = format_seconds(trial.candidate.time.step_seconds)
        self.say(
            f"trial {trial.number} of {len(self.trials)}: {trial.words}"
            + (f"; predicted {predicted} a step" if self.request.timed else "")
        )
        place = folder.make_run_folder(str(self.folder / f"trial-{trial.number}"), self.target.name)
        self._write_plan(trial, place / "plan")
        wishes = replace(
            self.wishes,
            target=replace(self.target, arguments=trial.arguments),
            plan=str(place / "plan"),
            run_dir=str(place),
        )
        first = trial.number == 1
        trial.measured = found = attempt(wishes, place, self.say if first else lambda note: None)
        if found.outcome == "interrupted":
            self.interrupted = found.exit_code
        self.say(f"trial {trial.number}: {_result(found)}")

    def _write_plan(
        self, trial: Trial, place: Path, measured: dict[str, Any] | None = None
    ) -> dict[str, str]:
        candidate = trial.candidate
        body = {
            "request": self.given,
            "chosen": payload.strategy(
                candidate, self.job, self.request.cluster, assumptions=self.made.assumptions,
                timed=self.request.timed, on_cpu=self.request.on_cpu,
            ),
        }  # fmt: skip
        if measured is not None:
            body["chosen"]["measured"] = measured
        made = replace(self.made, chosen=candidate)
        return write_files(place, body, made, self.job, self.request.cluster)

    @property
    def fastest(self) -> Trial | None:
        """Of the trials that count."""
        good = [trial for trial in self.trials if trial.measured is not None and trial.measured.counts]
        return min(good, key=_measured_seconds, default=None)

    def _write(self, best: Trial) -> None:
        """The fastest as the plan, as ``zerokit plan`` writes it, with what was measured."""
        found = best.measured
        assert found is not None and found.step_seconds is not None
        seconds, tried = format_seconds(found.step_seconds), sum(t.measured is not None for t in self.trials)
        why = f"{best.words}: {seconds} a step measured here, the fastest of {tried} tried"
        best.candidate = replace(best.candidate, why=why)
        measured = {"step_seconds": found.step_seconds, "peak_bytes": found.peak_bytes,
                    "memory": found.memory, "run_dir": str(found.run_dir)}  # fmt: skip
        self.files = self._write_plan(best, Path(self.out), measured)

    # ---------------------------------------------------------------- what is kept

    def _keep(self) -> None:
        """The result so far into tune.json, and the step times for later plans."""
        from zerokit.run import folder

        assert self.folder is not None
        self._calibrate()
        folder.write_json(self.folder / RESULT_FILE, self.body())

    def _calibrate(self) -> None:
        """Keep the step times of the trials that ran this very job as planned."""
        from zerokit.catalog import tuned
        from zerokit.core.calibrating import observe
        from zerokit.core.constants import Calibration
        from zerokit.core.strategy import Strategy, TimeEstimate

        ran = [
            (t.candidate.strategy, _measured_seconds(t))
            for t in self.trials
            if t.measured and t.measured.counts
        ]
        other = self._other_job()
        if not ran or other is not None:
            self.calibration = {"file": None, "kept": 0, "why": other} if other else None
            return
        rates = replace(self.request.calibration or Calibration(), tuned=None, layer_factors=())

        def estimate(strategy: Strategy, calibration: Calibration) -> TimeEstimate:
            return time_model(replace(self.request, calibration=calibration), self.job).estimate(strategy)

        at = time.strftime("%Y-%m-%dT%H:%M:%S%z")
        found = observe(self.request.shape, self.job, self.request.cluster, ran, estimate, rates, at)
        try:
            place, note = tuned.save(found)
        except OSError as error:
            self.calibration = {"file": None, "kept": 0, "why": f"{tuned.path()}: {error.strerror or error}"}
            return
        self.calibration = {"file": str(place), "kept": len(found), "why": note}

    def _other_job(self) -> str | None:
        """Why the script's job is not the one that was planned for."""
        found = next((t.measured for t in self.trials if t.measured and t.measured.counts), None)
        if found is None:
            return None
        length, planned = found.batch_columns, self.job.seq_len
        causal = self.request.shape.head == "causal"
        if causal and length is not None and length != planned:
            return (
                f"the script's sequences have {length} tokens, planned for {planned}: give --seq-len {length}"
            )
        whole = self.job.method == "full" and all(
            t.candidate.strategy.tensor_parallel * t.candidate.strategy.pipeline_parallel == 1
            for t in self.trials
        )
        expected = self.request.shape.parameters
        if whole and found.parameters and abs(found.parameters / expected - 1) > _SAME_PARAMETERS:
            return (
                f"the script's model has {found.parameters:,} parameters, planned for {expected:,}: "
                "name it with --model or --params"
            )
        return None

    def body(self) -> dict[str, Any]:
        """``tune --json``."""
        best = self.fastest
        cluster = self.request.cluster
        return {
            "schema": SCHEMA,
            "model": self.read.model_name,
            "gpu": cluster.gpu.name,
            "gpus": cluster.gpus,
            "request": self.given,
            "script": self.target.name,
            "steps": self.wishes.stop_after_steps,
            "trials": [self._row(trial) for trial in self.trials],
            "fastest": best.number if best is not None else None,
            "interrupted": self.interrupted is not None,
            "folder": str(self.folder) if self.folder is not None else None,
            "files": self.files,
            "calibration": self.calibration,
            "assumptions": list(self.made.assumptions),
            "next": self._next(best) if best is not None and self.files else None,
        }

    def _row(self, trial: Trial) -> dict[str, Any]:
        found, candidate = trial.measured, trial.candidate
        row: dict[str, Any] = {
            "trial": trial.number,
            "description": trial.words,
            "strategy": payload.degrees(candidate.strategy),
            "script_arguments": list(trial.arguments),
            "predicted_step_seconds": candidate.time.step_seconds if self.request.timed else None,
            "predicted_peak_bytes": candidate.memory.worst.peak_allocated_bytes,
        }
        if found is None:
            return {**row, "outcome": "not_run", "counts": False}
        if found.predicted_peak_bytes is not None:
            row["predicted_peak_bytes"] = found.predicted_peak_bytes
        return {
            **row,
            "outcome": found.outcome,
            "counts": found.counts,
            "problem": found.problem,
            "differences": list(found.differences),
            "steps": found.steps,
            "measured_step_seconds": found.step_seconds,
            "measured_peak_bytes": found.peak_bytes,
            "memory": found.memory,
            "run_dir": str(found.run_dir),
        }

    def _next(self, best: Trial) -> str:
        where = ["-m", str(self.target.module)] if self.target.script is None else [self.target.script]
        device = ["--device", "cpu"] if self.request.on_cpu else []
        style = [] if self.wishes.style in ("auto", self._auto_style()) else ["--style", self.wishes.style]
        return shlex.join(["zerokit", "launch", "--plan", self.out, *device, *style, *where, *best.arguments])

    def _auto_style(self) -> str:
        script = Path(self.target.script) if self.target.script is not None else None
        with suppress(ZerokitError):
            return read_script(script, self.target.module).style
        return "none"

    def conclude(self) -> int:
        """The exit code of an interruption, or 0 with a fastest plan.

        Raises:
            ZerokitError: none of the trials counts; the first failure decides which.
        """
        if self.interrupted is not None:
            self.say(f"interrupted; what was measured is in {self.folder}")
            return self.interrupted
        if self.fastest is not None:
            return 0
        raise _none_counts([trial for trial in self.trials if trial.measured is not None])


def _measured_seconds(trial: Trial) -> float:
    assert trial.measured is not None and trial.measured.step_seconds is not None
    return trial.measured.step_seconds


def _result(found: Measured) -> str:
    if found.problem is not None:
        return f"{found.outcome}: {found.problem}"
    if found.differences:
        return f"does not count: {'; '.join(found.differences)}"
    kind = "host" if found.memory == "host" else "GPU"
    memory = f", {format_gib(found.peak_bytes)} {kind} memory" if found.peak_bytes else ""
    return f"{format_seconds(found.step_seconds or 0.0)} a step{memory}"


def _refuse_own_configuration(style: str, why: str, arguments: tuple[str, ...]) -> None:
    given = {argument.partition("=")[0] for argument in arguments}
    if style == "none":
        raise InputError(
            f"no plan reaches this script: {why}; if it takes a DeepSpeed configuration, say how with --style"
        )
    own = "--deepspeed_config" if style == "raw" else "--deepspeed" if style == "trainer" else None
    if own in given:
        raise InputError(f"{own}: the script's own configuration would decide, not the plans; leave it out")


def _none_counts(trials: list[Trial]) -> ZerokitError:
    """The error when no trial counts."""
    found = [(trial.number, trial.measured) for trial in trials if trial.measured is not None]
    failed = [measured for _, measured in found if measured.problem is not None and measured.exit_code]
    lines = [
        f"  trial {number}: {measured.problem or '; '.join(measured.differences)}"
        for number, measured in found
    ]
    text = "\n".join(["none of the plans could be timed:", *lines])
    if not failed:
        if any(measured.differences for _, measured in found):
            text += f"\nGive the script what it decides itself: {', '.join(PLACEHOLDERS)} in its arguments"
        return InputError(text)
    if all(measured.outcome == "oom" for measured in failed):
        text += (
            "\nAll ran out of memory; try more with --top, or fix less: --checkpointing full, --micro-batch 1"
        )
    kind = next((kind for kind in _FAILURES if kind.exit_code == failed[0].exit_code), RankFailed)
    return kind(text)
