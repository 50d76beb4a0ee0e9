"""After the run: the report is built, written and shown."""

from __future__ import annotations

from pathlib import Path

from zerokit.launcher.prepare import Prepared
from zerokit.launcher.supervisor.observed import Ended
from zerokit.report.schema import Hang, RunReport


def build(prepared: Prepared, ended: Ended) -> RunReport:
    """The report of a run that is over."""
    from zerokit.launcher.predict_again import predict_again
    from zerokit.launcher.verdict.report import build_report

    report = build_report(
        ended.evidence,
        verdict=ended.verdict,
        plan=prepared.plan,
        predict_again=predict_again,
        problems=ended.files.problems,
        elapsed_seconds=ended.elapsed_seconds,
    )
    if ended.cause is not None:
        hang = Hang.model_validate(ended.cause.to_dict())
        problems = [*report.problems, f"likely cause: {ended.cause}"]
        return report.model_copy(update={"hang": hang, "problems": problems})
    return report


def write(run_dir: Path, report: RunReport) -> None:
    """Write report.json and report.html.

    Raises:
        ReportNotWritten: the disk is full, or something is in the way.
    """
    from zerokit.launcher.verdict.report import write_report

    write_report(run_dir, report)


def show(report: RunReport) -> None:
    """The table, predicted beside measured, on standard output."""
    from zerokit.report import render

    render.print_report(report)
