"""When silence is a hang, from made-up observations; what the status line says."""

from __future__ import annotations

import json
import os
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from zerokit.launcher.supervisor.progress import Progress


class Clock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr(time, "monotonic", lambda: self.now)


class Ranks:
    """Rank files written as ranks write them, on a clock of our own."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, ranks: int = 2) -> None:
        self.clock = Clock(monkeypatch)
        self.folder = folder
        self.progress = Progress(folder, ranks, heartbeat_seconds=60.0)
        for rank in range(ranks):
            self.write(rank, type="start")
        self.progress.poll()

    def write(self, rank: int, **record: Any) -> None:
        with (self.folder / f"rank-{rank:05d}.jsonl").open("a") as file:
            file.write(json.dumps({"type": "tick", "rank": rank, **record}) + "\n")

    def pass_time(self, seconds: int, **ticks: dict[str, Any]) -> str | None:
        """Let seconds pass; ``r0={…}`` is rank 0's tick, its numbers growing per second when callable."""
        verdict = None
        for second in range(1, seconds + 1):
            self.clock.now += 1
            for name, tick in ticks.items():
                self.write(int(name[1:]), **{k: v(second) if callable(v) else v for k, v in tick.items()})
            self.progress.poll()
            verdict = verdict or self.progress.hung([0, 1])
        return verdict


def quiet(steps: int, cpu_per_second: float = 0.0) -> dict[str, Any]:
    return {"steps": steps, "idle_seconds": lambda s: float(s), "cpu_seconds": lambda s: s * cpu_per_second}


def busy(steps: Any = 0) -> dict[str, Any]:
    return {"steps": steps, "idle_seconds": 0.0, "cpu_seconds": lambda s: float(s)}


def test_all_quiet_is_a_hang(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = Ranks(tmp_path, monkeypatch)
    assert ranks.pass_time(50, r0=quiet(5), r1=quiet(5)) is None
    (tmp_path / "other").mkdir()
    ranks = Ranks(tmp_path / "other", monkeypatch)
    assert (
        ranks.pass_time(70, r0=quiet(5), r1=quiet(4))
        == "rank 1 (furthest behind): no progress for 60.0 s, at step 4"
    )


def test_one_rank_evaluates_while_its_peer_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = Ranks(tmp_path, monkeypatch)
    assert ranks.pass_time(600, r0=busy(5), r1=quiet(5)) is None


def test_loading_below_python_is_no_hang(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = Ranks(tmp_path, monkeypatch)
    assert ranks.pass_time(250, r0=quiet(0, cpu_per_second=0.9), r1=quiet(0)) is None


def test_but_spinning_for_ever_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = Ranks(tmp_path, monkeypatch)
    assert ranks.pass_time(400, r0=quiet(0, cpu_per_second=1.0), r1=quiet(0, cpu_per_second=1.0)) is not None


def test_a_rank_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = Ranks(tmp_path, monkeypatch)
    assert (
        ranks.pass_time(90, r0=busy(lambda s: s), r1=quiet(3)) == "rank 1: no progress for 60.0 s, at step 3"
    )


def test_a_silent_rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = Ranks(tmp_path, monkeypatch)
    assert "rank 1: no sign of life" in str(ranks.pass_time(90, r0=busy(lambda s: 1)))


def test_our_own_pause_is_not_the_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = Ranks(tmp_path, monkeypatch)
    ranks.pass_time(5, r0=busy(), r1=busy())
    ranks.clock.now += 3600  # Ctrl-Z, or a laptop's lid
    ranks.progress.poll()
    assert ranks.progress.hung([0, 1]) is None


def test_a_rank_that_waits_for_us_to_take_what_it_prints_is_not_idle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A line of 75 MB, for 200 s; then a hang."""
    ranks, verdicts = Ranks(tmp_path, monkeypatch, 1), []
    for second in range(1, 300):
        ranks.clock.now += 1
        ranks.progress.forgive(0, 1.0 if second <= 200 else 0.0)
        ranks.write(0, steps=5, idle_seconds=second, cpu_seconds=0.0)
        ranks.progress.poll()
        verdicts.append(ranks.progress.hung([0]))
    assert not any(verdicts[:258]) and "no progress for 60.0 s" in str(verdicts[258])


def test_a_rank_that_ended_its_script_may_upload_for_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uploads = {**quiet(5, cpu_per_second=0.3), "ending": True}
    assert Ranks(tmp_path, monkeypatch, 1).pass_time(200, r0=uploads) is None
    (tmp_path / "waits").mkdir()
    waits = {**quiet(5), "ending": True}
    assert Ranks(tmp_path / "waits", monkeypatch, 1).pass_time(200, r0=waits) is not None


def test_a_hang_on_one_of_several_hosts_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = Ranks(tmp_path, monkeypatch)
    for rank in (0, 1):
        ranks.write(rank, type="start", host=f"node-{rank + 1}", pid=1)
    verdict = ranks.pass_time(100, r0=busy(lambda s: s))
    assert verdict is not None and verdict.startswith("rank 1 on node-2: no sign of life")


def test_the_status_line_warns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = Ranks(tmp_path, monkeypatch)
    gib = 1 << 30
    ranks.write(0, steps=3, phase="backward", peak_allocated_bytes=10 * gib, alloc_retries=0)
    ranks.write(1, steps=3, phase="forward", peak_allocated_bytes=11 * gib, alloc_retries=0)
    ranks.progress.poll()
    line = ranks.progress.line(12 * gib)
    assert "step 3 (ranks in backward, forward)" in line
    assert "most memory: rank 1, 11.00 GiB GPU peak of 12.00 GiB predicted" in line
    assert "!" not in line and "/step" not in line
    assert "! rank 1 is 10% above the prediction" in ranks.progress.line(10 * gib)
    leak = {"memory": "gpu", "bytes_per_step": gib / 1000, "growth_bytes": gib, "first_step": 1,
            "last_step": 9}  # fmt: skip
    ranks.write(0, steps=4, phase="forward", peak_allocated_bytes=10 * gib, alloc_retries=7, leaks=[leak],
                median_step_seconds=0.092)  # fmt: skip
    ranks.write(1, steps=4, phase="forward", peak_allocated_bytes=10 * gib, median_step_seconds=0.09)
    ranks.progress.poll()
    line = ranks.progress.line(12 * gib)
    assert "92 ms/step" in line  # of the slowest rank, as its report will have it
    assert "! rank 0 ran full 7 times" in line
    assert "! suspected leak of gpu memory, rank 0: 1.0 MiB a step" in line


@pytest.mark.parametrize("clock_moves", [0.0, -3600.0, 86_400.0])
def test_the_elapsed_time_does_not_follow_a_clock_that_is_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock_moves: float
) -> None:
    from zerokit.launcher.attempts import build_report as report_of
    from zerokit.launcher.backends import LaunchCommand
    from zerokit.launcher.launch import Launch
    from zerokit.launcher.options import LaunchOptions
    from zerokit.launcher.placement import Devices, Placement
    from zerokit.launcher.supervisor import supervisor
    from zerokit.script.entry_points import Target

    launch = Launch(
        options=LaunchOptions(target=Target(script="train.py", module=None, arguments=())),
        placement=Placement(devices=Devices(kind="cpu", ranks=1, gpu_indexes=(), why=""), port=1),
        command=LaunchCommand(argv=[]), environment={}, cwd=tmp_path, run_dir=tmp_path, host="h",
    )  # fmt: skip
    now, common = time.time(), {"rank": 0, "pid": 1, "schema": "zerokit.rank/1"}
    start = {**common, "type": "start", "time": now, "host": "h", "device": "cpu", "world_size": 1}
    end = {**common, "type": "end", "time": now + 60 + clock_moves, "state": "finished", "exit_code": 0}
    lines = "".join(json.dumps(record) + "\n" for record in (start, end))
    (tmp_path / "rank-00000.jsonl").write_text(lines)
    progress = Progress(tmp_path, 1, 60.0)
    progress.poll()
    progress.started_at -= 61
    progress.started_clock -= 61 + clock_moves
    seen = supervisor.begin(launch)
    seen.launcher_code = 0
    ended = supervisor.conclude(launch, seen, progress, {}, 0)
    elapsed = report_of(launch, ended).elapsed_seconds
    assert elapsed == pytest.approx(61.0 if clock_moves else 60.0, abs=0.9)


@pytest.mark.parametrize("replaced", [False, True])
def test_a_file_that_is_removed_before_it_is_read_is_still_heard(tmp_path: Path, replaced: bool) -> None:
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    progress = Progress(run_dir, 2, heartbeat_seconds=60.0)
    with (run_dir / "rank-00001.jsonl").open("w") as file:
        file.write(json.dumps({"type": "start", "rank": 1}) + "\n")
        file.flush()
        shutil.rmtree(run_dir)
        if replaced:
            run_dir.write_text("not a folder")
        assert progress.poll() == []
        progress.local_pids = {0: 2**22 + 1, 1: os.getpid()}  # the first is no process
        assert [(rank, record["type"]) for rank, record in progress.poll()] == [(1, "start")]
        file.write(json.dumps({"type": "tick", "rank": 1, "steps": 7}) + "\n")
        file.flush()
        progress.poll()
        assert progress.ranks[1].steps == 7 and progress.ranks[0].heard_at is None
    progress.close()
