"""Two runs side by side."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from click.testing import CliRunner

from tests.support.report_pages import CONTEXT, report
from tests.support.run_reports import GIB, report_of, write_rank
from zerokit.launcher.verdict.report import write_report
from zerokit.report.compare import compare_reports, headline, table_rows
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
    assert shown["global batch"] == ["8", "16", ""]
    assert headline(compared)[:2] == [
        ("sequences/s per GPU", "+33.3 %"), ("step time", "+50.0 % (a step of 16 sequences against 8)"),
    ]  # fmt: skip
    assert headline(compare_reports(runs[0], runs[0]))[0] == ("step time", "+0.0 %")


def test_a_page_says_what_both_runs_were_and_marks_what_differs() -> None:
    runs = (report(2), report(2, zerokit="0.2.0"))
    contexts = (CONTEXT, RunContext(plan=CONTEXT.plan, command=("--lr", "1")))
    page = render_comparison(runs, ("runs/a", "runs/b"), contexts)
    table = page.partition('aria-label="What ran"')[2].partition("</table>")[0]
    found = re.findall(
        r'<tr([^>]*)><th[^>]*scope="row">(\w+)( <span.*?differs</span>)?</th>(.*?)</tr>', table
    )
    assert {name: bool(mark) for _, name, mark, _ in found} == {
        "script": False, "arguments": True, "model": False, "method": False, "strategy": False,
        "batch": False, "hardware": False, "started": False, "zerokit": True,
    }  # fmt: skip
    assert all(bool(row) == bool(mark) for row, _, mark, _ in found)
    cells = {name: re.findall(r"<td[^>]*>(.*?)</td>", row) for _, name, _, row in found}
    assert cells["model"] == ["llama-3.1-8b, 8.00B parameters"] * 2
    assert cells["zerokit"] == ["0.1.0", "0.2.0"] and cells["arguments"][1] == "--lr 1"
    title = "train.py, llama-3.1-8b, 8.00B parameters: runs/a and runs/b · zerokit, two runs"
    assert f"<title>{title}</title>" in page and "Settings that differ" not in page


def test_settings_that_differ_are_listed_and_those_alike_are_not() -> None:
    plans = [{"chosen": {"deepspeed_config": {"a": 1, "b": number}}} for number in (2, 3)]
    contexts = (RunContext(plan=plans[0]), RunContext(plan=plans[1]))
    page = render_comparison((report(2), report(2)), ("a", "b"), contexts)
    table = page.partition('aria-label="Settings that differ"')[2].partition("</table>")[0]
    assert re.findall(r'scope="row">(.*?)</th><td class="l">(.*?)</td><td class="l">(.*?)</td>', table) == [
        ("b", "2", "3")
    ]


def test_the_terminal_and_json_have_the_settings_too(tmp_path):
    """Two runs that differ in the ZeRO stage, and in what their scripts were given."""
    for name, stage in (("a", 1), ("b", 2)):
        (tmp_path / name).mkdir()
        write_rank(tmp_path / name, 0)
        config = {"zero_optimization": {"stage": stage}, "steps_per_print": 10}
        (tmp_path / name / "ds_config.json").write_text(
            json.dumps(config | ({"x": 0.5} if stage == 2 else {}))
        )
        words = {"script_arguments": ["--rows", "8", f"--length={stage * 512}"],
                 "added_arguments": ["--gradient_checkpointing"] * (stage - 1)}  # fmt: skip
        (tmp_path / name / "command.json").write_text(json.dumps(words))
    folders = [str(tmp_path / name) for name in "ab"]
    compared = json.loads(CliRunner().invoke(_command(), [*folders, "--json"]).stdout)
    assert compared["settings"] == {"zero_optimization.stage": [1, 2], "x": [None, 0.5]}
    assert compared["arguments"] == {"--length": ["512", "1024"], "--gradient_checkpointing": [None, ""]}
    shown = CliRunner().invoke(_command(), folders, env={"COLUMNS": "200"}).stdout
    rows = [line.split() for line in shown.partition("what differs")[2].splitlines()]
    assert ["zero_optimization.stage", "1", "2"] in rows and ["x", "–", "0.5"] in rows
    assert ["--length", "512", "1024"] in rows and ["--gradient_checkpointing", "–", "given"] in rows
    assert "steps_per_print" not in shown and "--rows" not in shown
    alike = CliRunner().invoke(_command(), [folders[0], folders[0]]).stdout
    assert "what differs" not in alike


def _command() -> Any:
    from zerokit.cli.report import command

    return command
