"""Which checkpoint a run goes on from, and how its script is told."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from zerokit.errors import InputError
from zerokit.launcher.checkpoint import Checkpoint, newest_checkpoint
from zerokit.launcher.options import LaunchOptions
from zerokit.launcher.rank_file import RankLog
from zerokit.launcher.restarts import (
    NoRestart,
    by_hand,
    check_resume_option,
    resumed,
    why_not,
)
from zerokit.report.schema import RunReport
from zerokit.script.entry_points import Target


def logs(*ranks: list[dict[str, Any]]) -> dict[int, RankLog]:
    return {
        number: RankLog(rank=number, path=Path(f"rank-{number:05d}.jsonl"), records=records)
        for number, records in enumerate(ranks)
    }


def saved(folder: Path, tag: str, step: int) -> dict[str, Any]:
    return {"type": "checkpoint", "kind": "deepspeed", "folder": str(folder), "tag": tag, "step": step}


def test_the_newest_that_every_rank_finished(tmp_path: Path) -> None:
    for tag in ("a", "b", "c"):
        (tmp_path / tag).mkdir()
        (tmp_path / tag / "states.pt").touch()
    all_ = [saved(tmp_path, tag, step) for tag, step in (("a", 2), ("b", 4), ("c", 6))]
    found = newest_checkpoint(logs(all_, all_[:2]), 2)
    assert found is not None and (found.path, found.step) == (tmp_path / "b", 4)
    assert newest_checkpoint(logs(all_), 2) is None  # nobody knows of the other rank
    (tmp_path / "b" / "states.pt").unlink()  # the script keeps only some, and removed this one
    found = newest_checkpoint(logs(all_, all_[:2]), 2)
    assert found is not None and found.path == tmp_path / "a"


def test_one_that_was_being_overwritten_counts_for_nothing(tmp_path: Path) -> None:
    (tmp_path / "last").mkdir()
    (tmp_path / "last" / "states.pt").touch()
    first, second = saved(tmp_path, "last", 2), saved(tmp_path, "last", 4)
    assert newest_checkpoint(logs([first, second], [first]), 2) is None


def test_a_trainer_that_saves_only_the_model_cannot_go_on(tmp_path: Path) -> None:
    record = {"type": "checkpoint", "kind": "trainer", "folder": str(tmp_path), "step": 2}
    (tmp_path / "trainer_state.json").touch()
    assert newest_checkpoint(logs([record]), 1) is None
    (tmp_path / "global_step2").mkdir()
    assert newest_checkpoint(logs([record]), 1) is not None


@pytest.mark.parametrize("record", [{"folder": 5}, {"kind": "x"}, {"folder": "/nowhere"}, {"tag": []}])
def test_a_damaged_line_is_no_checkpoint(record: dict[str, Any]) -> None:
    assert newest_checkpoint(logs([{"type": "checkpoint", "kind": "deepspeed", **record}]), 1) is None


@pytest.mark.parametrize(
    ("option", "given", "told"),
    [
        ("--load", ("--lr", "1"), ("--lr", "1", "--load", "/c")),
        ("--load=", ("--load=/old", "--lr", "1"), ("--load=/old", "--lr", "1", "--load=/c")),
        ("--resume", ("--resume", "data.txt"), ("--resume", "data.txt", "--resume", "/c")),
        ("--load", ("--lr", "1", "--", "data"), ("--lr", "1", "--load", "/c", "--", "data")),
        ("--dir={folder} --tag={tag}", (), ("--dir=/c", "--tag=t")),
        ("", ("--lr", "1"), ("--lr", "1")),
    ],
)
def test_a_script_is_told_by_its_option(option: str, given: tuple[str, ...], told: tuple[str, ...]) -> None:
    options = LaunchOptions(target=Target(script="a.py", module=None, arguments=given), resume_option=option)
    checkpoint = Checkpoint(kind="deepspeed", folder=Path("/c"), tag="t", step=4)
    assert resumed(options, checkpoint, ()).target.arguments == told


def test_a_script_that_nobody_can_tell() -> None:
    options = LaunchOptions(target=Target(script="a.py", module=None, arguments=()))
    checkpoint = Checkpoint(kind="accelerate", folder=Path("/c"), tag=None, step=4)
    with pytest.raises(NoRestart, match=r"a\.py wrote /c"):
        resumed(options, checkpoint, ())
    known = resumed(options, checkpoint, ["--resume_from_checkpoint"])
    assert known.target.arguments == ("--resume_from_checkpoint", "/c")
    trainer = Checkpoint(kind="trainer", folder=Path("/c/checkpoint-4"), tag=None, step=4)
    assert resumed(options, trainer, ()).resume_from == "/c/checkpoint-4"


def test_an_option_with_unknown_places_is_refused() -> None:
    check_resume_option("--a={folder}/{tag}")
    with pytest.raises(InputError, match="step"):
        check_resume_option("--a={step}")


def report(outcome: str, error: str | None = None) -> RunReport:
    failure = None if error is None else {"rank": 1, "host": "a", "kind": "exception", "error": error}
    values = {"schema": "zerokit.report/1", "outcome": outcome, "exit_code": 10, "ranks": []}
    return RunReport.model_validate({**values, "first_failure": failure})


def test_when_a_restart_is_of_no_use() -> None:
    assert why_not(report("rank_failed", "X"), None) is None
    assert why_not(report("hung"), report("hung")) is None
    assert why_not(report("rank_failed", "X"), report("rank_failed", "Y")) is None
    assert "same error" in str(why_not(report("rank_failed", "X"), report("rank_failed", "X")))
    for outcome in ("interrupted", "oom", "not_as_planned"):
        assert outcome in str(why_not(report(outcome), None))


@pytest.mark.parametrize(
    ("kind", "tag", "option", "reads", "said"),
    [
        ("trainer", None, None, True, "add --resume_from_checkpoint {} to the script's arguments"),
        ("trainer", None, None, False, 'call trainer.train(resume_from_checkpoint="{}")'),
        ("accelerate", None, None, False, 'call accelerator.load_state("{}")'),
        ("deepspeed", "t", None, True, 'call engine.load_checkpoint("{}", tag="t")'),
        (
            "deepspeed",
            "t",
            "--load={folder} --tag={tag}",
            False,
            "add --load={} --tag=t to the script's arguments",
        ),
        ("deepspeed", "t", "", False, "run the same command again"),
    ],
)
def test_a_user_is_told_how_to_go_on_by_hand(
    tmp_path: Path, kind: str, tag: str | None, option: str | None, reads: bool, said: str
) -> None:
    folder = tmp_path / "checkpoint-4"
    (folder / (tag or "")).mkdir(parents=True)
    for name in ("trainer_state.json", "optimizer.pt"):
        (folder / (tag or "") / name).touch()
    record = {"type": "checkpoint", "kind": kind, "folder": str(folder), "tag": tag, "step": 4}
    launch: Any = SimpleNamespace(
        expected_ranks=1, options=SimpleNamespace(resume_option=option), reads_checkpoint=reads
    )
    told = by_hand(launch, logs([record]))
    assert (
        told == f"Newest checkpoint: {folder / (tag or '')} (step 4); to go on from it, {said.format(folder)}"
    )
    assert by_hand(launch, logs([])) is None
