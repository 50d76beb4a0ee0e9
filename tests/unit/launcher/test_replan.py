"""The next plan after an out-of-memory: what it may need, and a batch that the script fixes itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import zerokit
from zerokit import planner
from zerokit.domain.job import Lora
from zerokit.emit import plan_file
from zerokit.errors import NothingFits
from zerokit.launcher import replan
from zerokit.launcher.backends import LaunchCommand
from zerokit.launcher.launch import Launch
from zerokit.launcher.options import LaunchOptions
from zerokit.launcher.placement import Devices, Placement
from zerokit.launcher.replan import predict_again, predictor
from zerokit.report.schema import Difference, RunReport
from zerokit.script.entry_points import Target

GIB = 1 << 30
CARD = int(139.8 * GIB)
OPTIONS = {"model": "llama-3.2-1b", "gpus": "2", "gpu": "h200", "seq_len": "4096", "checkpointing": "none"}
OOM = {
    "asked_bytes": 60 * GIB, "device_free_bytes": 4 * GIB, "device_total_bytes": CARD,
    "allocated_bytes": 120 * GIB, "reserved_bytes": 133 * GIB,
}  # fmt: skip
TYPED = ("--per_device_train_batch_size", "128", "--gradient_accumulation_steps", "1")


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Any]:
    """For 8 sequences per GPU."""
    folder = tmp_path_factory.mktemp("plan")
    planner.plan_into({**OPTIONS, "micro_batch": "8", "gradient_accumulation": "1"}, folder)
    found = plan_file.read(folder)
    return {"request": found.request, "chosen": found.chosen, "cluster": {"gpu": "h200", "nodes": 1}}


def launch_of(
    tmp_path: Path, plan: Mapping[str, Any], *, style: str = "trainer", typed: tuple[str, ...] = TYPED
) -> Launch:
    target = Target(script="train.py", module=None, arguments=typed)
    return Launch(
        options=LaunchOptions(target=target),
        placement=Placement(devices=Devices(kind="cuda", ranks=2, gpu_indexes=(0, 1), why=""), port=29500),
        command=LaunchCommand(
            argv=[], set_variables={"ZEROKIT_DEVICE": "cuda"}, unset_variables=[], files={}
        ),
        environment={},
        cwd=tmp_path,
        run_dir=tmp_path,
        host="here",
        plan=plan,
        planned_ranks=2,
        style=style,
    )


def report_of(micro_batch: int, oom: Mapping[str, Any]) -> RunReport:
    engine = {"micro_batch": micro_batch, "gradient_accumulation": 1, "zero_stage": None}
    ranks = [{"rank": rank, "host": "here", "state": "failed", "engine": engine} for rank in range(2)]
    failure = {"rank": 0, "host": "here", "kind": "oom", "oom": {"memory": "gpu", **oom}}
    return RunReport.model_validate(
        {"schema": "zerokit.report/1", "outcome": "oom", "exit_code": 10, "expected_ranks": 2,
         "ranks": ranks, "first_failure": failure}
    )  # fmt: skip


def test_a_batch_that_the_script_fixes_is_made_smaller_and_said(
    tmp_path: Path, plan: Mapping[str, Any]
) -> None:
    """The script ran 128 where its plan has 8, and no other plan fits 128."""
    found = replan.next_plan(launch_of(tmp_path, plan), report_of(128, OOM), planner.plan_into)
    micro, accumulation = found.plan.chosen["micro_batch"], found.plan.chosen["gradient_accumulation"]
    assert 1 < micro < 128 and micro * accumulation == 128  # the same global batch
    assert found.plan.chosen["estimate"]["min_vram_bytes"] <= found.limit_bytes <= CARD
    assert found.to_give == (
        f"--per_device_train_batch_size {micro} --gradient_accumulation_steps {accumulation}"
    )
    assert found.describe().to_give == found.to_give and found.to_give in str(found)


def test_a_script_without_such_options_is_told_in_words(tmp_path: Path, plan: Mapping[str, Any]) -> None:
    launch = launch_of(tmp_path, plan, style="accelerate", typed=())
    found = replan.next_plan(launch, report_of(128, OOM), planner.plan_into)
    micro = found.plan.chosen["micro_batch"]
    assert found.to_give == f"a batch of {micro} per GPU and gradient accumulation {128 // micro}"


@pytest.mark.parametrize("follows", ["added", "read"])
def test_a_script_that_takes_its_batch_from_the_plan_needs_nothing(
    tmp_path: Path, plan: Mapping[str, Any], follows: str
) -> None:
    launch = launch_of(tmp_path, plan, typed=())
    launch = (
        replace(launch, added_arguments=TYPED)
        if follows == "added"
        else replace(launch, micro_batch_free=True)
    )
    assert replan.next_plan(launch, report_of(128, OOM), planner.plan_into).to_give is None


@pytest.mark.parametrize("shared", [1, 2])
def test_a_plan_for_fsdp2_is_made_again_for_it(tmp_path: Path, shared: int) -> None:
    options = {
        **OPTIONS, "engine": "fsdp2", "cp": str(shared), "micro_batch": "8", "gradient_accumulation": "1"
    }  # fmt: skip
    planner.plan_into(options, tmp_path / "plan")
    first = plan_file.read(tmp_path / "plan")
    plan = {"request": first.request, "chosen": first.chosen, "cluster": {"gpu": "h200", "nodes": 1}}
    engine = {"engine": "fsdp2", "batch_rows": 8, "batch_columns": 4096 // shared}
    report = report_of(8, OOM)
    report = report.model_copy(
        update={"ranks": [rank.model_copy(update={"engine": engine}) for rank in report.ranks]}
    )
    launch = launch_of(tmp_path, plan, style="accelerate", typed=())
    found = replan.next_plan(launch, report, planner.plan_into)
    assert (found.plan.engine, found.plan.chosen["context_parallel"]) == ("fsdp2", shared)
    assert found.plan.chosen["estimate"]["min_vram_bytes"] <= found.limit_bytes < CARD
    assert "bucket" not in replan.changes(first.chosen, found.plan.chosen)


def test_what_fits_with_the_scripts_batch_comes_first(tmp_path: Path, plan: Mapping[str, Any]) -> None:
    """A little was lacking: another stage or offload gives it."""
    little = {**OOM, "allocated_bytes": 136 * GIB, "asked_bytes": 2 * GIB}
    found = replan.next_plan(launch_of(tmp_path, plan, typed=()), report_of(8, little), planner.plan_into)
    assert (found.plan.chosen["micro_batch"], found.to_give) == (8, None)


def test_ways_to_fit_are_those_of_estimate(tmp_path: Path, plan: Mapping[str, Any]) -> None:
    """Each fits what a next plan may need, by its own figure; nothing is said of a rehearsed strategy."""
    launch, report = launch_of(tmp_path, plan), report_of(8, OOM)
    limit = replan.next_plan(launch, report, planner.plan_into).limit_bytes
    ways = [way.partition(":") for way in replan.ways_to_fit(launch, report)]
    assert [way for way, _, _ in ways] == [
        "--checkpointing full", "--micro-batch 4 --gradient-accumulation 2"
    ]  # fmt: skip
    assert all(float(words.split(" GiB required")[0].split()[-1]) * GIB < limit for _, _, words in ways)
    rehearsed = {**plan, "chosen": {**plan["chosen"], "rehearsed": {}}}
    assert replan.ways_to_fit(launch_of(tmp_path, rehearsed), report) == []
    assert replan.ways_to_fit(replace(launch, plan=None), report) == []


@pytest.mark.parametrize("tells", [True, False])
def test_no_more_is_planned_for_than_the_gpu_has(
    tmp_path: Path, plan: Mapping[str, Any], tells: bool
) -> None:
    asked: list[dict[str, Any]] = []

    def nothing_fits(options: Mapping[str, Any], folder: Path) -> None:
        asked.append(dict(options))
        raise NothingFits("nothing fits")

    with pytest.raises(replan.NoNextPlan, match=r"with this run's global batch, .*: nothing fits"):
        oom = OOM if tells else {"device_total_bytes": CARD}
        replan.next_plan(launch_of(tmp_path, plan), report_of(128, oom), nothing_fits)
    assert [one["vram"] for one in asked] == [f"{CARD}B"] * 2
    assert [one.get("micro_batch") for one in asked] == ["128", None]
    assert {one["global_batch"] for one in asked} == {"256"}


# ---- what is predicted for a run that did another job than its plan's

JOB = {
    "model": "llama-3.2-1b", "gpus": 2, "gpu": "h200", "zero": 2,
    "offload_optimizer": "none", "offload_param": "none",
}  # fmt: skip

SAME = {"reduce_bucket": "100m", "overlap_comm": "off"}
"""What a search would choose otherwise for other trained parameters."""


def planned(folder: Path, **job: Any) -> dict[str, Any]:
    """The plan as a launch reads it back from its folder."""
    zerokit.plan(**JOB, **job, out=folder)
    read = plan_file.read(str(folder))
    return {"request": read.request, "chosen": read.chosen}


def ran(option: str | None, value: object) -> Difference:
    """One difference."""
    lora = value if isinstance(value, Lora) else None
    return Difference(what=str(option), planned="?", ran=str(value), option=option, text="", lora=lora)


def test_a_longer_batch_with_accumulation_gets_the_estimate_of_a_plan_for_it(tmp_path: Path) -> None:
    plan = planned(tmp_path / "a", seq_len=1024, micro_batch=1, global_batch=2, checkpointing="none")
    wanted = planned(tmp_path / "b", seq_len=2048, micro_batch=4, global_batch=16, checkpointing="none")
    again = predict_again(
        plan, [ran("seq-len", 2048), ran("micro-batch", 4), ran("gradient-accumulation", 2)]
    )
    assert again.plan is not None
    expected, got = wanted["chosen"]["estimate"], again.plan["chosen"]["estimate"]
    assert got["peak_allocated_bytes"] == expected["peak_allocated_bytes"]
    assert got["peak_allocated_bytes"] > 2 * plan["chosen"]["estimate"]["peak_allocated_bytes"]
    assert got["step_seconds"] == pytest.approx(expected["step_seconds"])


def test_checkpointing_that_the_script_left_off_is_predicted_without_it(tmp_path: Path) -> None:
    plan = planned(tmp_path / "a", seq_len=2048, micro_batch=2, global_batch=4, checkpointing="full")
    without = planned(tmp_path / "b", seq_len=2048, micro_batch=2, global_batch=4, checkpointing="none")
    again = predict_again(plan, [ran("checkpointing", "none")])
    assert again.plan is not None
    expected = without["chosen"]["estimate"]["peak_allocated_bytes"]
    assert again.plan["chosen"]["estimate"]["peak_allocated_bytes"] == expected


@pytest.mark.parametrize(
    ("asked", "differing", "ran_as"),
    [
        ({"gradient_accumulation": 2, "micro_batch": 1}, ("gradient-accumulation", 4),
         {"gradient_accumulation": 4, "micro_batch": 1}),
        ({"reduce_bucket": "100m", "overlap_comm": "off", "micro_batch": 1}, ("seq-len", 2048),
         {"reduce_bucket": "100m", "overlap_comm": "off", "micro_batch": 1, "seq_len": 2048}),
        ({"micro_batch": 1}, ("optimizer", "SGD"), {"micro_batch": 1, "optimizer": "SGD"}),
        ({"micro_batch": 1, "method": "lora", "lora_rank": 8}, ("method", "all"), {"micro_batch": 1}),
        ({"micro_batch": 1, **SAME}, ("method", Lora(rank=8)),
         {"micro_batch": 1, "method": "lora", "lora_rank": 8, **SAME}),
        ({"micro_batch": 1, "method": "lora", "lora_rank": 8}, ("method", Lora(rank=64)),
         {"micro_batch": 1, "method": "lora", "lora_rank": 64}),
    ],
    ids=["a given accumulation", "given buckets", "another optimizer", "all weights for adapters",
         "adapters for all weights", "adapters of another rank"],
)  # fmt: skip
def test_what_was_asked_for_does_not_hinder_it(
    tmp_path: Path, asked: dict[str, Any], differing: tuple[str, object], ran_as: dict[str, Any]
) -> None:
    job = {"seq_len": 1024, "checkpointing": "none"}
    plan, wanted = planned(tmp_path / "a", **(job | asked)), planned(tmp_path / "b", **(job | ran_as))
    again = predict_again(plan, [ran(*differing)])
    assert again.plan is not None
    expected = wanted["chosen"]["estimate"]["peak_allocated_bytes"]
    assert again.plan["chosen"]["estimate"]["peak_allocated_bytes"] == expected


@pytest.mark.parametrize(
    "difference",
    [
        ran(None, 2),
        ran("model", 7_000_000_000),
        ran("method", 851_968),
        ran("seq-len", "many"),
        ran("optimizer", "OfMyOwn"),
    ],
    ids=["a second engine", "another model", "adapters", "no number", "an unknown optimizer"],
)
def test_what_a_plan_cannot_say_is_not_predicted(tmp_path: Path, difference: Difference) -> None:
    plan = planned(tmp_path / "a", seq_len=1024, micro_batch=1, global_batch=2)
    assert predict_again(plan, [ran("micro-batch", 2), difference]).plan is None


def test_a_broken_plan_is_not_predicted() -> None:
    assert predict_again({"request": True, "chosen": {}}, [ran("micro-batch", 2)]).plan is None


def test_only_a_trainer_is_known_to_feed_more_rows_than_its_batch() -> None:
    pairs = [None, {"micro_batch": 2, "batch_rows": 4}]
    assert predictor("trainer", pairs) is None and predictor("raw", pairs) is not None
    assert predictor("trainer", [{"micro_batch": 2, "batch_rows": 2}, {"batch_rows": 4}]) is not None
    row = {"micro_batch": 2, "batch_rows": 1, "batch_columns": 4096}
    assert predictor("trainer", [row]) is not None
