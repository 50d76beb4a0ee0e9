"""The next plan after an out-of-memory: what it may need, and a batch that the script fixes itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from zerokit import planner
from zerokit.emit import plan_file
from zerokit.errors import NothingFits
from zerokit.launcher import replan
from zerokit.launcher.backends import LaunchCommand
from zerokit.launcher.launch import Launch
from zerokit.launcher.options import LaunchOptions
from zerokit.launcher.placement import Devices, Placement
from zerokit.report.schema import RunReport
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


def test_what_fits_with_the_scripts_batch_comes_first(tmp_path: Path, plan: Mapping[str, Any]) -> None:
    """A little was lacking: another stage or offload gives it."""
    little = {**OOM, "allocated_bytes": 136 * GIB, "asked_bytes": 2 * GIB}
    found = replan.next_plan(launch_of(tmp_path, plan, typed=()), report_of(8, little), planner.plan_into)
    assert (found.plan.chosen["micro_batch"], found.to_give) == (8, None)


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
