"""Two runs side by side."""

from __future__ import annotations

import json
from typing import Any

import pytest
from click.testing import CliRunner

from tests.support.run_reports import GIB, report_of, write_rank
from zerokit.launcher.verdict.report import write_report
from zerokit.report.compare import compare_reports, table_rows
from zerokit.report.context import RunContext
from zerokit.report.html import render_comparison
from zerokit.report.schema import RunReport


def test_two_runs_compared(tmp_path):
    folders = [tmp_path / name for name in "ab"]
    for folder, peak in zip(folders, (30, 33), strict=True):
        folder.mkdir()
        write_rank(folder, 0, peak=peak * GIB)
    runs = [report_of(folder, 1) for folder in folders]
    compared = compare_reports(*runs)
    assert compared["figures"]["peak_allocated_bytes"]["change"] == 3 * GIB
    assert compared["phases"]["backward"]["change_fraction"] == pytest.approx(0.1)
    write_report(folders[0], RunReport.model_validate(runs[0]))
    write_report(folders[1], RunReport.model_validate(runs[1]))
    result = CliRunner().invoke(_command(), [str(folders[0]), str(folders[1] / "report.json"), "--json"])
    assert json.loads(result.stdout) == compared
    result = CliRunner().invoke(_command(), [str(folder) for folder in folders])
    assert "+10.0 %" in result.stdout


def test_runs_of_different_batches_compare_by_their_sequences_per_second(tmp_path):
    """A longer step is no slowdown where it takes more sequences."""
    runs = []
    for name, rows, seconds in (("a", 4, 1.0), ("b", 8, 1.5)):
        (tmp_path / name).mkdir()
        write_rank(tmp_path / name, 0, peak=GIB)
        run = report_of(tmp_path / name, 1)
        run["ranks"][0] |= {
            "engine": {
                "micro_batch": 4,
                "batch_rows": rows,
                "gradient_accumulation": 2,
                "batch_columns": 1024,
            },
            "median_step_seconds": seconds,
        }
        runs.append(RunReport.model_validate(run))
    compared = compare_reports(*runs)
    assert compared["batch"]["batch_size_per_gpu"] == [4, 8]
    rate = compared["figures"]["sequences_per_second"]
    assert rate["first"] == 8 and rate["change_fraction"] == pytest.approx(1 / 3)
    shown = {name: row for name, *row in table_rows(compared)}
    assert shown["batch size per GPU"] == ["4", "8", ""]
    assert shown["sequences/s per GPU"] == ["8", "10.7", "+33.3 %"]
    page = render_comparison((runs[0], runs[1]), ("a", "b"), (RunContext(), RunContext()))
    assert "b against a: sequences/s per GPU +33.3 %" in page and "batch size per GPU" in page


def _command() -> Any:
    from zerokit.cli.report import command

    return command
