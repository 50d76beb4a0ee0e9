"""No temporary folder is left: not after SIGTERM at any moment, nor after SIGKILL beyond the next start."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.faults.conftest import SCRIPT, Run, wait_for
from tests.support.plans import write_plan
from zerokit.launcher import processes
from zerokit.temporary import temporary_folder

RECIPE = "title: x\nparams: 13b\ngpus: 8\ngpu: h200\nhost_ram: 1TiB\n"


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    return folder


def left(temporary: Path) -> list[str]:
    return sorted(path.name for path in temporary.iterdir())


def start_anew(temporary: Path) -> None:
    """A command that makes a temporary folder too; what it finds of others that live stays."""
    command = [sys.executable, "-m", "zerokit", "check", "--explain", "offload-param-below-stage-3"]
    subprocess.run(command, check=True, capture_output=True, timeout=60)


def test_a_folder_that_another_process_just_takes_for_stale(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between ``mkdir`` and the lock another process may lock the folder and remove it."""
    monkeypatch.setattr(tempfile, "tempdir", None)  # read TMPDIR again
    mkdir, locks = Path.mkdir, []

    def taken(folder: Path, mode: int) -> None:
        mkdir(folder, mode)
        if len(locks) < 2:
            locks.append(os.open(folder, os.O_RDONLY))
            fcntl.flock(locks[-1], fcntl.LOCK_EX)
            if len(locks) == 2:
                folder.rmdir()

    monkeypatch.setattr(Path, "mkdir", taken)
    with temporary_folder("plan") as folder:
        first = next(path for path in temporary.iterdir() if path != folder)
        assert folder.is_dir()
        assert os.path.samestat(first.stat(), os.fstat(locks[0]))  # left to who holds its lock
    for lock in locks:
        os.close(lock)
    assert left(temporary) == [first.name]


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_a_launch_that_is_planning(tmp_path: Path, temporary: Path, number: int) -> None:
    (tmp_path / "mine.yaml").write_text(RECIPE)
    (tmp_path / "t.py").write_text("")
    command = [sys.executable, "-m", "zerokit", "launch", "--recipe", "mine.yaml", "--device", "cpu", "t.py"]
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    wait_for(lambda: left(temporary), 60, lambda: "no folder was made")
    process.send_signal(number)
    error = process.communicate(timeout=60)[1]
    assert process.returncode == (-9 if number == signal.SIGKILL else 128 + number), error
    assert b"Traceback" not in error
    if number == signal.SIGKILL:
        assert [name[:13] for name in left(temporary)] == ["zerokit-plan-"]
        start_anew(temporary)
    assert left(temporary) == []


@pytest.mark.slow
def test_a_run_whose_zerokit_and_guard_are_killed(tmp_path: Path, temporary: Path, stub_python: Path) -> None:
    write_plan(tmp_path / "plan")
    run = Run(stub_python, tmp_path, ["--plan", "plan", str(SCRIPT), "all:sleep"], {})
    try:
        run.until_started(2)
        (guard,) = [p.pid for p in processes.descendants(run.process.pid) if p.parent == run.process.pid]
        start_anew(temporary)
        assert [name[:12] for name in left(temporary)] == ["zerokit-run-"]  # its process lives
        run.process.kill()
        os.kill(guard, signal.SIGKILL)
        run.process.wait(10)
        wait_for(lambda: not run.left(), 60, lambda: f"left: {run.left()}")
        start_anew(temporary)
        assert left(temporary) == []
    finally:
        run.clean_up()


@pytest.mark.slow
@pytest.mark.parametrize(("number", "moment"), [(signal.SIGTERM, "start"), (signal.SIGKILL, "script")])
def test_a_rehearsal(tmp_path: Path, temporary: Path, number: int, moment: str) -> None:
    pytest.importorskip("torch")
    (tmp_path / "t.py").write_text("import time\nprint('runs', flush=True)\ntime.sleep(600)\n")
    command = [sys.executable, "-m", "zerokit", "rehearse", "--gpu", "h200", "t.py"]
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)

    def reached() -> bool:
        outputs = list(temporary.glob("zerokit-rehearsal-*/output"))
        return bool(outputs) and (moment == "start" or b"runs" in outputs[0].read_bytes())

    wait_for(reached, 120, lambda: "the rehearsal did not start")
    if moment == "start":
        wait_for(lambda: bool(processes.descendants(process.pid)), 10, lambda: "no process")
    below = processes.descendants(process.pid)
    process.send_signal(number)
    error = process.communicate(timeout=60)[1]
    assert process.returncode == (-9 if number == signal.SIGKILL else 128 + number), error
    assert b"Traceback" not in error

    def alive() -> list[int]:
        now = {p.pid: processes.read_process(p.pid) for p in below}
        return [p.pid for p in below if (n := now[p.pid]) and n.alive and n.start_ticks == p.start_ticks]

    wait_for(lambda: not alive(), 30, lambda: f"left: {alive()}")
    if number == signal.SIGKILL:
        start_anew(temporary)
    assert left(temporary) == []
