"""Two runs side by side."""

from __future__ import annotations

import json
from typing import Any

import pytest
from click.testing import CliRunner

from tests.support.run_reports import GIB, report_of, write_rank
from zerokit.launcher.verdict.report import write_report
from zerokit.report.compare import compare_reports
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


def _command() -> Any:
    from zerokit.cli.report import command

    return command
