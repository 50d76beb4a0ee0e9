"""What to change after an out-of-memory: what saves most of the predicted peak comes first."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support import reports
from tests.support.run_reports import ERROR, GIB, OOM, PLAN, shown, write_rank
from zerokit.report.oom_advice import ways_to_need_less
from zerokit.report.predicted import PredictedAgain
from zerokit.report.what_ran import chosen_as_ran

CHOSEN = {
    "micro_batch": 4, "gradient_accumulation": 2, "zero_stage": 0, "data_parallel": 1,
    "activation_checkpointing": "none", "offload_optimizer": "none", "offload_param": "none",
}  # fmt: skip
ADAPTERS = {"activations": 6.28 * GIB, "loss": 6.0 * GIB, "optimizer_states": 5.3 * (1 << 20)}
CHECKPOINTING, BATCH = "--checkpointing full", "--micro-batch 2 (gradient accumulation 4)"
LOSS = "--loss liger (the script must fuse head and loss: use_liger_kernel)"


def _plan(components: dict[str, float], **chosen: Any) -> dict[str, Any]:
    small = {"rank": 1, "peak_allocated_bytes": 1, "components": {"buffers": 1}}
    worst = {"rank": 0, "peak_allocated_bytes": sum(components.values()), "components": components}
    return {"chosen": {**CHOSEN, "estimate": {"per_rank": [small, worst]}, **chosen}, "request": {}}


@pytest.mark.parametrize(
    ("plan", "ways"),
    [
        (_plan(ADAPTERS), [BATCH, CHECKPOINTING, LOSS]),
        (_plan(ADAPTERS, activation_checkpointing="full", micro_batch=1), [LOSS]),
        (
            _plan(ADAPTERS, micro_batch=1, tensor_parallel=2),
            [CHECKPOINTING],
        ),  # no fused loss is modelled there
        ({**_plan(ADAPTERS, micro_batch=1), "request": {"loss": "liger"}}, [CHECKPOINTING]),
        (
            _plan({"optimizer_states": 30 * GIB, "activations": 2 * GIB}, zero_stage=1, data_parallel=8),
            ["--offload-optimizer cpu", CHECKPOINTING, BATCH],
        ),
        (
            _plan({"gradients": 9 * GIB}, zero_stage=1, data_parallel=8),
            ["--offload-optimizer cpu", "--zero 2"],
        ),
        (_plan({"parameters": 9 * GIB}, zero_stage=3), ["--offload-param cpu"]),
        ({**_plan({"optimizer_states": 9 * GIB}), "cluster": {"gpu": "cpu"}}, []),
    ],
)
def test_what_saves_most_comes_first_and_what_saves_nothing_not_at_all(
    plan: dict[str, Any], ways: list[str]
) -> None:
    assert ways_to_need_less(plan) == ways


def test_without_a_prediction_all_ways_are_named() -> None:
    assert ways_to_need_less({"chosen": CHOSEN}) == [CHECKPOINTING, BATCH, "--offload-optimizer cpu"]
    assert ways_to_need_less(None) == []


_WRONG_BATCH = {"activations": 600 * GIB, "loss": 250 * GIB, "parameters": 10 * GIB}
"""Of 128 sequences per GPU, on a card where the rank can have 140 GiB."""


def test_the_largest_batch_that_fits_comes_first_and_each_way_says_what_it_leaves() -> None:
    plan = _plan(_WRONG_BATCH, micro_batch=128, gradient_accumulation=1)
    total = sum(_WRONG_BATCH.values())
    first, *others = ways_to_need_less(plan, 140 * GIB / total)
    fits = "predicted peak about 116.2 GiB, fits 140.0 GiB"  # 10 GiB and an eighth of 850
    assert first == f"--micro-batch 16 (gradient accumulation 8): {fits}"
    assert others == [
        f"{CHECKPOINTING}: predicted peak about 380.0 GiB, alone not enough for 140.0 GiB",
        f"{LOSS}: predicted peak about 660.0 GiB, alone not enough for 140.0 GiB",
    ]


@pytest.mark.parametrize(
    ("micro_batch", "room", "first"),
    [
        (
            128,
            12 * GIB,
            "--micro-batch 1 (gradient accumulation 128): predicted peak about 16.6 GiB, alone not",
        ),
        (6, 500 * GIB, "--micro-batch 3 (gradient accumulation 2): predicted peak about 435.0 GiB, fits"),
        (6, 200 * GIB, "--micro-batch 1 (gradient accumulation 6): predicted peak about 151.7 GiB, fits"),
        (1, 500 * GIB, f"{CHECKPOINTING}: predicted peak about 380.0 GiB, fits"),
    ],
)
def test_a_batch_is_halved_and_the_global_one_stays(micro_batch: int, room: int, first: str) -> None:
    plan = _plan(_WRONG_BATCH, micro_batch=micro_batch, gradient_accumulation=1)
    assert ways_to_need_less(plan, room / sum(_WRONG_BATCH.values()))[0].startswith(first)


@pytest.mark.parametrize("predicts", [True, False])
def test_an_out_of_memory_is_explained_by_what_ran(tmp_path: Path, predicts: bool) -> None:
    """Neither the plan's figures nor remedies for its batch."""

    def again(plan: Any, found: Any) -> Any:
        chosen = chosen_as_ran(plan["chosen"], found)
        components = {"activations": 9 * GIB, "loss": 3 * GIB}
        entry = {"ranks": [0, 1], "peak_allocated_bytes": 12 * GIB, "phases": {}, "components": components}
        estimate = {**chosen["estimate"], "per_rank": [entry]}
        return PredictedAgain(plan={**plan, "chosen": {**chosen, "estimate": estimate}})

    for rank in range(2):
        engine = {"type": "engine", "rank": rank, "pid": 100 + rank, "micro_batch": 8, "batch_rows": 8}
        failed = [{**OOM, "rank": rank}, {**ERROR, "rank": rank}] if rank else []
        end = {"state": "failed", "exit_code": 1} if rank else {}
        write_rank(tmp_path, rank, extra=[engine, *failed], micro_steps=48, **end)
    plan = {"chosen": {**CHOSEN, "data_parallel": 2, **PLAN["chosen"]}, "request": {}}
    report = reports.report_of(tmp_path, 2, plan=plan, predict_again=again if predicts else None)
    failure = report["first_failure"]
    assert any(way.startswith("--micro-batch 4 ") for way in failure["try_next"]), failure["try_next"]
    expected = 12 * GIB if predicts else None
    assert failure["oom"].get("predicted_peak_allocated_bytes") == expected
    assert "predicted peak 31.00 GiB" not in shown(report)
