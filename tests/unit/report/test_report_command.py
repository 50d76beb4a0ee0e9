"""zerokit report: the page, the comparison, and the command on damaged runs."""

from __future__ import annotations

import html.parser
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tests.support.run_reports import ERROR, GIB, report_of, shown, write_rank
from zerokit.cli import run as run_cli
from zerokit.errors import FileInputError, ReportNotWritten
from zerokit.launcher.rank_file import rank_file
from zerokit.launcher.verdict.report import write_report
from zerokit.report.compare import compare_reports
from zerokit.report.html import render_html, write_html
from zerokit.report.schema import RunReport, load_report


class Page(html.parser.HTMLParser):
    """Collects tags, and checks that they are closed in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta", "line", "polyline", "br"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        if tag in ("polyline",):
            return
        assert self.open.pop() == tag


def test_the_page_is_self_contained_and_escapes_everything(tmp_path):
    evil = "<script>alert(1)</script>\x1b]0;x\x07\"'&"
    write_rank(
        tmp_path,
        0,
        extra=[{**ERROR, "rank": 0, "pid": 100, "traceback": evil, "error": evil}],
        state="failed",
        exit_code=1,
        phase=evil,
    )
    text = (
        rank_file(tmp_path, 0)
        .read_text()
        .replace("node-0", "<img src=x onerror=y>")
        .replace("train.py", "<b>")
    )
    rank_file(tmp_path, 0).write_text(text)
    report = report_of(tmp_path, 1)
    page = Page()
    source = render_html(report)
    page.feed(source)
    assert page.open == []
    names = {tag for tag, _ in page.tags}
    assert not names & {"script", "img", "link", "iframe", "object", "b", "base", "form"}
    assert {"svg", "polyline", "table", "pre"} <= names
    for _, attributes in page.tags:
        assert not set(attributes) & {"src", "href", "onerror", "onload", "xlink:href", "action"}
    assert "http" not in source.replace("http-equiv", "")
    assert "&lt;script&gt;alert(1)" in source and "\x1b" not in source and "\x1b" not in shown(report)
    assert "prefers-color-scheme: dark" in source


def test_many_ranks_stay_readable(tmp_path):
    for rank in range(100):
        write_rank(tmp_path, rank, state="failed" if rank == 77 else "finished", exit_code=int(rank == 77))
    report = report_of(tmp_path, 100, plan=None)
    text = shown(report)
    assert len(text.splitlines()) < 100
    assert "36 more finished ranks in report.json" in text
    assert "failed" in text
    assert len(render_html(report)) < 200_000
    assert len(json.dumps(report)) < 1_000_000


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


def test_the_command_shows_a_written_report_and_a_folder_without_one(tmp_path, capsys):
    write_rank(tmp_path, 0)
    assert run_cli(["report", str(tmp_path)]) == 0
    from_files = capsys.readouterr().out
    write_report(tmp_path, RunReport.model_validate(report_of(tmp_path, 1, plan=None)))
    (tmp_path / "rank-00000.jsonl").unlink()
    assert run_cli(["report", str(tmp_path)]) == 0
    assert "30.00 GiB" in capsys.readouterr().out
    assert "30.00 GiB" in from_files
    assert run_cli(["report", str(tmp_path), "--json"]) == 0
    RunReport.model_validate(json.loads(capsys.readouterr().out))
    assert run_cli(["report", str(tmp_path), "--html", str(tmp_path / "x.html")]) == 0
    assert capsys.readouterr().out == ""
    assert (tmp_path / "x.html").read_text().startswith("<!doctype html>")
    (tmp_path / "link").symlink_to("x.html")
    assert run_cli(["report", str(tmp_path), "--html", str(tmp_path / "link")]) == 0
    assert (tmp_path / "link").is_symlink() and not list(tmp_path.glob(".*"))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "no such run"),
        (b"", "is not JSON"),
        (b"{}", "is not a zerokit report"),
        (b"\xff\xfe", "is not JSON"),
        (b"[" * 100_000, "is not JSON"),
        (
            b'{"schema":"zerokit.report/1","outcome":"great","exit_code":0,"ranks":[]}',
            "outcome: Input should be",
        ),
        (b'{"schema":"zerokit.report/1","outcome":"ok","exit_code":0,"ranks":[{"rank":-1}]}', "ranks.0.rank"),
        (
            b'{"schema":"zerokit.report/1","outcome":"ok","exit_code":0,"ranks":[],"first_failure":7}',
            "first_failure",
        ),
        (
            b'{"schema":"zerokit.report/1","outcome":"ok","exit_code":0,"ranks":[],"elapsed_seconds":1e400}',
            "1e400 is not a finite number",
        ),
    ],
)
def test_a_damaged_report_is_named_and_no_traceback(tmp_path, capsys, content, message):
    path = tmp_path / "report.json"
    if content is not None:
        path.write_bytes(content)
    assert run_cli(["report", str(path)]) == 2
    err = capsys.readouterr().err
    assert message in err
    assert str(path) in err and "Traceback" not in err


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"world_size": 1 << 52}, "a world_size of 4,503,599,627,370,496 cannot be"),
        ({"world_size": "two"}, "world_size is 'two'"),
        ({"steps": "text"}, "steps is 'text'"),
        ({"device": "[/red] <script>alert(1)</script>"}, ""),
        ({"leaks": [{}]}, "leaks.0.memory cannot be used"),
        ({"leaks": [{"memory": "disk"}]}, "leaks.0.memory cannot be used"),
        ({"phases": {"forward": {"peak_allocated_bytes": [1]}}}, "peak_allocated_bytes is '[1]'"),
        ({"out_of_memory": True, "biggest_blocks": [{"shape": "wide"}]}, "oom.biggest_blocks"),
    ],
)
def test_rank_files_of_strangers_are_shown_without_what_cannot_be(tmp_path, capsys, changed, problem):
    write_rank(tmp_path, 0, extra=[{**ERROR, "rank": 0, "pid": 100, **changed}])
    path = rank_file(tmp_path, 0)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for line in (lines[0], lines[-1]):
        line.update(changed)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert run_cli(["report", str(tmp_path), "--html", str(tmp_path / "x.html")]) == 0
    assert "<script>" not in (tmp_path / "x.html").read_text()
    assert run_cli(["report", str(tmp_path)]) == 0
    capsys.readouterr()
    assert run_cli(["report", str(tmp_path), "--json"]) == 0
    report = RunReport.model_validate(json.loads(capsys.readouterr().out))
    assert any(problem in text for text in [*report.problems, ""]), report.problems


def test_wrong_use_is_explained(tmp_path, capsys):
    assert run_cli(["report", str(tmp_path)]) == 2
    assert "neither report.json nor rank-*.jsonl" in capsys.readouterr().err
    assert run_cli(["report", "a", "b", "c"]) == 2
    assert "got 3" in capsys.readouterr().err
    assert run_cli(["report"]) == 2
    write_rank(tmp_path, 0)
    assert run_cli(["report", str(tmp_path), "--html", str(tmp_path / "no" / "x.html")]) == 74
    with pytest.raises(ReportNotWritten):
        write_html(tmp_path / "no" / "x.html", report_of(tmp_path, 1))
    with pytest.raises(FileInputError, match="is no file"):
        load_report(Path("/dev/zero"))
