"""After the run: the report is built, written and shown."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from zerokit.run.prepare import Prepared
from zerokit.run.runstate import Ended


def build(prepared: Prepared, ended: Ended) -> dict[str, Any]:
    """``report.json``'s object."""
    from zerokit.run import collect

    report: dict[str, Any] = collect.build_report(
        prepared.launch.run_dir,
        expected_ranks=prepared.launch.expected_ranks,
        outcome=str(ended.verdict.outcome),
        exit_code=ended.verdict.exit_code,
        rank_exits=ended.rank_exits,
        plan=prepared.plan,
    )
    return report


def write(run_dir: Path, report: dict[str, Any]) -> None:
    """Write report.json and report.html.

    Raises:
        ReportNotWritten: the disk is full.
    """
    from zerokit.run import collect

    collect.write_report(run_dir, report)


def show(report: dict[str, Any]) -> None:
    """The table, predicted beside measured, on standard output."""
    from zerokit.report import render

    render.print_report(report)
