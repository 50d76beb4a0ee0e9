"""After the run: the report is built, written and shown."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from zerokit.errors import NotAsPlanned
from zerokit.launcher.prepare import Prepared
from zerokit.launcher.verdict.evidence import Ended


def build(prepared: Prepared, ended: Ended) -> dict[str, Any]:
    """``report.json``'s object."""
    from zerokit.launcher.verdict import report as run_report

    report: dict[str, Any] = run_report.build_report(
        prepared.launch.run_dir,
        expected_ranks=prepared.launch.expected_ranks,
        outcome=str(ended.verdict.outcome),
        exit_code=ended.verdict.exit_code,
        rank_exits=ended.rank_exits,
        plan=prepared.plan,
        accounts=ended.accounts,
    )
    _hold_to_plan(prepared, report)
    if ended.elapsed_seconds is not None:  # the ranks' own times are of the clock that was set
        report["elapsed_seconds"] = round(ended.elapsed_seconds, 3)
    return report


def _hold_to_plan(prepared: Prepared, report: dict[str, Any]) -> None:
    """A script that ended well without doing what the plan says is no success."""
    if report["outcome"] != "ok" or prepared.config is None:
        return
    from zerokit.launcher.verdict.as_planned import NOT_AS_PLANNED, no_engine, unlike_plan

    missing = no_engine(report["ranks"])
    found = [missing] if missing is not None else []
    if prepared.launch.plan is not None and not found and not prepared.wishes.accept_mismatch:
        found = unlike_plan(prepared.launch.plan, prepared.style, report["ranks"])
    if found:
        report |= {"outcome": NOT_AS_PLANNED, "exit_code": NotAsPlanned.exit_code, "why": "; ".join(found)}
        report["problems"] = [*report.get("problems", []), *found]


def write(run_dir: Path, report: dict[str, Any]) -> None:
    """Write report.json and report.html.

    Raises:
        ReportNotWritten: the disk is full, or something is in the way.
    """
    from zerokit.launcher.verdict import report as run_report

    run_report.write_report(run_dir, report)


def show(report: dict[str, Any]) -> None:
    """The table, predicted beside measured, on standard output."""
    from zerokit.report import render

    render.print_report(report)
