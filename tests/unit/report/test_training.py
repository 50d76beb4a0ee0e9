"""The rank that the others wait for, from made-up seconds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from zerokit.report.training import find_straggler, why_unknown


def tick(steps: int = 11, **work: tuple[float, float]) -> dict[str, Any]:
    return {"steps": steps, "work": {name: list(pair) for name, pair in work.items()}}


FAST = {"other": (0.1, 0.0), "forward": (1.0, 0.0), "backward": (4.0, 3.0)}
SLOW = {"other": (3.1, 0.0), "forward": (1.0, 0.0), "backward": (1.0, 0.0)}


def test_its_own_phase_and_what_the_others_wait() -> None:
    found = find_straggler({0: tick(**FAST), 1: tick(**SLOW), 2: tick(**FAST)})
    assert found is not None and (found.rank, found.phase) == (1, "other")
    assert abs(found.seconds - 0.3) < 1e-9
    assert str(found).startswith("the others wait for rank 1: 300 ms a step")
    assert "; its own work takes 2.4 times theirs; look at" in str(found)  # 5.1 s beside 5.1 s without 3.0


def test_nobody_waits_or_nobody_tells() -> None:
    assert find_straggler({0: tick(**FAST), 1: tick(**FAST)}) is None
    assert find_straggler({0: tick(steps=3, **FAST), 1: tick(steps=3, **SLOW)}) is None
    assert find_straggler({0: {"steps": 9}, 1: {"steps": 9}}) is None
    assert find_straggler({0: tick(**FAST), 1: {"steps": 9, "work": {"other": ["x", 1]}}}) is None
    assert find_straggler({0: tick(**SLOW)}) is None


def test_what_one_rank_saves_for_all_is_none_of_a_step():
    quick = {"other": (0.1, 0.0), "forward": (1.0, 0.0), "backward": (2.0, 0.0)}
    saves = {**quick, "save": (5.0, 0.0)}
    waits = {**quick, "other": (5.1, 5.0)}  # for that, at a barrier
    assert find_straggler({0: tick(**saves), 1: tick(**waits)}) is None
    assert find_straggler({0: tick(**saves), 1: tick(**waits), 2: tick(**waits)}) is None
    held_up = {**saves, "backward": (5.0, 3.0)}  # by a rank that is slow beside
    slow = {**waits, "forward": (4.0, 0.0)}
    found = find_straggler({0: tick(**held_up), 1: tick(**slow)})
    assert found is not None and (found.rank, found.phase, found.seconds) == (1, "forward", 0.3)
    both = {**quick, "save": (5.0, 0.0)}
    assert find_straggler({0: tick(**both), 1: tick(**both)}) is None


def sampled(**works: dict[str, tuple[float, float]]) -> dict[str, Any]:
    """By step, written as in ``s8``."""
    steps = {step[1:]: {name: list(pair) for name, pair in work.items()} for step, work in works.items()}
    return {"steps": 9, "sampled_work": steps}


def test_gpus_are_compared_in_the_steps_that_all_sampled() -> None:
    quick = {"forward": (0.1, 0.0), "backward": (0.4, 0.2)}
    slow = {"forward": (0.3, 0.0), "backward": (0.2, 0.0)}
    found = find_straggler({
        0: sampled(s4=quick, s8=quick, s16=quick, s24=quick),
        1: sampled(s8=slow, s12=quick, s16=slow, s24=slow),
    })  # fmt: skip
    assert found is not None and (found.rank, found.phase) == (1, "forward")
    assert abs(found.seconds - 0.2) < 1e-9 and abs(found.share - 0.4) < 1e-9


def test_gpus_with_too_little_in_common_or_slow_by_turns() -> None:
    quick, slow = {"backward": (0.5, 0.3)}, {"backward": (0.5, 0.0)}
    few = {0: sampled(s4=quick, s8=quick, s5=quick), 1: sampled(s4=slow, s8=slow, s12=slow)}
    assert find_straggler(few) is None
    turns = {0: sampled(s4=quick, s8=slow, s12=quick), 1: sampled(s4=slow, s8=quick, s12=slow)}
    assert find_straggler(turns) is None
    one_is_silent = {0: sampled(s4=quick, s8=quick, s12=quick), 1: {"steps": 12}}
    assert find_straggler(one_is_silent) is None


def test_why_it_was_not_measured() -> None:
    refused = {"steps": 9, "sampling": {"why_not": "steps are captured as CUDA graphs"}}
    assert why_unknown({0: {"steps": 9}, 1: refused}) == (
        "who waits for whom was not measured: steps are captured as CUDA graphs (rank 1)"
    )
    assert why_unknown({0: {"sampling": {"every": 4, "cost_seconds": 0.01}}, 1: {"sampling": "?"}}) is None


DATA = Path(__file__).parents[3] / "benchmarks" / "measure" / "data"
NARROW, WIDE = "stragglers-nccl-2gpu.jsonl", "stragglers-nccl-2gpu-wide.jsonl"


@pytest.mark.parametrize(
    ("name", "case", "phase", "seconds"),
    [
        (NARROW, "loader:2", "other", (0.08, 0.1)),
        (NARROW, "loader:3", "other", (0.08, 0.1)),
        (NARROW, "host:1", "forward", (0.08, 0.1)),
        (NARROW, "tokens:2", None, None),  # hidden behind a slower host
        (NARROW, "none:1", None, None),
        (NARROW, "none:2", None, None),
        (NARROW, "none:3", None, None),
        (WIDE, "tokens:2", "backward", (0.21, 0.225)),  # the script's clock: 217 ms
        (WIDE, "tokens:3", "backward", (0.19, 0.21)),  # 207 ms
        (WIDE, "loader:3", "other", (0.078, 0.086)),  # 80 ms
        (WIDE, "none:2", None, None),
        (WIDE, "none:3", None, None),
    ],
)
def test_what_two_gpus_measured(
    name: str, case: str, phase: str | None, seconds: tuple[float, float] | None
) -> None:
    """Of two H200s: rank 1 slept 80 ms a step or had four times the tokens, or neither was slow."""
    rows = {row["case"]: row for row in map(json.loads, (DATA / name).read_text().splitlines())}
    ticks = {rank: {"steps": 20, "sampled_work": work} for rank, work in enumerate(rows[case]["raw"])}
    found = find_straggler(ticks)
    if seconds is None:
        assert found is None
    else:
        assert found is not None and (found.rank, found.phase) == (1, phase)
        assert seconds[0] <= found.seconds <= seconds[1]
