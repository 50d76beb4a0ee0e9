"""zerokit report: the page, the comparison, and the command on damaged runs."""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path

import pytest

from tests.support.run_reports import ERROR, report_of, write_rank
from zerokit.cli import run as run_cli
from zerokit.errors import FileInputError, ReportNotWritten
from zerokit.launcher.locks import lock_run_folder
from zerokit.launcher.rank_file import rank_file
from zerokit.launcher.verdict.report import write_report
from zerokit.report.html import write_html
from zerokit.report.schema import RunReport, load_report


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
    assert run_cli(["report", str(tmp_path.parent)]) == 2
    assert f"of the runs in it, the newest: {tmp_path}" in " ".join(capsys.readouterr().err.split())


def test_the_newest_run_is_shown_where_none_is_named(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run_cli(["report"]) == 2
    assert capsys.readouterr().err.endswith("a run folder or its report.json\n")
    for age, name in enumerate(("d", "c", "b", "a")):
        (tmp_path / "runs" / name).mkdir(parents=True)
        (tmp_path / "runs" / name / "report.json").touch()
        os.utime(tmp_path / "runs" / name, (1e9 - age, 1e9 - age))
    assert run_cli(["report", "nosuch"]) == 2
    assert capsys.readouterr().err.endswith("; the newest: runs/d, runs/c, runs/b\n")
    assert run_cli(["report"]) == 2
    assert capsys.readouterr().err.startswith("zerokit: runs/d: the newest run here\n")


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
    (tmp_path / "file").touch()
    assert run_cli(["report", str(tmp_path), "--html", str(tmp_path / "file" / "x.html")]) == 74
    with pytest.raises(ReportNotWritten):
        write_html(tmp_path / "file" / "x.html", report_of(tmp_path, 1))
    with pytest.raises(FileInputError, match="is not a regular file"):
        load_report(Path("/dev/zero"))


def test_a_run_that_is_starting_is_told_from_a_folder_of_something_else(tmp_path, capsys):
    """And from one whose launch ended before any rank began."""
    folder = tmp_path / "run"
    folder.mkdir()
    assert run_cli(["report", str(folder)]) == 2
    assert "is not a run folder" in capsys.readouterr().err
    lock = lock_run_folder(folder, str(folder))
    (folder / "command.json").write_text("{}")
    (folder / "logs").mkdir()
    assert run_cli(["report", str(folder)]) == 2
    assert capsys.readouterr().err == (
        f"zerokit: {folder}: the run is starting, and nothing was recorded yet; "
        f"`zerokit watch {folder}` waits for it\n"
    )
    assert run_cli(["watch", "--once", str(folder)]) == 0
    assert "the run is starting; no rank has recorded anything yet" in capsys.readouterr().err
    lock.release()
    for command in ("report", "watch"):
        assert run_cli([command, str(folder)]) == 2
        assert capsys.readouterr().err == (
            f"zerokit: {folder}: nothing was recorded: its launch ended before a rank began; what was "
            f"printed is in {folder}/logs\n"
        )


def test_a_run_that_is_starting_is_watched_from_its_first_record_on(tmp_path, capsys):
    (tmp_path / "another").mkdir()
    write_rank(tmp_path / "another", 0)
    ended = RunReport.model_validate(report_of(tmp_path / "another", 1, plan=None))
    lock = lock_run_folder(tmp_path, str(tmp_path))

    def train() -> None:
        time.sleep(0.6)
        write_report(tmp_path, ended)

    training = threading.Thread(target=train)
    training.start()
    assert run_cli(["watch", str(tmp_path), "--every", "0.2"]) == 0
    training.join()
    lock.release()
    shown, said = capsys.readouterr()
    assert shown == "ok: 1 rank, step 12\n"
    assert said.startswith("zerokit: the run is starting; no rank has recorded anything yet\n")
