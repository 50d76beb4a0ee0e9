"""Killed at random moments: nobody is left, and nothing unfinished reads as a success."""

from __future__ import annotations

import json
import os
import random
import signal
import time

import pytest

from tests.faults.conftest import Launch, wait_for

WAYS = ("rank", "zerokit", "zerokit-term", "guard", "outer", "inner")


@pytest.mark.parametrize(
    "seed", (pytest.param(1, marks=pytest.mark.slow), 2, pytest.param(5, marks=pytest.mark.slow))
)  # zerokit, a rank, DeepSpeed
def test_a_random_kill(launch: Launch, seed: int) -> None:
    random_kill(launch, seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", (0, 3, 4, *range(100, 300)))
def test_two_hundred_random_kills(launch: Launch, seed: int) -> None:
    random_kill(launch, seed)


def random_kill(launch: Launch, seed: int) -> None:
    """One launch, killed in one way at one moment between its first process and its normal end."""
    chance = random.Random(seed)
    way = chance.choice(WAYS)
    run = launch("all:short", options=("--grace", "2"))
    time.sleep(chance.uniform(0.0, 4.0))
    targets = {
        "rank": lambda: run.children("bootstrap.py"),
        "guard": lambda: run.children("guard.py"),
        "outer": lambda: [pid for pid in run.children("bin/deepspeed") if pid not in run.children("--inner")],
        "inner": lambda: [pid for pid in run.children("--inner") if pid not in run.children("guard.py")],
    }
    found = targets[way]() if way in targets else [run.process.pid]
    if found:
        try:
            os.kill(chance.choice(found), signal.SIGTERM if way == "zerokit-term" else signal.SIGKILL)
        except ProcessLookupError:
            found = []
    code, _, err = run.end()
    wait_for(lambda: not run.left(), 8, lambda: f"left: {run.left()}")
    path = run.run_dir / "report.json"
    if way == "zerokit":
        assert code in (-signal.SIGKILL, 0)
    else:
        assert code in (0, 10, 12, 143, -signal.SIGTERM), err
    if code == -signal.SIGKILL and found:
        time.sleep(2.0)  # the guard writes the report now, or was not there yet
    if not path.exists():
        assert code != 0
        return
    report = json.loads(path.read_text())
    states = [rank["state"] for rank in report["ranks"]]
    assert report["outcome"] != "ok" or states == ["finished", "finished"]
    if code >= 0:
        assert report["exit_code"] == code
    assert all(json.loads(line) for line in whole_lines(run.run_dir))


def whole_lines(run_dir: object) -> list[str]:
    """Every line of the rank files that has an end."""
    lines: list[str] = []
    for path in sorted(run_dir.glob("rank-*.jsonl")):  # type: ignore[attr-defined]
        lines += path.read_text().split("\n")[:-1]
    return [line for line in lines if line]
