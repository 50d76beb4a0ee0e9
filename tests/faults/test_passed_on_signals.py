"""Told of the end of its job (SIGUSR1, SIGTERM), a script has time to save, and nobody dies of SIGUSR1."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from tests.faults.conftest import Launch, Run, wait_for

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


@pytest.mark.slow
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


@pytest.mark.slow
def test_a_trainer_saves_when_the_job_is_preempted(tmp_path: Path) -> None:
    """Transformers' own just-in-time checkpoint: it begins 3 s after SIGTERM, and takes its time."""
    pytest.importorskip("deepspeed")
    pytest.importorskip("transformers.trainer_jit_checkpoint")
    script = Path(__file__).parents[1] / "scripts" / "preempted.py"
    options = ["--num-ranks", "2", "--style", "none", "--grace", "90"]
    run = Run(Path(sys.executable), tmp_path, [*options, str(script)], {})
    try:
        wait_for(lambda: len(list(tmp_path.glob("training-*"))) == 2, 200, lambda: "no step yet")
        run.process.terminate()
        code, out, err = run.end(200)
        assert code == 143, out + err
        (checkpoint,) = (tmp_path / "out").glob("checkpoint-*")
        names = {path.name for path in checkpoint.iterdir()}
        assert "trainer_state.json" in names and "checkpoint-is-incomplete.txt" not in names
        assert list(checkpoint.rglob("*optim_states.pt"))
        assert "left at" in out  # not killed: the grace is the script's to the end
        assert run.report()["outcome"] == "interrupted" and not run.left()
    finally:
        run.clean_up()
