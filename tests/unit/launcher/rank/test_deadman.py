"""Ranks that nobody can reach any more end themselves, and no others do."""

from __future__ import annotations

from pathlib import Path

import pytest

from zerokit.launcher.nodes.gather import write_beat
from zerokit.launcher.rank.deadman import BEAT_SECONDS, VARIABLE, DeadMan, patience_seconds, watches


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def looks(watch: DeadMan, clock: Clock, seconds: float) -> bool:
    """Whether it finds zerokit gone, looking all the while."""
    end = clock.now + seconds
    while clock.now < end:
        clock.now += BEAT_SECONDS
        if watch.is_orphaned():
            return True
    return False


def test_a_count_that_stands_still_is_the_end(tmp_path: Path) -> None:
    clock, alive = Clock(), tmp_path / "alive"
    watch = DeadMan(alive, 20.0, clock)
    for number in range(50):
        write_beat(alive, number)
        assert not looks(watch, clock, 2 * BEAT_SECONDS)
    assert not looks(watch, clock, 18)
    assert looks(watch, clock, 10)


def test_a_file_that_was_never_there_or_is_gone_for_a_moment_ends_nobody(tmp_path: Path) -> None:
    clock, alive = Clock(), tmp_path / "alive"
    watch = DeadMan(alive, 20.0, clock)
    assert not looks(watch, clock, 1000)
    write_beat(alive, 1)
    assert not looks(watch, clock, 10)
    alive.unlink()
    assert not looks(watch, clock, 8)
    write_beat(alive, 2)
    assert not looks(watch, clock, 18)


def test_it_is_armed_on_order_only_and_outlasts_the_heartbeat(tmp_path: Path) -> None:
    assert watches(tmp_path, 0, {}) == []
    assert watches(tmp_path, 0, {VARIABLE: "soon"}) == []
    assert [type(watch) for watch in watches(tmp_path, 0, {VARIABLE: "30"})] == [DeadMan]
    assert patience_seconds(60) == 120
    assert patience_seconds(1) >= 10
    assert patience_seconds(0) >= 60


def test_a_beat_is_written_in_place(tmp_path: Path) -> None:
    alive = tmp_path / "alive"
    write_beat(alive, 1)
    inode = alive.stat().st_ino
    write_beat(alive, 123)
    assert alive.stat().st_ino == inode and alive.read_text() == f"{123:020d}"
    with pytest.raises(OSError):
        write_beat(tmp_path / "none" / "alive", 1)
