"""A rank writes the snapshots that its launch asked for, and no others."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.snapshots import TRUTH, unpickled
from zerokit.launcher.rank.memory_snapshots import SNAPSHOT_VARIABLE, MemorySnapshots
from zerokit.launcher.rank.oom_record import OomWatch
from zerokit.launcher.rank.phase_record import Identity
from zerokit.launcher.rank.probe import Probe
from zerokit.snapshots.explanation import explain_file


class _Torch:
    """What a rank calls of PyTorch's, with a recorded snapshot for its memory."""

    def __init__(self, snapshot: dict[str, Any]) -> None:
        self.recording: dict[str, Any] | None = None
        self.observer: Any = None
        self.snapshots = 0
        self._snapshot = snapshot
        memory = SimpleNamespace(_record_memory_history=self._record, _snapshot=self._take)
        self.cuda = SimpleNamespace(memory=memory)
        self._C = SimpleNamespace(_cuda_attach_out_of_memory_observer=self._attach)

    def _record(self, **arguments: Any) -> None:
        self.recording = arguments

    def _take(self) -> dict[str, Any]:
        self.snapshots += 1
        return dict(self._snapshot)

    def _attach(self, observer: Any) -> None:
        self.observer = observer


def _rank(folder: Path, torch: _Torch) -> Probe:
    probe = Probe(
        Identity(rank=3, local_rank=3, world_size=4, host="a", device="cuda", script="t.py"), folder
    )
    OomWatch(probe, MemorySnapshots(probe)).attach(torch)
    return probe


def test_nothing_is_recorded_that_nobody_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SNAPSHOT_VARIABLE, raising=False)
    torch = _Torch({})
    probe = _rank(tmp_path, torch)
    probe.step_done()
    torch.observer(0, 1, 2, 3)
    assert (torch.recording, torch.snapshots) == (None, 0)


def test_each_moment_is_written_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SNAPSHOT_VARIABLE, "oom,2")
    torch = _Torch(unpickled("oom"))
    probe = _rank(tmp_path, torch)
    assert torch.recording == {"stacks": "python", "max_entries": 100_000}
    for _ in range(4):
        probe.step_done()
    for _ in range(2):
        torch.observer(0, 1, 2, 3)
    assert torch.snapshots == 2
    names = ["snapshot-00003-oom.pickle", "snapshot-00003-step-2.pickle"]
    assert sorted(path.name for path in tmp_path.glob("snapshot-*")) == names
    assert [note.get("file") for note in probe.notes] == names[::-1]
    (device,) = explain_file(tmp_path / names[0]).devices
    assert device.memory.peak_allocated_bytes == TRUTH["oom"]["allocated_peak"]


def test_classes_are_named_for_a_reader_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "model.py"
    source.write_text("class Model:\n    def forward(self):\n        return 1\n")
    snapshot = unpickled("oom")
    event = next(event for event in snapshot["device_traces"][0] if event["action"] == "alloc")
    event["frames"] = [
        {"filename": str(source), "line": 3, "name": "forward"},
        {"filename": str(source), "line": 9, "name": "<module>"},
    ]
    monkeypatch.setenv(SNAPSHOT_VARIABLE, "1")
    probe = _rank(tmp_path, _Torch(snapshot))
    probe.step_done()
    source.unlink()
    (device,) = explain_file(tmp_path / "snapshot-00003-step-1.pickle").devices
    held = {row.location: row.module for row in device.memory.at_peak}
    assert held[f"{source}:3"] == "Model"


def test_a_snapshot_that_fails_ends_nothing_and_is_noted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SNAPSHOT_VARIABLE, "1")
    torch = _Torch({})
    probe = _rank(tmp_path, torch)
    probe.step_done()
    assert torch.snapshots == 1
    assert "device_traces" in probe.notes[0]["error"]
