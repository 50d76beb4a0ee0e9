"""SIGUSR1 before the end of a Slurm job reaches the script, which saves and goes on; nobody dies of it."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.faults.conftest import Launch, wait_for

SAVES = """
import os, pathlib, signal, time
rank = os.environ["RANK"]
done = []
def save(number, frame):
    pathlib.Path(f"saved-{rank}").write_text(str(number))
    done.append(number)
if HANDLES:
    signal.signal(signal.SIGUSR1, save)
pathlib.Path(f"ready-{rank}").touch()
deadline = time.monotonic() + (60 if HANDLES else 4)
while not done and time.monotonic() < deadline:
    time.sleep(0.05)
"""


@pytest.mark.parametrize("handles", [True, False])
def test_sigusr1_is_the_scripts(launch: Launch, tmp_path: Path, handles: bool) -> None:
    script = tmp_path / "saves.py"
    script.write_text(SAVES.replace("HANDLES", str(handles)))
    run = launch(script=(str(script),))
    wait_for(lambda: all((tmp_path / f"ready-{rank}").exists() for rank in (0, 1)), 60, lambda: "not ready")
    run.until_started(2)
    os.kill(run.process.pid, signal.SIGUSR1)
    code, _, err = run.end()
    assert code == 0, err
    assert "SIGUSR1: passed on" in err
    for rank in (0, 1):
        assert (tmp_path / f"saved-{rank}").exists() == handles
    assert run.report()["outcome"] == "ok"
    assert not run.left()
