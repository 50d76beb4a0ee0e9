"""Ranks that stop at a step limit: what they write, and that no report takes them for finished training."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.ranks import read_rank, run_limited
from tests.support.reports import report_of
from zerokit.launcher.verdict.report import report_of_folder


def test_a_rank_stops_at_its_last_step_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code, out = run_limited(tmp_path, monkeypatch, "6")
    assert (code, out) == (0, "")
    log = read_rank(tmp_path)
    end, timed = log.last("end"), log.last("timed")
    assert end is not None and (end["state"], end["exit_code"], end["steps"]) == ("stopped", 0, 6)
    assert timed is not None and timed["steps"] == 4
    assert 0.009 < timed["step_seconds"] < 0.2
    assert log.records[-1] is end


def test_without_a_limit_the_script_runs_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code, out = run_limited(tmp_path, monkeypatch, None)
    assert (code, out.strip()) == (0, "trained to the end")
    assert read_rank(tmp_path).last("end")["state"] == "finished"  # type: ignore[index]


def test_a_stopped_run_is_reported_as_stopped_and_never_as_ok(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_limited(tmp_path, monkeypatch, "4")
    again = report_of_folder(tmp_path).to_dict()
    assert (again["outcome"], again["ranks"][0]["state"]) == ("stopped", "stopped")
    # a peer that trained on, or that never reported, spoils it
    both = report_of(tmp_path, 2)
    assert (both["outcome"], both["exit_code"]) == ("launcher_lost", 12)
