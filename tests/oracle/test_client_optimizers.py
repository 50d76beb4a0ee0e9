"""Optimizers that the script makes, under real DeepSpeed: every live byte counted.

Paged states are left out: they are in managed memory on GPUs alone.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.oracle.allocations import compare, run_ranks
from tests.oracle.expected import GATHER, SMALL, case
from tests.support.packages import needs

needs("deepspeed")

_ZERO: dict[int, dict[str, Any]] = {0: {}, 1: SMALL, 2: SMALL, 3: GATHER | {"sub_group_size": 60_000}}
_RUNS = {
    "bitsandbytes": [("adamw_bnb_8bit", stage) for stage in (0, 1, 2, 3)]
    + [("lion_8bit", 3), ("ademamix", 2), ("ademamix_8bit", 0), ("rmsprop_bnb", 0)],
    "schedulefree": [("schedule_free_adamw", 2), ("schedule_free_radam", 3), ("schedule_free_sgd", 1)],
}


def _case(optim: str, stage: int) -> dict[str, Any]:
    run = case(f"z{stage} {optim}", {"stage": stage} | _ZERO[stage], zero_allow_untested_optimizer=True)
    del run["deepspeed_config"]["optimizer"]
    return run | {"optim": optim}


@pytest.mark.slow
@pytest.mark.parametrize("package", _RUNS)
def test_every_live_byte_with_a_clients_optimizer(package: str, tmp_path: Path) -> None:
    if find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    runs = [_case(*run) for run in _RUNS[package]]
    answers = run_ranks(runs, tmp_path)
    wrong = [
        line
        for run in runs
        for rank, measured in enumerate(answers[run["name"]])
        for line in compare(run, rank, measured)
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.slow
def test_schedule_free_stops_where_deepspeed_steps_before_training(tmp_path: Path) -> None:
    if find_spec("schedulefree") is None:
        pytest.skip("schedulefree is not installed")
    run = _case("schedule_free_adamw", 0)
    (answer, *_) = run_ranks([run], tmp_path)[run["name"]]
    assert "initialize_optimizer_states" in answer["error"] and "not in train mode" in answer["error"]
