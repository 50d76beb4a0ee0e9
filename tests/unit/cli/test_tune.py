"""The table of ``zerokit tune`` is no wider than the terminal, whatever was measured."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from zerokit.cli import run

GIB = 1 << 30
STRATEGY = "ZeRO-3, optimizer offload to cpu, weight offload to cpu, data parallel 64, micro-batch 1"


def trial(number: int, **more: Any) -> dict[str, Any]:
    found = {
        "trial": number, "description": f"{STRATEGY}, accumulation {number}, full checkpointing",
        "predicted_step_seconds": 12.3, "predicted_peak_bytes": 123 * GIB,
        "rehearsed": {"step_seconds": 119.0, "peak_allocated_bytes": 124 * GIB},
        "measured_step_seconds": 5000.0, "measured_peak_bytes": 125 * GIB, "memory": "gpu",
        "outcome": "ok", "problem": None, "differences": (),
    }  # fmt: skip
    return found | more


BODY = {
    "model": "llama-3.1-8b", "gpu": "h200", "gpus": 64, "steps": 10, "fastest": 1, "folder": "runs/x",
    "assumptions": ["sequences of 2,048 tokens: --seq-len not given, and as much again that is worth a line"],
    "not_rehearsed": None, "not_tried": [f"{STRATEGY}: rehearsed, it takes 150.00 GiB"],
    "trials": [
        trial(1),
        trial(2, outcome="oom", problem="CUDA out of memory in backward of step 3 on rank 5 " * 3,
              measured_step_seconds=None, measured_peak_bytes=None),
        trial(3, rehearsed=None, differences=["the engine ran ZeRO-2, but the plan has ZeRO-3", STRATEGY]),
    ],
    "files": {"plan": "zerokit-plan/plan.yaml"}, "next": "zerokit launch --plan zerokit-plan train.py",
    "most_seconds_per_trial": 900.0, "most_rehearsal_seconds": 600.0,
    "calibration": {"kept": 3, "file": "/home/user/.cache/zerokit/tuned.json", "why": None},
}  # fmt: skip


@pytest.mark.parametrize("columns", [80, 100])
@pytest.mark.parametrize("rehearsed", [True, False])
def test_no_row_is_wider_than_the_terminal(
    columns: int,
    rehearsed: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    body = dict(BODY)
    if not rehearsed:
        body["trials"] = [one | {"rehearsed": None} for one in BODY["trials"]]
    (tmp_path / "train.py").touch()
    result = SimpleNamespace(to_dict=lambda: body, interrupted=None, error=None)
    monkeypatch.setattr("zerokit.tuner.tune", lambda *_, **__: result)
    assert run(["tune", "--params", "8b", str(tmp_path / "train.py")]) == 0
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= columns
    row = next(line for line in text.splitlines() if line.startswith("  1*"))
    predicted = "119.0 s" if rehearsed else "12.3 s"
    assert predicted in row and "83.3 min" in row and "125.0 GiB" in row
    assert row.count("%") == 2 and ("rehearsed" in text.split("Tried")[1].split("Not tried")[0]) == rehearsed
    assert "CUDA out of memory" in text and "but the plan has ZeRO-3" in text


@pytest.mark.parametrize(
    ("rehearsing", "more"), [(0.0, ""), (600.0, "; rehearsals before, 10.0 min or little")]
)
def test_a_dry_run_says_how_long_the_trials_may_take(
    rehearsing: float,
    more: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    trials = [trial(number, measured_step_seconds=None, measured_peak_bytes=None) for number in (1, 2, 3)]
    body = BODY | {"folder": None, "fastest": None, "trials": trials, "next": None,
                   "most_rehearsal_seconds": rehearsing}  # fmt: skip
    (tmp_path / "train.py").touch()
    result = SimpleNamespace(to_dict=lambda: body, interrupted=None, error=None)
    monkeypatch.setattr("zerokit.tuner.tune", lambda *_, **__: result)
    assert run(["tune", "--params", "8b", "--dry-run", str(tmp_path / "train.py")]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert f"at most 15.0 min with loading (--timeout): 45.0 min at most for 3 plans{more}" in text
    assert "the same command without --dry-run runs these plans and keeps the fastest" in text


@pytest.mark.parametrize(
    ("predicted", "columns", "row"),
    [(12.3, ["predicted", "predicted"], "1 12.3 s 123.0 GiB"), (None, ["predicted"], "1 123.0 GiB")],
)
def test_a_dry_run_has_no_columns_of_what_it_did_not_measure(
    predicted: float | None,
    columns: list[str],
    row: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """On CPU ranks no step is predicted either."""
    none = {"measured_step_seconds": None, "measured_peak_bytes": None, "rehearsed": None}
    body = BODY | {"folder": None, "fastest": None, "files": {}, "next": None, "calibration": None,
                   "trials": [trial(1, **none, predicted_step_seconds=predicted)]}  # fmt: skip
    (tmp_path / "train.py").touch()
    result = SimpleNamespace(to_dict=lambda: body, interrupted=None, error=None)
    monkeypatch.setattr("zerokit.tuner.tune", lambda *_, **__: result)
    assert run(["tune", "--params", "8b", "--dry-run", str(tmp_path / "train.py")]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert columns in lines and row.split() in lines
