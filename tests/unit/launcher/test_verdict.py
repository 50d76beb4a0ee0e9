"""What counts as which outcome; secrets; folders; hangs, from made-up observations."""

from __future__ import annotations

import json
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from zerokit.errors import InputError
from zerokit.launcher.run_folder import make_run_folder
from zerokit.launcher.supervisor.progress import Progress
from zerokit.launcher.verdict.verdict import Evidence, Outcome, RankExit, decide, launcher_status


def evidence(**changed: Any) -> Evidence:
    values: dict[str, Any] = {
        "expected_ranks": 2,
        "rank_exits": [exit_(0, 0), exit_(1, 0)],
        "launcher_code": 0,
        "launcher_lost": None,
        "interrupted_by": None,
        "hung": None,
        "out_of_memory": {},
        "reporting": frozenset({0, 1}),
    }
    return Evidence(**values | changed)


def exit_(
    rank: int, code: int | None, signal: int | None = None, at: float = 0.0, by_us: bool = False
) -> RankExit:
    return RankExit(rank=rank, host="h", code=code, signal=signal, at=at, by_us=by_us)


@pytest.mark.parametrize(
    ("changed", "outcome", "code"),
    [
        ({}, Outcome.OK, 0),
        ({"reporting": frozenset({0})}, Outcome.LAUNCHER_LOST, 12),
        ({"reporting": frozenset(), "rank_exits": []}, Outcome.LAUNCHER_LOST, 12),
        ({"rank_exits": [exit_(0, 0), exit_(1, 3)], "launcher_code": 3}, Outcome.RANK_FAILED, 10),
        ({"rank_exits": [exit_(1, None, 9)], "launcher_code": 247}, Outcome.RANK_FAILED, 10),
        ({"rank_exits": [exit_(1, 1)], "out_of_memory": {1: "x"}}, Outcome.OOM, 10),
        ({"out_of_memory": {1: "caught by the script"}}, Outcome.OK, 0),
        ({"launcher_lost": "gone", "rank_exits": []}, Outcome.LAUNCHER_LOST, 12),
        ({"launcher_code": 2, "rank_exits": [], "reporting": frozenset()}, Outcome.LAUNCHER_LOST, 12),
        ({"hung": "rank 1", "rank_exits": [exit_(1, None, 9)]}, Outcome.HUNG, 11),
        ({"interrupted_by": 15, "hung": "x"}, Outcome.INTERRUPTED, 143),
        ({"stopped": frozenset({0, 1}), "stop_ordered": True}, Outcome.STOPPED, 0),
        # a step limit that nobody ordered, or that only one rank reached, is no good end
        ({"stopped": frozenset({0, 1})}, Outcome.LAUNCHER_LOST, 12),
        ({"stopped": frozenset({0}), "stop_ordered": True}, Outcome.LAUNCHER_LOST, 12),
        (
            {"stopped": frozenset({0}), "stop_ordered": True, "rank_exits": [exit_(0, 0), exit_(1, 1)]},
            Outcome.RANK_FAILED,
            10,
        ),
        ({"timed_out": "not done within 5 s", "rank_exits": []}, Outcome.TIMED_OUT, 11),
        ({"interrupted_by": 2, "timed_out": "not done within 5 s"}, Outcome.INTERRUPTED, 130),
        ({"interrupted_by": 2, "rank_exits": [exit_(1, None, 9, by_us=True)]}, Outcome.INTERRUPTED, 130),
    ],
)
def test_outcomes(changed: dict[str, Any], outcome: Outcome, code: int) -> None:
    verdict = decide(evidence(**changed))
    assert (verdict.outcome, verdict.exit_code) == (outcome, code)


def test_the_cause_goes_before_its_victims() -> None:
    exits = [exit_(0, 1, at=10.0), exit_(3, None, 9, at=10.05), exit_(1, 1, at=10.06)]
    assert "rank 3 on h was killed by SIGKILL" in decide(evidence(rank_exits=exits)).why
    later = [exit_(0, 1, at=10.0), exit_(3, None, 9, at=12.0)]
    assert "rank 0 on h exited with code 1" in decide(evidence(rank_exits=later)).why


@pytest.mark.parametrize(
    ("code", "status"), [(247, -9), (241, -15), (1, 1), (0, 0), (-9, -9), (127, 127), (245, -11)]
)
def test_deepspeeds_exit_codes(code: int, status: int) -> None:
    assert launcher_status(code) == status


def test_run_folders_are_never_shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with ExitStack() as stack:
        first, second = (make_run_folder(None, "a b/träin.py", stack) for _ in range(2))
        assert first != second and first.parent == second.parent == tmp_path / "runs"
        (tmp_path / "file").write_text("")
        with pytest.raises(InputError, match="cannot be made"):
            make_run_folder("file", "x.py", stack)


# ---- hangs


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
    ranks.write(0, steps=3, phase="forward", peak_allocated_bytes=10 * gib, alloc_retries=0)
    ranks.write(1, steps=3, phase="forward", peak_allocated_bytes=11 * gib, alloc_retries=0)
    ranks.progress.poll()
    line = ranks.progress.line(12 * gib)
    assert "step 3 (forward)" in line and "rank 1: 11.00 GiB GPU peak of 12.00 GiB predicted" in line
    assert "!" not in line
    assert "! rank 1 is 10% above the prediction" in ranks.progress.line(10 * gib)
    leak = {"memory": "gpu", "bytes_per_step": gib / 1000, "growth_bytes": gib, "first_step": 1,
            "last_step": 9}  # fmt: skip
    ranks.write(0, steps=4, phase="forward", peak_allocated_bytes=10 * gib, alloc_retries=7, leaks=[leak])
    ranks.progress.poll()
    line = ranks.progress.line(12 * gib)
    assert "! rank 0 ran full 7 times" in line
    assert "! suspected leak of gpu memory, rank 0: 0.001 GiB a step" in line


@pytest.mark.parametrize("clock_moves", [0.0, -3600.0, 86_400.0])
def test_the_elapsed_time_does_not_follow_a_clock_that_is_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock_moves: float
) -> None:
    from types import SimpleNamespace as Bare

    from zerokit.launcher import conclude
    from zerokit.launcher.verdict.evidence import Launch, Seen, judge

    launch = Launch(argv=[], environment={}, cwd=tmp_path, run_dir=tmp_path, expected_ranks=1, local_ranks=1,
                    host="h")  # fmt: skip
    now, common = time.time(), {"rank": 0, "pid": 1, "schema": "zerokit.rank/1"}
    start = {**common, "type": "start", "time": now, "host": "h", "device": "cpu", "world_size": 1}
    end = {**common, "type": "end", "time": now + 60 + clock_moves, "state": "finished", "exit_code": 0}
    lines = "".join(json.dumps(record) + "\n" for record in (start, end))
    (tmp_path / "rank-00000.jsonl").write_text(lines)
    progress = Progress(tmp_path, 1, 60.0)
    progress.poll()
    progress.started_at -= 61
    progress.started_clock -= 61 + clock_moves
    ended = judge(launch, Seen(oom_kills_before=0, launcher_code=0), progress, {}, 0)
    prepared: Any = Bare(launch=Bare(run_dir=tmp_path, expected_ranks=1), plan=None, config=None)
    elapsed = conclude.build(prepared, ended)["elapsed_seconds"]
    assert elapsed == pytest.approx(61.0 if clock_moves else 60.0, abs=0.9)
