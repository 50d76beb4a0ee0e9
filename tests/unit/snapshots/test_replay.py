"""A history played again, against what PyTorch's own counters said."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.snapshots import TRUTH, recorded, unpickled, written
from zerokit.errors import InputError
from zerokit.snapshots.replay import Device, devices
from zerokit.snapshots.unpickling import SnapshotReader

_WITHOUT_A_WHOLE_HISTORY = ("cut-short", "without-history", "state-only", "begun-late")
WHOLE = [name for name in TRUTH if name not in _WITHOUT_A_WHOLE_HISTORY]


def _device(path: Path) -> Device:
    (device,) = devices(SnapshotReader(path))
    return device


@pytest.mark.parametrize("name", WHOLE)
def test_the_peak_of_a_whole_history_is_the_counters_to_the_byte(name: str) -> None:
    truth = TRUTH[name]
    device = _device(recorded(name))
    assert max(device.made.after) == (truth.get("peak_allocated") or truth["allocated_peak"])
    assert device.before_bytes == 0
    assert device.peak_reserved_bytes == truth.get("peak_reserved", device.peak_reserved_bytes)


@pytest.mark.parametrize("name", [name for name in TRUTH if "allocated" in TRUTH[name]])
def test_what_is_held_at_the_end_is_the_counters_to_the_byte(name: str) -> None:
    device = _device(recorded(name))
    assert sum(block.size for block in device.blocks if block.is_live) == TRUTH[name]["allocated"]
    assert sum(segment.size for segment in device.segments) == TRUTH[name]["reserved"]


def test_the_peak_of_a_history_that_began_late_is_near() -> None:
    device = _device(recorded("begun-late"))
    assert max(device.made.after) == pytest.approx(TRUTH["begun-late"]["phases"]["backward"], rel=0.01)
    assert device.before_bytes > 0 == device.lost_bytes


def test_a_cut_history_is_told_from_a_late_one() -> None:
    device = _device(recorded("cut-short"))
    assert device.events == 150
    assert device.lost_bytes > 0


def test_devices_are_played_each_by_itself(tmp_path: Path) -> None:
    first, second = unpickled("plain"), unpickled("leak-hook")
    for segment in second["segments"]:
        segment["device"] = 1
    both = {
        "segments": first["segments"] + second["segments"],
        "device_traces": [first["device_traces"][0], second["device_traces"][0], []],
    }
    found = devices(SnapshotReader(written(tmp_path / "both.pickle", both)))
    assert [(one.number, max(one.made.after)) for one in found] == [
        (0, TRUTH["plain"]["peak_allocated"]),
        (1, TRUTH["leak-hook"]["peak_allocated"]),
    ]


@pytest.mark.parametrize(
    "snapshot",
    [
        {"segments": 5},
        {"segments": [5]},
        {"segments": [{"device": 0, "blocks": [{}]}]},
        {"segments": [], "device_traces": [["x"]]},
        {"segments": [], "device_traces": [[7]]},
        {"segments": [], "allocator_settings": 3},
        {},
        7,
    ],
)
def test_values_that_are_no_snapshot_are_refused(tmp_path: Path, snapshot: object) -> None:
    with pytest.raises(InputError, match=r"snapshot of PyTorch's CUDA memory|no events"):
        devices(SnapshotReader(written(tmp_path / "other.pickle", snapshot)))
