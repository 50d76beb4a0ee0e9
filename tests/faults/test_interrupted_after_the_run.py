"""A signal while a run that is over is rehearsed ends the rehearsal; report and exit code stay the run's."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.faults.conftest import PROGRAMS, Run
from tests.support.packages import needs
from zerokit.cli import run as zerokit

needs("torch")  # a rehearsal imports it


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
def test_the_run_s_own_end_is_told(stub_python: Path, tmp_path: Path, number: signal.Signals) -> None:
    """One rank where the plan has two is a job that only a rehearsal predicts."""
    assert zerokit(["plan", "--params", "1m", "--gpus", "2", "--gpu", "h200", "--zero", "1",
                    "--out", str(tmp_path / "plan")]) == 0  # fmt: skip
    command = ["--rehearsal-seconds", "300", "--plan", "plan", "--num-ranks", "1",
               str(PROGRAMS / "tuned.py"), "--steps", "4"]  # fmt: skip
    run = Run(stub_python, tmp_path, command, {})
    try:
        assert run.process.stderr is not None
        err = ""
        for line in run.process.stderr:
            err += line
            if "rehearsing the command" in line:
                run.process.send_signal(number)
        code, out, _ = run.end(120)
        assert code == 0, err + out
        assert "\nzerokit: ok: " in err and "Traceback" not in err
        compared = run.report()["predicted_vs_measured"]
        assert compared["not_predicted"] == "its rehearsal was interrupted"
        assert compared["rehearse_command"].startswith("zerokit rehearse --plan plan")
        assert (run.run_dir / "report.html").is_file() and not run.left()
    finally:
        run.clean_up()
