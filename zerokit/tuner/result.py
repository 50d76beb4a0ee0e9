"""What ``zerokit tune`` says: its JSON, the command to go on with, and the error when no trial counts."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from zerokit.commands import command_text
from zerokit.errors import (
    InputError,
    LauncherLost,
    NodeUnusable,
    RankFailed,
    ReportNotWritten,
    RunHung,
    ZerokitError,
)
from zerokit.fields import all_as_options, as_options
from zerokit.launcher.secrets import Secrets
from zerokit.planner.documents import degrees
from zerokit.script.arguments import PLACEHOLDERS
from zerokit.script.reader import read_target
from zerokit.tuner.tuning import Trial, Tuning

SCHEMA = "zerokit.tune/1"
_FAILURES = (RankFailed, RunHung, LauncherLost, NodeUnusable, ReportNotWritten)


def body(tuning: Tuning) -> dict[str, Any]:
    """``tune --json``, and tune.json."""
    best, cluster, calibration = tuning.fastest, tuning.request.cluster, tuning.calibration
    if calibration is not None and calibration["why"] is not None:
        calibration = {**calibration, "why": as_options(calibration["why"])}
    why_none = tuning.rehearsals.why_none
    return {
        "schema": SCHEMA,
        "model": tuning.read.model_name,
        "gpu": cluster.gpu.name,
        "gpus": cluster.gpus,
        "request": tuning.options,
        "script": tuning.target.name,
        "steps": tuning.launch_options.stop_after_steps,
        "most_seconds_per_trial": tuning.launch_options.limit_seconds,
        "most_rehearsal_seconds": 0.0 if tuning.request.cluster.on_cpu else tuning.rehearsals.seconds,
        "trials": [_row(trial, tuning) for trial in tuning.trials],
        "rehearsals": tuning.rehearsals.to_dict(),
        "not_rehearsed": None if why_none is None else as_options(why_none),
        "not_tried": tuning.rehearsals.not_tried([trial.candidate for trial in tuning.trials]),
        "fastest": best.number if best is not None else None,
        "against": None if tuning.against is None else _beside(tuning.against, best, tuning),
        "interrupted": tuning.interrupted is not None,
        "folder": str(tuning.folder) if tuning.folder is not None else None,
        "files": tuning.files,
        "calibration": calibration,
        "assumptions": list(all_as_options(tuning.plan.assumptions)),
        "next": _next(tuning, best) if best is not None and tuning.files else None,
    }


def _rehearsed(trial: Trial, tuning: Tuning) -> dict[str, Any] | None:
    """What the rehearsal with this plan says; None: there was none."""
    rehearsed = tuning.rehearsals.of(trial.candidate.strategy)
    if rehearsed is None:
        return None
    candidate = trial.candidate
    itself = rehearsed.strategy == candidate.strategy  # and not with more micro-batches a step
    step = rehearsed.step_seconds
    if step is not None and not itself:
        step = candidate.time.step_seconds
    return {
        "peak_allocated_bytes": candidate.memory.worst.peak_allocated_bytes,
        "peak_phase": candidate.memory.worst.peak_phase,
        "min_vram_bytes": candidate.memory.min_vram_bytes,
        "step_seconds": step,
        "step_seconds_range": rehearsed.step_seconds_range if itself else None,
    }


def _beside(against: Trial, best: Trial | None, tuning: Tuning) -> dict[str, Any]:
    """The row of the user's configuration; ``times_as_fast``: its seconds over those of the fastest plan, for
    as many tokens; None: one of them does not count."""
    assert against.theirs is not None
    times = None
    if best is not None and against.counts:
        times = against.theirs.measured(against.seconds, best.candidate, best.seconds)
    return {**_row(against, tuning), "path": against.theirs.path, "times_as_fast": times}


def _row(trial: Trial, tuning: Tuning) -> dict[str, Any]:
    measured, planned = trial.measured, trial.planned
    rehearsed = _rehearsed(trial, tuning)
    row: dict[str, Any] = {
        "trial": trial.number,
        "description": trial.words,
        "strategy": degrees(planned.strategy),
        "script_arguments": Secrets(os.environ, trial.arguments).argv(trial.arguments),
        "predicted_step_seconds": planned.time.step_seconds if tuning.request.timed else None,
        "predicted_peak_bytes": planned.memory.worst.peak_allocated_bytes,
        "rehearsed": rehearsed,
    }
    if measured is None:
        return {**row, "outcome": "not_run", "counts": False}
    if measured.predicted_peak_bytes is not None and rehearsed is None:
        row["predicted_peak_bytes"] = measured.predicted_peak_bytes
    return {
        **row,
        "outcome": measured.outcome,
        "counts": measured.counts,
        "problem": measured.problem,
        "differences": list(measured.differences),
        "steps": measured.steps,
        "measured_step_seconds": measured.step_seconds,
        "measured_peak_bytes": measured.peak_bytes,
        "memory": measured.memory,
        "run_dir": str(measured.run_dir),
    }


def _next(tuning: Tuning, best: Trial) -> str:
    """How to run the plan that was kept."""
    target = tuning.target
    target_words = ["-m", str(target.module)] if target.script is None else [target.script]
    device = ["--device", "cpu"] if tuning.request.cluster.on_cpu else []
    style, found = tuning.launch_options.style, "none"
    with suppress(ZerokitError):
        found = read_target(target).style
    arguments = Secrets(os.environ, best.arguments).argv(best.arguments)
    said = [] if style == found else ["--style", style]
    return command_text("launch", "--plan", tuning.out, *device, *said, *target_words, *arguments)


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneResult:
    """What the trials came to, and the seconds that it took; None: nothing was run."""

    tuning: Tuning
    seconds: float | None = None

    @property
    def trials(self) -> tuple[Trial, ...]:
        """The plans that were run or left, in the order in which they were predicted."""
        return tuple(self.tuning.trials)

    @property
    def fastest(self) -> Trial | None:
        """Of the trials that count; None where none does."""
        return self.tuning.fastest

    @property
    def files(self) -> dict[str, str]:
        """Kind → path of the fastest plan's files; empty where none was kept."""
        return dict(self.tuning.files)

    @property
    def interrupted(self) -> int | None:
        """The exit code of the signal that ended it."""
        return self.tuning.interrupted

    @property
    def error(self) -> ZerokitError | None:
        """Why there is no fastest plan, as the command line ends with it; None where there is one."""
        if self.seconds is None or self.interrupted is not None or self.fastest is not None:
            return None
        return _none_counts(self.tuning.trials)

    def to_dict(self) -> dict[str, Any]:
        """What ``tune --json`` prints."""
        result = body(self.tuning)
        return result if self.seconds is None else {**result, "seconds": round(self.seconds, 3)}


def _none_counts(trials: list[Trial]) -> ZerokitError:
    """The error when no trial counts."""
    measurements = [(trial.number, trial.measured) for trial in trials if trial.measured is not None]
    failed = [measured for _, measured in measurements if measured.problem is not None and measured.exit_code]
    lines = [
        f"  trial {number}: {measured.problem or '; '.join(measured.differences)}"
        for number, measured in measurements
    ]
    text = "\n".join(["none of the plans could be timed:", *lines])
    if not failed:
        if any(measured.differences for _, measured in measurements):
            text += f"\nGive the script what it decides itself: {', '.join(PLACEHOLDERS)} in its arguments"
        return InputError(text)
    if all(measured.outcome == "oom" for measured in failed):
        text += (
            "\nAll ran out of memory; try more with ⟨top⟩, or fix less: ⟨checkpointing⟩ full, ⟨micro_batch⟩ 1"
        )
    kind = next((kind for kind in _FAILURES if kind.exit_code == failed[0].exit_code), RankFailed)
    return kind(text)
