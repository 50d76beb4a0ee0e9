"""A run folder that is removed, moved or replaced while the run lives: the ranks' verdict stays theirs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.faults.conftest import Run

SCRIPT = """
import os, pathlib, shutil, sys, time
folder, done = pathlib.Path(os.environ["ZEROKIT_RUN_DIR"]), pathlib.Path("done")
if os.environ["RANK"] == "0":
    while len(list(folder.glob("rank-*.jsonl"))) < 2:
        time.sleep(0.05)
    time.sleep(1.5)
    {deed}
    done.touch()
while not done.exists():
    time.sleep(0.05)
time.sleep(1.5)
if os.environ["RANK"] == "1":
    sys.exit(int(sys.argv[1]))
"""
REMOVED = "shutil.rmtree(folder)"
DEEDS = {
    "removed": REMOVED,
    "moved": "folder.rename(folder.with_name('elsewhere'))",
    "made anew": f"{REMOVED}; folder.mkdir()",
}
IN_THE_WAY = {
    "replaced by a file": (f"{REMOVED}; folder.write_text('x')", "run again with another --run-dir"),
    "report.json is a folder": (
        "(folder / 'report.json').mkdir()",
        "remove that folder and run `zerokit report",
    ),
}


def start(python: Path, folder: Path, deed: str, code: int) -> Run:
    (folder / "train.py").write_text(SCRIPT.format(deed=deed))
    return Run(python, folder, ["--num-ranks", "2", "train.py", str(code)], {})


SUCCESS, FAILURE = (0, "ok", 0), (3, "rank_failed", 10)


@pytest.mark.parametrize(
    ("deed", "code", "outcome", "exit_code"),
    [
        ("removed", *SUCCESS), ("made anew", *FAILURE),
        pytest.param("moved", *SUCCESS, marks=pytest.mark.slow),
        pytest.param("removed", *FAILURE, marks=pytest.mark.slow),
    ],
)  # fmt: skip
def test_the_report_is_made_of_what_was_read_before(
    tmp_path: Path, stub_python: Path, deed: str, code: int, outcome: str, exit_code: int
) -> None:
    run = start(stub_python, tmp_path, DEEDS[deed], code)
    ended, out, err = run.end()
    assert ended == exit_code, out + err
    report = json.loads((run.run_dir / "report.json").read_text())
    assert report["outcome"] == outcome
    assert [rank["reported"] for rank in report["ranks"]] == [True, True]
    assert any("rank-00000.jsonl is gone" in problem for problem in report["problems"])
    assert (run.run_dir / "report.html").is_file()
    assert not run.left()


@pytest.mark.slow
@pytest.mark.parametrize("deed", IN_THE_WAY)
def test_what_is_in_the_way_of_the_report_is_named_once(tmp_path: Path, stub_python: Path, deed: str) -> None:
    what, way_out = IN_THE_WAY[deed]
    run = start(stub_python, tmp_path, what, 0)
    ended, out, err = run.end()
    assert ended == 74
    assert "ok: all 2 ranks finished" in err and "launcher lost" not in out + err
    assert (out + err).count(way_out) == 1
    assert (out + err).count("could not be written") == 1
    assert (run.run_dir / "report.html").is_file() == ("report.json" in deed)


def test_a_failing_rank_is_not_hidden_by_a_report_that_cannot_be_written(
    tmp_path: Path, stub_python: Path
) -> None:
    ended, out, err = start(stub_python, tmp_path, IN_THE_WAY["report.json is a folder"][0], 3).end()
    assert ended == 10
    assert "rank failed: rank 1" in err, out + err
