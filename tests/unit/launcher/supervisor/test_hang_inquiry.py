"""Ranks that answer late, or not at all, from made-up records on a clock of our own."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from zerokit.launcher.rank_file import native_stacks_file
from zerokit.launcher.supervisor import hang_inquiry
from zerokit.launcher.supervisor.hang_inquiry import ANSWER_SECONDS, HangInquiry, NativeStacks
from zerokit.launcher.supervisor.progress import Progress

TORCH = ["/v/site-packages/torch/distributed/distributed_c10d.py", 10, "all_reduce", "work.wait()"]


class Hung:
    """Two ranks that said at their start that they are there, and are asked now."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, load: float = 0.0) -> None:
        self.now = 1000.0
        monkeypatch.setattr(time, "monotonic", lambda: self.now)
        monkeypatch.setattr(os, "getloadavg", lambda: (load * (os.cpu_count() or 1), 0.0, 0.0))
        monkeypatch.setattr(hang_inquiry, "find_py_spy", lambda: None)
        self.folder, self.progress = folder, Progress(folder, 2, heartbeat_seconds=15.0)
        for rank in range(2):
            self.write(rank, type="start")
            self.write(rank, type="tick")
        self.progress.poll()
        self.inquiry = HangInquiry(folder, self.progress)
        self.inquiry.begin([0, 1])

    def write(self, rank: int, **record: Any) -> None:
        with (self.folder / f"rank-{rank:05d}.jsonl").open("a") as file:
            file.write(json.dumps({"rank": rank, **record}) + "\n")

    def answer(self, rank: int, **changes: Any) -> None:
        call = {"number": 7, "count": 7, "operation": "all_reduce", "group": "0", "step": 4,
                "phase": "forward", "shape": [4], "dtype": "float32", "inside": True}  # fmt: skip
        self.write(
            rank, type="calls", calls=[call | changes], groups={"0": {"ranks": [0, 1]}}, frames=[TORCH]
        )
        self.progress.poll()

    def done_after(self, seconds: float) -> bool:
        self.now += seconds
        return self.inquiry.done([0, 1])


def test_an_answer_that_comes_late_on_a_busy_machine_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hung = Hung(tmp_path, monkeypatch, load=3.0)
    hung.answer(0)
    assert not hung.done_after(2 * ANSWER_SECONDS)
    hung.answer(1, shape=[8])
    assert hung.done_after(0.0) and not hung.inquiry.open
    cause = hung.inquiry.explain()
    assert cause is not None and cause.kind == "different_shapes"


def test_a_rank_that_never_answers_is_not_waited_for_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hung = Hung(tmp_path, monkeypatch)
    hung.answer(0)
    assert not hung.done_after(hang_inquiry.STACKS_SECONDS)
    assert hung.done_after(ANSWER_SECONDS)
    cause = hung.inquiry.explain()  # what the other one does is told all the same
    assert cause is not None and cause.kind == "unknown" and "rank 0 waits in all_reduce" in cause.what


def test_stacks_get_their_time_though_all_have_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hung = Hung(tmp_path, monkeypatch)
    for rank in range(2):
        hung.answer(rank)
    assert not hung.done_after(0.5)
    assert hung.done_after(0.6)


def test_ranks_that_went_on_when_they_were_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What they were doing before counts, where that was written down, and else what they do now."""
    hung = Hung(tmp_path, monkeypatch)
    for rank in range(2):
        hung.write(rank, type="tick", steps=5, progress=9)
        hung.answer(rank, shape=[4 + rank])
    assert hung.done_after(2.0)
    cause = hung.inquiry.explain()
    assert cause is not None and cause.kind == "different_shapes"


STAND_IN = "#!/bin/sh\necho $$ > {told}\necho 'Thread 1 (idle)'\n{then}\n"


def put(folder: Path, then: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The stand-in before everything on the PATH; returns the file that it writes its process id to."""
    program, told = folder / "py-spy", folder / "told"
    program.write_text(STAND_IN.format(told=told, then=then))
    program.chmod(0o755)
    monkeypatch.setattr(hang_inquiry, "find_py_spy", lambda: str(program))
    return told


def pid_in(told: Path) -> int:
    deadline = time.monotonic() + 60
    while not (told.exists() and told.read_text().strip()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return int(told.read_text())


def test_stacks_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = put(tmp_path, "exit 0", monkeypatch)
    stacks = NativeStacks()
    assert not stacks.begun
    stacks.start(tmp_path, {3: os.getpid()})
    pid_in(told)
    while not stacks.done(tmp_path):
        time.sleep(0.02)
    assert native_stacks_file(tmp_path, 3).read_text() == "Thread 1 (idle)\n"


def test_a_run_that_ends_first_leaves_no_py_spy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = put(tmp_path, "exec sleep 600", monkeypatch)
    stacks = NativeStacks()
    stacks.start(tmp_path, {0: os.getpid()})
    pid = pid_in(told)
    assert not stacks.done(tmp_path)
    stacks.end()
    assert not Path(f"/proc/{pid}").exists() and stacks.done(tmp_path)
