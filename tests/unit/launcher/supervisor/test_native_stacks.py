"""py-spy beside a run that hangs, by a stand-in for the program."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from zerokit.launcher.rank_file import native_stacks_file
from zerokit.launcher.supervisor import native_stacks
from zerokit.launcher.supervisor.native_stacks import NativeStacks

STAND_IN = "#!/bin/sh\necho $$ > {told}\necho 'Thread 1 (idle)'\n{then}\n"


def put(folder: Path, then: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The stand-in before everything on the PATH; returns the file that it writes its process id to."""
    program, told = folder / "py-spy", folder / "told"
    program.write_text(STAND_IN.format(told=told, then=then))
    program.chmod(0o755)
    monkeypatch.setattr(native_stacks, "find_py_spy", lambda: str(program))
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
