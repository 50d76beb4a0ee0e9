"""Locks on run folders and files: who may have them, and what becomes of a dead holder's."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from zerokit.errors import InputError
from zerokit.launcher import locks
from zerokit.launcher.run_folder import make_run_folder

_HOLDER = """
import sys, time
from contextlib import ExitStack
from zerokit.launcher.run_folder import make_run_folder
stack = ExitStack()
make_run_folder("run", "t.py", stack)
print("locked", flush=True)
time.sleep(600)
"""


def holder(folder: Path) -> subprocess.Popen[str]:
    root = str(Path(__file__).parents[3])
    process = subprocess.Popen(
        [sys.executable, "-c", _HOLDER], cwd=folder, stdout=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": root},
    )  # fmt: skip
    assert process.stdout is not None and process.stdout.readline() == "locked\n"
    return process


def test_a_run_folder_has_one_launch_and_a_dead_ones_lock_is_taken_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    process = holder(tmp_path)
    try:
        (tmp_path / "run" / "report.json").write_text("the first's")
        with ExitStack() as stack, pytest.raises(InputError, match=rf"pid {process.pid} .*is running in it"):
            make_run_folder("run", "t.py", stack)
        assert (tmp_path / "run" / "report.json").read_text() == "the first's"  # nothing was moved
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    with ExitStack() as stack:
        make_run_folder("run", "t.py", stack)
        assert (tmp_path / "run" / "previous-1" / "report.json").read_text() == "the first's"
    assert not (tmp_path / "run" / locks.RUN_LOCK).exists()


def test_a_lock_that_was_passed_on_outlives_its_taker(tmp_path: Path) -> None:
    lock = locks.acquire(tmp_path / "lock")
    assert lock is not None
    assert lock.fd is not None
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], pass_fds=(lock.fd,))
    try:
        os.close(lock.fd)  # as when the taker is killed
        assert locks.acquire(tmp_path / "lock") is None
    finally:
        child.kill()
        child.wait()
    again = locks.acquire(tmp_path / "lock")
    assert again is not None
    again.release()


def test_a_folder_without_locks_is_locked_on_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "runtime"))
    plain, folder = locks.acquire, tmp_path / "run"
    folder.mkdir()

    def acquire(path: Path) -> locks.FileLock | None:
        if path.parent == folder:
            raise locks.NoLocks(str(path))
        return plain(path)

    monkeypatch.setattr(locks, "acquire", acquire)
    first = locks.lock_run_folder(folder, "run")
    with pytest.raises(InputError, match=f"pid {os.getpid()} "):
        locks.lock_run_folder(folder, "run")
    first.release()
    locks.lock_run_folder(folder, "run").release()


def test_a_holder_that_signs_late_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A launch that starts in the same moment comes between its locking and its signing."""
    held = locks.acquire(tmp_path / locks.RUN_LOCK)
    assert held is not None

    def sleep(seconds: float) -> None:
        (tmp_path / locks.RUN_LOCK).write_text(f'{{"pid": {os.getpid()}, "host": "{socket.gethostname()}"}}')

    monkeypatch.setattr(locks.time, "sleep", sleep)
    with pytest.raises(InputError, match=f"pid {os.getpid()} "):
        locks.lock_run_folder(tmp_path, "run")
    held.release()


def test_a_link_or_a_pipe_is_no_lock(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / "link").symlink_to(victim)
    os.mkfifo(tmp_path / "fifo")
    for name in ("link", "fifo"):
        with pytest.raises(OSError, match=r".*"):
            locks.acquire(tmp_path / name)
    (tmp_path / locks.RUN_LOCK).symlink_to(victim)
    with pytest.raises(InputError, match="cannot be written"):
        locks.lock_run_folder(tmp_path, "run")
    assert victim.read_text() == "precious"


def test_a_private_folder_is_nobody_elses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    open_to_all, elsewhere = tmp_path / "open", tmp_path / "elsewhere"
    (open_to_all / "zerokit").mkdir(parents=True)
    (open_to_all / "zerokit").chmod(0o777)
    elsewhere.mkdir()
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked" / "zerokit").symlink_to(elsewhere)
    for name in ("open", "linked"):
        environment = {"XDG_RUNTIME_DIR": str(tmp_path / name), "XDG_CACHE_HOME": str(tmp_path / "cache")}
        found = locks.private_folder("ports", environment)
        assert found is not None and found.parent == tmp_path / "cache" / "zerokit"
        assert found.stat().st_mode & 0o777 == 0o700
    assert not list(elsewhere.iterdir())
    if os.geteuid() == 0:
        (tmp_path / "cache" / "zerokit").chmod(0o700)
        os.chown(tmp_path / "cache" / "zerokit", 12345, 12345)
        monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path / "t"))
        found = locks.private_folder("ports", {"XDG_CACHE_HOME": str(tmp_path / "cache")})
        assert found is not None and (tmp_path / "t") in found.parents


def test_a_run_that_cannot_be_moved_aside_stays_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with a folder ``logs`` of another user's."""
    run = tmp_path / "run"
    (run / "logs").mkdir(parents=True)
    for name in ("command.json", "report.json"):
        (run / name).write_text(name)
    plain = Path.rename

    def rename(self: Path, target: Path) -> Path:
        if self.name == "logs":
            raise PermissionError(13, "Permission denied")
        return plain(self, target)

    monkeypatch.setattr(Path, "rename", rename)
    with ExitStack() as stack, pytest.raises(InputError, match="moved aside"):
        make_run_folder(str(run), "t.py", stack)
    assert sorted(path.name for path in run.iterdir()) == ["command.json", "logs", "report.json"]
