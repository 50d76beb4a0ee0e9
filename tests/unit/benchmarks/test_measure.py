"""The measuring kit: cases made by the planner, runs through ``zerokit launch``, tables."""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from benchmarks.measure import case as cases
from benchmarks.measure import host as hosts
from benchmarks.measure import launch, limits, planned, quality
from benchmarks.measure.rows import measured_ids
from benchmarks.measure.trials import CARDS_MIB, Trial

ROOT = Path(__file__).resolve().parents[3]
GIB = 2**30


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", *map(str, arguments)], cwd=ROOT, capture_output=True, text=True, check=False
    )


@pytest.fixture
def tiny() -> dict[str, Any]:
    """A case of two CPU ranks, with a prediction as ``predict`` writes it."""
    return {
        "id": "tiny",
        "hf_config": json.loads((ROOT / "examples" / "tiny-llama.json").read_text()),
        "world_size": 2,
        "seq_len": 32,
        "steps": 2,
        "gate": True,
        "expected": {
            "peak_allocated_bytes": [100 << 20, 90 << 20],
            "phases": {"init": 1, "forward": 2, "backward": 3, "step": 4},
            "peak_phase": "backward",
            "host_bytes_per_node": 1 << 30,
            "min_vram_bytes": 2 << 30,
        },
        "deepspeed_config": {
            "zero_optimization": {"stage": 1},
            "bf16": {"enabled": True},
            "optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "torch_adam": True}},
        },
    }


@pytest.mark.slow
def test_two_cpu_ranks_through_zerokit_launch(tiny: dict[str, Any], tmp_path: Path) -> None:
    path, rows = tmp_path / "cases.json", tmp_path / "rows.jsonl"
    path.write_text(json.dumps([tiny, tiny | {"id": "again", "gate": False}]))
    rows.write_text(json.dumps({"id": "again"}) + "\n")  # a row from an interrupted measurement

    done = run("benchmarks.measure.launch", path, "-o", rows, "--device", "cpu", "--at-once", 2, "--logs", 20)

    assert done.returncode == 0, done.stdout + done.stderr
    old, row = map(json.loads, rows.read_text().splitlines())
    assert old == {"id": "again"}  # not run again
    assert row["ok"] and row["launched"]["outcome"] == "ok", row
    assert row["launched"]["steps"] == [2, 2]
    assert {"init", "forward", "backward", "step"} <= set(row["launched"]["phases"][0])
    assert row["expected"] == tiny["expected"]
    assert len(row["step_seconds_rank0"]) == 2 and row["params"] > 0
    assert all(rss > 100 << 20 for rss in row["host_max_rss_bytes"])
    assert row["peak_allocated_bytes"] == [None, None]  # CPU ranks have no such allocator


def test_the_list_runs_nothing(tiny: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "cases.json").write_text(json.dumps([tiny]))
    done = run("benchmarks.measure.launch", tmp_path / "cases.json", "-o", tmp_path / "rows.jsonl", "--list")
    assert done.returncode == 0 and "tiny" in done.stdout
    assert not (tmp_path / "rows.jsonl").exists()


def test_a_trial_stands_at_the_limit_and_one_notch_beyond(tmp_path: Path) -> None:
    trial = Trial(model="qwen2.5-0.5b", card=16, grow="seq")

    fits, beyond = limits.prepare(trial, tmp_path)

    card = CARDS_MIB[16] << 20
    assert fits["expected"]["min_vram_bytes"] <= card < beyond["expected"]["min_vram_bytes"]
    assert beyond["seq_len"] - fits["seq_len"] == limits.SEQUENCE_NOTCH
    assert fits["deepspeed_config"] == beyond["deepspeed_config"]
    assert fits["cap_bytes"] == beyond["cap_bytes"] < card
    assert json.loads((tmp_path / "plans" / trial.name / "ds_config.json").read_text())
    cases.complete(fits), cases.complete(beyond)  # what the runner reads


def test_a_beyond_case_by_micro_batch_is_consistent_for_deepspeed(tmp_path: Path) -> None:
    fits, beyond = limits.prepare(Trial(model="gpt2", card=16), tmp_path)
    config = beyond["deepspeed_config"]
    assert beyond["micro_batch"] == fits["micro_batch"] + 1 == config["train_micro_batch_size_per_gpu"]
    assert config["train_batch_size"] == beyond["micro_batch"] * beyond["world_size"]


def _limit_row(kind: str, *, peak: float | None, oom: bool = False) -> dict[str, Any]:
    return {
        "about": {"trial": "t", "kind": kind},
        "cap_bytes": 10 * GIB,
        "ok": not oom,
        "oom": oom,
        "peak_allocated_bytes": [None if peak is None else round(peak * GIB)],
        "peak_reserved_bytes": [None],
        "expected": {"peak_allocated_bytes": [9 * GIB]},
    }


@pytest.mark.parametrize(
    ("fits", "beyond", "good"),
    [
        (_limit_row("fits", peak=9.5), _limit_row("beyond", peak=None, oom=True), True),
        (_limit_row("fits", peak=9.5), _limit_row("beyond", peak=9.8), True),
        (_limit_row("fits", peak=9.5), _limit_row("beyond", peak=9.6), False),  # 4 % left unused
        (_limit_row("fits", peak=None, oom=True), _limit_row("beyond", peak=None, oom=True), False),
    ],
)
def test_the_verdict_on_a_trial(fits: dict[str, Any], beyond: dict[str, Any], good: bool) -> None:
    assert limits.table([fits, beyond])[1] is good


def _quality_row(
    name: str, seconds: float, peak_gib: float, planned_for: dict[str, int], cap_gib: float | None = None
) -> dict[str, Any]:
    return {
        "id": f"quality.job.00.{name}",
        "about": {"comparison": "job", "cards": [16, 40], "planned": planned_for},
        "world_size": 1,
        "deepspeed_config": {
            "train_micro_batch_size_per_gpu": sum(map(ord, name)),
            "bf16": {"enabled": True},
        },
        "ok": True,
        "oom": False,
        "cap_bytes": None if cap_gib is None else round(cap_gib * GIB),
        "peak_allocated_bytes": [round(peak_gib * GIB)],
        "step_seconds_rank0": [9.0] * quality.WARM_UP + [seconds] * 3,
        "expected": {"step_seconds": 1.0},
    }


def test_regret_counts_only_what_the_card_holds() -> None:
    rows = [
        _quality_row("choice", 1.2, 13.0, {"16": 1}, cap_gib=14.0),
        _quality_row("second", 1.1, 13.0, {"16": 2}),
        _quality_row("fast", 1.0, 30.0, {"40": 1}, cap_gib=37.0),
        _quality_row("huge", 0.5, 100.0, {}),
    ]
    small, large = quality.verdicts(rows)
    assert (small.card, small.tried) == (16, 2)
    assert small.regret == pytest.approx(1.2 / 1.1 - 1) and small.regret_of_three == 0
    assert (large.card, large.tried, large.regret) == (40, 3, 0)


def test_strategies_of_a_job_are_run_once_each(tmp_path: Path) -> None:
    small = quality.Comparison(
        name="small", model="qwen2.5-0.5b", cards=(16, 24), gpus=2,
        by_hand=({"zero": 3, "micro-batch": 1, "checkpointing": "full"},),
    )  # fmt: skip
    result = quality.prepare(small, tmp_path)
    keys = {json.dumps([case["deepspeed_config"], case["activation_checkpointing"]]) for case in result}
    assert len(keys) == len(result) == len({case["id"] for case in result})
    for card in ("16", "24"):
        (choice,) = [case for case in result if case["about"]["planned"].get(card) == 1]
        assert choice["cap_bytes"] <= CARDS_MIB[int(card)] << 20
    assert all(case["gate"] and case["expected"]["step_seconds"] for case in result)
    assert all(max(case["expected"]["peak_allocated_bytes"]) < case["cap_bytes"] for case in result)


@pytest.mark.slow
@pytest.mark.parametrize("comparison", quality.COMPARISONS, ids=lambda comparison: comparison.name)
def test_a_dozen_strategies_of_every_job_can_be_run(comparison: quality.Comparison, tmp_path: Path) -> None:
    result = quality.prepare(comparison, tmp_path)
    assert (
        len({json.dumps([case["deepspeed_config"], case["activation_checkpointing"]]) for case in result})
        >= 12
    )


def test_a_choice_that_did_not_run_is_no_choice() -> None:
    failed = _quality_row("choice", 1.0, 13.0, {"16": 1}, cap_gib=14.0) | {"ok": False}
    (small,) = quality.verdicts([failed, _quality_row("second", 1.1, 13.0, {"16": 2})])
    assert math.isinf(small.regret) and small.regret_of_three == 0


def test_one_gated_run_at_a_time(tmp_path: Path) -> None:
    def waiting(name: str) -> hosts.Running:
        folder = tmp_path / name
        folder.mkdir()
        case = {"id": name, "gate": True, "world_size": 1, "cap_bytes": 10 * GIB}
        return hosts.Running(case, (0,), 0, folder, [], waiting=True)

    first, second = waiting("first"), waiting("second")
    gates = launch.Gates(room_bytes=40 * GIB)
    (second.folder / "ready-0").touch()
    gates([first, second])
    assert (second.folder / "go").exists() and not second.waiting
    (first.folder / "ready-0").touch()
    gates([first, second])
    assert first.waiting and not (first.folder / "go").exists()
    (second.folder / "done-0").touch()
    launch.Gates(room_bytes=20 * GIB)([first, second])  # the second still holds what the first needs
    assert first.waiting
    gates([first, second])
    assert (first.folder / "go").exists()


class _Sleeper:
    """A route whose runs sleep, as long as the case says."""

    grace_seconds = 0.0

    def start(self, case: hosts.Case, gpus: Any, folder: Path) -> list[subprocess.Popen[bytes]]:
        return [subprocess.Popen(["sleep", str(case["seconds"])], start_new_session=True)]

    def row(self, run: hosts.Running) -> dict[str, Any]:
        return {"id": run.case["id"], "ok": True, "oom": False, "peak_allocated_bytes": []}


def test_the_clock_stops_new_runs_and_then_the_running(tmp_path: Path) -> None:
    options = argparse.Namespace(
        device="cpu", host_gib=8, at_once=1, run_seconds=60, seconds=3, start_seconds=0.5, logs=0,
        output=tmp_path / "rows.jsonl",
    )  # fmt: skip
    plain = {
        "world_size": 1,
        "expected": None,
        "alone": False,
        "cap_bytes": 1,
        "alloc_conf": None,
        "gate": False,
    }
    todo = [plain | {"id": name, "seconds": seconds} for name, seconds in (("a", 0), ("b", 60), ("c", 0))]
    began = time.monotonic()

    left = hosts.measure_all(todo, hosts.Host(_Sleeper(), options), options)

    assert left == 2  # b was stopped, c never started
    assert measured_ids(options.output) == {"a"}
    assert time.monotonic() - began < 30


def test_the_card_leaves_the_allocator_less_than_its_memory() -> None:
    whole, part = (planned.card(mib) for mib in (143771, 24564))
    config = {"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": True}}
    for gpu in (whole, part):
        alone, four = (planned.allocator_limit(gpu, config, ranks) for ranks in (1, 4))
        assert four < alone < gpu.vram_bytes < gpu.driver_vram_bytes
    assert whole.vram_bytes - part.vram_bytes == (143771 - 24564) << 20


def test_the_measured_limit_reaches_the_ranks(tiny: dict[str, Any], tmp_path: Path) -> None:
    route = launch.Launched(argparse.Namespace(device="cuda", launcher="deepspeed", at_once=4))
    case = cases.complete(tiny | {"cap_bytes": 5 * GIB})
    told = case | {"limit_bytes": hosts.limit_bytes(case)}
    env = route.environment(told, (2, 3), tmp_path)
    assert env["MEASURE_LIMIT_BYTES"] == str(5 * GIB) and env["CUDA_VISIBLE_DEVICES"] == "2,3"
    assert "PYTORCH_CUDA_ALLOC_CONF" not in env or "PYTORCH_CUDA_ALLOC_CONF" in os.environ
