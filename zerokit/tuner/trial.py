"""One trial: a script run for a few steps with one plan, and what came of it. It never raises for the run.

The launch is that of ``zerokit launch``; it ends at a step limit inside the ranks, or at a time limit.
A trial counts when every rank got its steps done and DeepSpeed ran what the plan says: the batch may be
the script's to decide, and checkpointing is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from zerokit.launcher.launch import Launch
from zerokit.launcher.options import LaunchOptions
from zerokit.report import what_ran
from zerokit.report.schema import RunReport
from zerokit.tuner.options import FEWEST_STEPS

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
        batch_columns: tokens of a sequence as the script feeds them, where that could be seen.
        parameters: of the script's model, where they could be counted.
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
    """Run what was prepared, write its report and return it.

    Raises:
        ReportNotWritten: the disk is full.
    """
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
    """Prepare and run one trial in ``run_dir``; ``say`` hears what is worth knowing before it starts.

    Raises:
        InputError, NodeUnusable: no trial can run like this. ReportNotWritten: the disk is full.
    """
    from zerokit.launcher.prepare import prepare

    with ExitStack() as stack:
        launch = prepare(options, run_dir, stack)
        for note in launch.notes:
            if note != launch.not_rehearsed:  # a trial's plan is none that the user made
                say(note)
        report = run(launch)
    return measured(report.to_dict(), (launch.plan or {}).get("chosen") or {}, run_dir, seq_len)


def measured(
    report: Mapping[str, Any], chosen: Mapping[str, Any], run_dir: Path, seq_len: int = 0
) -> TrialMeasurement:
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


def differences(chosen: Mapping[str, Any], engine: Mapping[str, Any]) -> list[str]:
    """Where what ran is not what was planned; a fact that is not known is no difference."""
    result = what_ran.of_engine(chosen, engine)
    return [difference.text for difference in result if difference.what in _DECISIVE]
