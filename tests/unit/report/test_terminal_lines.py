"""The lines of a report are no wider than the terminal, go on indented, and leave whole what is copied."""

from __future__ import annotations

import io

import pytest
from rich.console import Console
from rich.text import Text

from tests.support.report_pages import out_of_memory
from zerokit.report.html import render_html
from zerokit.report.render import print_report
from zerokit.report.schema import RunReport
from zerokit.report.terminal_lines import hanging, whole

NO_PLAN = "planned again for 137.82 GiB per GPU, with this run's batch, precision and degrees: nothing fits"
COMMAND = (
    "zerokit rehearse --plan runs/20260131-120000-train/plan.yaml --gpus 2 --gpu h200 train.py --epochs 3"
)
TRACED = "/home/somebody/with/a/long/path/" + "x" * 60 + ".py"


def report() -> RunReport:
    body = out_of_memory().to_dict()
    body["first_failure"] |= {
        "no_next_plan": NO_PLAN,
        "error": f"OutOfMemoryError: no room for this in {TRACED}",
    }
    body["retries"] = [
        {"folder": "retry-1", "changes": "ZeRO stage 1 → 2, micro-batch 4 → 2; predicted to need 30 GiB " * 2,
         "outcome": "oom", "exit_code": 10}
    ]  # fmt: skip
    text = "the script has a batch per GPU of 128, which its plan has not: it was planned with 8"
    body["predicted_vs_measured"] |= {
        "predicted_for": None, "rehearse_command": COMMAND,
        "differences": [{"what": "micro-batch", "planned": "8", "ran": "128", "option": None, "text": text}],
    }  # fmt: skip
    return RunReport.model_validate(body)


@pytest.mark.parametrize("width", [60, 80, 100])
def test_no_line_is_wider_than_the_terminal_but_what_is_one_word(width: int) -> None:
    console = Console(width=width, record=True, file=io.StringIO())
    print_report(report(), console, traceback=False)
    lines = console.export_text().splitlines()
    assert [line for line in lines if len(line) > width and TRACED not in line] == []
    assert sum(TRACED in line for line in lines) == 1  # which stays whole
    at = next(number for number, line in enumerate(lines) if line.startswith("  no next plan: "))
    assert lines[at + 1].startswith("    ")
    said = " ".join(" ".join(lines).split())
    assert f"no next plan: {NO_PLAN}" in said
    assert COMMAND in said.replace(" \\ ", " ")
    command = next(number for number, line in enumerate(lines) if line.startswith("  zerokit rehearse"))
    assert lines[command].endswith(" \\")  # a shell goes on


def test_what_fits_or_is_copied_stays_as_it_is() -> None:
    copied = whole("its output: " + TRACED)
    assert hanging(copied, 40) is copied
    short = hanging(Text("to predict it: zerokit plan --recipe a", style="yellow"), 80)
    assert isinstance(short, Text)
    assert (short.plain, short.style) == ("to predict it: zerokit plan --recipe a", "yellow")


def test_the_page_lists_the_rows_below_their_heading() -> None:
    page = "".join(render_html(report()).split("\n"))
    assert "<li>to need less:<ul><li>--zero 3</li><li>a smaller batch</li></ul></li>" in page
