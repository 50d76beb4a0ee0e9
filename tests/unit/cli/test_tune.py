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
    "against": None, "not_rehearsed": None, "not_tried": [f"{STRATEGY}: rehearsed, it takes 150.00 GiB"],
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
