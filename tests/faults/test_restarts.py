"""``--max-restarts``: runs that fail once, and go on from their newest checkpoint."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.faults.conftest import PROGRAMS, Launch, Run
from tests.support.plans import write_plan

SCRIPTS = Path(__file__).parents[1] / "scripts"
ONCE = """
import os, pathlib, time
if os.environ["RANK"] == "1":
    text = pathlib.Path("attempts")
    count = int(text.read_text()) if text.exists() else 0
    text.write_text(str(count + 1))
    if count < {failures}:
        raise ValueError("a bad sample")
time.sleep(1)
"""


def script(folder: Path, failures: int) -> tuple[str, ...]:
    path = folder / "once.py"
    path.write_text(ONCE.format(failures=failures))
    return (str(path),)


@pytest.mark.slow
def test_without_a_checkpoint_it_begins_again(launch: Launch, tmp_path: Path) -> None:
    run = launch(options=("--max-restarts", "3"), script=script(tmp_path, 1))
    code, _, err = run.end()
    assert code == 0, err
    assert "restart 1 of at most 3: from the beginning: no checkpoint is complete" in err.replace("\n", " ")
    report = run.report()
    assert (
        report["outcome"] == "rank_failed" and report["first_failure"]["error"] == "ValueError: a bad sample"
    )
    (retry,) = report["retries"]
    assert (retry["folder"], retry["outcome"], retry["exit_code"]) == ("restart-1", "ok", 0)
    assert not run.left()


@pytest.mark.slow
def test_the_same_error_twice_ends_it(launch: Launch, tmp_path: Path) -> None:
    run = launch(options=("--max-restarts", "5"), script=script(tmp_path, 9))
    code, _, err = run.end()
    assert code == 10, err
    assert "no restart: the same error came twice" in err and len(run.report()["retries"]) == 1


@pytest.mark.slow
def test_that_the_plan_was_not_rehearsed_is_said_once(launch: Launch, tmp_path: Path) -> None:
    plan = write_plan(tmp_path / "plan")
    options = ("--max-restarts", "1", "--style", "raw", "--plan", str(plan))
    run = launch(options=options, script=(str(PROGRAMS / "tuned.py"), "2=fail"))
    code, _, err = run.end()
    assert code == 10 and "restart 1 of at most 1" in err, err
    said = err.replace("\n", " ").replace("  ", " ")
    assert said.count("the plan was not rehearsed with this script") == 1
    assert said.count("run folder:") > 2  # what belongs to an attempt is said of each


def test_what_a_user_ends_stays_ended(launch: Launch, tmp_path: Path) -> None:
    run = launch("0:sleep", "1:sleep", options=("--max-restarts", "5"))
    run.until_started(2)
    run.process.terminate()
    assert run.end()[0] == 143 and "retries" not in run.report()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("comes_back.py", ["--resume-option=--load"], "resumed at 4"),
        ("comes_back_trainer.py", [], "began at 4 and did 8"),
    ],
)
def test_it_goes_on_from_the_newest_checkpoint(
    tmp_path: Path, name: str, options: list[str], words: str
) -> None:
    pytest.importorskip("deepspeed")
    base = ["--num-ranks", "2", "--style", "none", "--max-restarts", "2"]
    run = Run(Path(sys.executable), tmp_path, [*base, *options, str(SCRIPTS / name)], {})
    try:
        code, out, err = run.end(400)
        assert code == 0, err
        assert words in out
        report = run.report()
        assert (report["outcome"], report["first_failure"]["signal"]) == ("rank_failed", 9)
        assert [retry["outcome"] for retry in report["retries"]] == ["ok"]
        assert "step 4" in report["retries"][0]["changes"]
        assert not run.left()
    finally:
        run.clean_up()
