"""Rank files on full disks, cut off, damaged, or written by two: what the report says of them."""

from __future__ import annotations

import errno
import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.ranks import (
    BOOTSTRAP,
    rank_environment,
    read_rank,
    run_rank,
    start_rank,
    write_script,
)
from tests.support.reports import report_of
from zerokit.errors import ReportNotWritten
from zerokit.launcher.rank_file import (
    rank_file,
    read_rank_file,
)
from zerokit.launcher.verdict.evidence import RankExit
from zerokit.launcher.verdict.report import write_report
from zerokit.report.schema import RunReport

BUSY = """
    import time
    for _ in range(6):
        time.sleep(0.2)
    print("trained")
"""


def test_dev_full_leaves_training_untouched(tmp_path):
    rank_file(tmp_path, 0).symlink_to("/dev/full")
    code, out, err = run_rank(tmp_path, "--", write_script(tmp_path, BUSY))
    assert (code, out, err) == (0, "trained\n", "")


def test_a_disk_that_fills_up_leaves_whole_lines_and_training_untouched(tmp_path):
    """RLIMIT_FSIZE fails writes beyond a size as a full disk does, with a short write at the edge."""
    script = write_script(tmp_path, BUSY)
    process = subprocess.run(
        [sys.executable, BOOTSTRAP, "--", script],
        env=rank_environment(tmp_path),
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1500, 1500)),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (process.returncode, process.stdout, process.stderr) == (0, "trained\n", "")
    log = read_rank(tmp_path)
    assert rank_file(tmp_path, 0).stat().st_size == 1500
    assert log.records and len(log.bad_lines) == 1
    report = report_of(tmp_path)
    assert (report["outcome"], report["ranks"][0]["state"]) == ("launcher_lost", "lost")


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small file system needs root")
def test_a_full_64_kib_file_system(tmp_path):
    small = tmp_path / "small"
    small.mkdir()
    mount = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", small], check=False)
    if mount.returncode:
        pytest.skip("no mounts here")
    try:
        report = report_of(small, ranks=1)
        write_report(small, RunReport.model_validate(report))
        older = (small / "report.json").read_bytes()
        with (small / "filler").open("wb", buffering=0) as filler, pytest.raises(OSError, match="No space"):
            while True:
                filler.write(b"x" * 4096)
        code, out, err = run_rank(small, "--", write_script(tmp_path, BUSY))
        assert (code, out, err) == (0, "trained\n", "")
        with pytest.raises(ReportNotWritten) as raised:
            write_report(small, RunReport.model_validate({**report, "exit_code": 10}))
        assert raised.value.exit_code == 74
        assert (small / "report.json").read_bytes() == older
        assert sorted(path.name for path in small.iterdir() if path.name.startswith(".")) == []
    finally:
        subprocess.run(["umount", small], check=True)


@pytest.mark.parametrize("call", ["write", "replace"])
def test_a_report_that_cannot_be_written_leaves_the_older_one(tmp_path, monkeypatch, call):
    run_rank(tmp_path, "--", write_script(tmp_path, "pass"))
    report = report_of(tmp_path)
    write_report(tmp_path, RunReport.model_validate(report))
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(*((os, "fsync") if call == "write" else (Path, "replace")), full)
    with pytest.raises(ReportNotWritten, match=r"report\.json could not be written: No space left"):
        write_report(tmp_path, RunReport.model_validate({**report, "outcome": "hung"}))
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_file_cut_at_every_byte_never_reads_as_complete(tmp_path, finished):
    path = rank_file(tmp_path, 0)
    ends = [index + 1 for index, byte in enumerate(finished) if byte == ord("\n")]
    for length in range(len(finished)):
        path.write_bytes(finished[:length])
        log = read_rank_file(path)
        whole = sum(end <= length + 1 for end in ends)  # a line lacking only its newline is whole
        at_edge = length in ends or length + 1 in ends or length == 0
        assert len(log.records) == whole
        assert len(log.bad_lines) == (0 if at_edge else 1)
        assert all(line.line == whole + 1 for line in log.bad_lines)
        if length + 1 < len(finished):
            assert log.last("end") is None
    path.write_bytes(finished[: len(finished) // 2])
    report = report_of(tmp_path)
    assert report["outcome"] != "ok"
    assert report["exit_code"] == 12
    path.write_bytes(finished)
    assert report_of(tmp_path)["outcome"] == "ok"


def test_damage_is_named_by_file_and_line_and_the_rest_kept(tmp_path, finished):
    lines = finished.splitlines(keepends=True)
    spoilt = [lines[0], b"\0" * 40 + b"\n", lines[1], b"{not json\n", b'{"type":"tick","steps":-1}\n',
              b'{"type":"tick","rank":5}\n', b'{"type":"tick","steps":1e999}\n', b"\xff\xfe\n",
              b"[" * 9999 + b"\n", b'{"type":"tick","steps":' + b"9" * 5000 + b"}\n", *lines[2:]]  # fmt: skip
    rank_file(tmp_path, 0).write_bytes(b"".join(spoilt))
    report = report_of(tmp_path)
    assert report["outcome"] == "ok"
    bad = [text.split(": ")[0] for text in report["problems"]]
    assert bad == [f"rank-00000.jsonl:{number}" for number in (2, 4, 5, 6, 7, 8, 9, 10)]
    assert "holds NUL bytes" in report["problems"][0]


def test_two_writers_of_one_rank_are_named(tmp_path):
    script = write_script(tmp_path, "import time; print('up', flush=True); time.sleep(1.3)")
    processes = [start_rank(tmp_path, "--", script) for _ in range(2)]
    for process in processes:
        process.communicate(timeout=30)
    log = read_rank(tmp_path)
    assert log.bad_lines == []
    assert set(log.writers()) == {process.pid for process in processes}
    problem = next(text for text in report_of(tmp_path)["problems"] if "two processes" in text)
    assert all(str(process.pid) in problem for process in processes)


def test_missing_ranks_are_lost_and_no_success(tmp_path):
    script = write_script(tmp_path, "pass")
    for rank in (0, 2):
        run_rank(tmp_path, "--", script, rank=rank, ranks=4)
    exits = [RankExit(rank=rank, code=0) for rank in range(4)]
    for report in (report_of(tmp_path, 4), report_of(tmp_path, 4, exits=exits)):
        states = [rank["state"] for rank in report["ranks"]]
        assert states == ["finished", "lost", "finished", "lost"]
        assert (report["outcome"], report["exit_code"]) == ("launcher_lost", 12)
        assert {"rank 1 left no report", "rank 3 left no report"} <= set(report["problems"])


def test_an_empty_folder_is_no_success(tmp_path):
    report = report_of(tmp_path, 2)
    assert report["outcome"] == "launcher_lost"
    assert [rank["state"] for rank in report["ranks"]] == ["lost", "lost"]


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=12), inner, max_size=4),
    max_leaves=8,
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_bytes_give_a_valid_report(tmp_path, finished, data):
    lines = [json.loads(line) for line in finished.splitlines()]
    record = dict(data.draw(st.sampled_from(lines)))
    for _ in range(data.draw(st.integers(1, 3))):
        record[data.draw(st.sampled_from(sorted({*record, "leaks", "points", "traceback"})))] = data.draw(
            _VALUES
        )
    junk = data.draw(st.binary(max_size=40))
    path = rank_file(tmp_path, 0)
    path.write_bytes(finished[: data.draw(st.integers(0, len(finished)))] + junk + b"\n"
                     + json.dumps(record).encode("utf-8", "surrogatepass") + b"\n")  # fmt: skip
    report = report_of(tmp_path)
    write_report(tmp_path, RunReport.model_validate(report))
    json.loads((tmp_path / "report.json").read_text())
