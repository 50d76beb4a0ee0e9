"""The doctor against laid-out machines (real processes as the drivers' tools) and this one."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from zerokit import cli
from zerokit.doctor import software
from zerokit.doctor.finding import STATES


def test_json_is_one_object_and_exit_0() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "zerokit", "doctor", "--json"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["schema"] == "zerokit.doctor/2"
    assert sum(answer["counts"].values()) == len(answer["findings"])
    assert {finding["state"] for finding in answer["findings"]} <= set(STATES)


def test_the_doctor_imports_no_torch() -> None:
    code = "import sys; from zerokit import cli; cli.run(['doctor']); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True).returncode == 0


def test_strict_ends_with_13_only_when_no_run_can_work(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real = software.installed
    monkeypatch.setattr(software, "installed", lambda name: None if name == "deepspeed" else real(name))
    assert cli.run(["doctor"]) == 0
    assert cli.run(["doctor", "--strict"]) == 13
    captured = capsys.readouterr()
    assert "software.deepspeed" in captured.err
    assert "pip install torch deepspeed" in captured.out
