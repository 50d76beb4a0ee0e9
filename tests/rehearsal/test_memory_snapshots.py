"""A script that records its own memory is rehearsed, and stands beside what it recorded on a GPU."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.rehearsals import rehearse
from tests.support.snapshots import recorded
from zerokit.snapshots.explanation import explain

pytest.importorskip("torch")


def test_what_was_predicted_is_what_was_seen(tmp_path: Path) -> None:
    code, said, _ = rehearse(
        tmp_path, "--gpu", "h200", "-m", "benchmarks.snapshots.jobs", "plain", str(tmp_path)
    )
    assert code == 0
    path = tmp_path / "rehearsal.json"
    path.write_text(json.dumps(said))
    told = explain(recorded("plain"), rehearsal=path)
    (device,) = told.devices
    assert told.predicted is not None
    for phase in ("load", "forward", "backward", "step"):
        assert told.predicted[phase] == pytest.approx(device.memory.phases[phase], rel=0.002)
