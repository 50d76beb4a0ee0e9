"""Readings of a host's speed: kept, taken together, and damaged."""

from __future__ import annotations

from pathlib import Path

import pytest

from zerokit.machine import host_speeds
from zerokit.machine.host_speeds import Failure, Reading


def reading(factor: float, day: int, low: float = 0.0, high: float = 0.0) -> Reading:
    return Reading(
        device_name="NVIDIA H200", torch_version="2.11.0", factor=factor, low=low or factor,
        high=high or factor, source=f"run {day}", measured_at=f"2026-01-{day:02}T00:00:00+00:00",
    )  # fmt: skip


def test_what_was_kept_is_read_back(tmp_path: Path) -> None:
    at = host_speeds.path({"XDG_CACHE_HOME": str(tmp_path)}, "node1")
    assert at == tmp_path / "zerokit/host-speed/node1.json"
    assert host_speeds.load(at) == host_speeds.Kept()
    failure = Failure(device_name="x", torch_version="2", why="no", measured_at="2026-01-01T00:00:00+00:00")
    for entry in (reading(0.8, 1), failure, reading(0.9, 2)):
        host_speeds.add(entry, at)
    kept = host_speeds.load(at)
    assert kept.readings == (reading(0.8, 1), reading(0.9, 2)) and kept.failure == failure


def test_the_newest_are_taken_together_with_all_their_spread() -> None:
    early = [reading(5.0, 1), reading(5.0, 2)]
    newest = [reading(0.7, 3, low=0.6), reading(0.9, 4), reading(0.8, 5, high=1.3), reading(0.7, 6),
              reading(1.0, 7)]  # fmt: skip
    found = host_speeds.together([*newest, *early], "FILE")
    assert found is not None
    assert (found.factor, found.low, found.high) == (0.8, 0.6, 1.3)
    assert "5 readings" in found.source and "run 7" in found.source and "FILE" in found.source
    assert host_speeds.together([], "FILE") is None


@pytest.mark.parametrize(
    "text",
    ["", "[]", "null", "{}", '{"schema": "zerokit.host_speed/1", "readings": [{}], "failure": null}',
     '{"schema": "zerokit.host_speed/2", "readings": [], "failure": null}',
     '{"schema": "zerokit.host_speed/1", "failure": null, "readings": [{"device_name": "x", "low": 1, '
     '"torch_version": "2", "factor": 0, "high": 1, "source": "s", "measured_at": "t"}]}'],
)  # fmt: skip
def test_a_damaged_file_holds_nothing_and_is_written_anew(tmp_path: Path, text: str) -> None:
    at = tmp_path / "node.json"
    at.write_text(text)
    assert host_speeds.load(at) == host_speeds.Kept()
    host_speeds.add(reading(0.8, 1), at)
    assert host_speeds.load(at).readings == (reading(0.8, 1),)
