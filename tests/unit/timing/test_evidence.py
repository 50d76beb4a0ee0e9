"""What a step time says of hardware that it was never compared on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import zerokit
from zerokit.catalog import gpus, models
from zerokit.cli import cli
from zerokit.domain.deepspeed_settings import DeepSpeedSettings
from zerokit.domain.families import from_config
from zerokit.domain.hardware import Cluster
from zerokit.domain.job import Job
from zerokit.domain.strategy import Strategy
from zerokit.planner.page import PlanPage, Survey, plan_page
from zerokit.timing.evidence import measured_on_no_machine
from zerokit.timing.step_time import TimeModel

JOB: dict[str, Any] = {"model": "llama-3.2-1b", "micro_batch": 1}
ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize(
    ("gpu", "count", "expected"),
    [
        ("h200", 8, []),
        ("h200", 16, ["several nodes"]),
        ("a100-80gb", 16, []),
        ("mi300x", 8, ["mi300x"]),
        ("b200", 16, ["b200", "several nodes"]),
    ],
)
def test_the_json_names_what_was_measured_on_no_machine(gpu: str, count: int, expected: list[str]) -> None:
    for body in (
        zerokit.estimate(**JOB, gpu=gpu, gpus=count, zero=2).to_dict(),
        zerokit.plan(**JOB, gpu=gpu, gpus=count, all_gpus=True).to_dict()["chosen"]["estimate"],
    ):
        assert body["measured_on_no_machine"] == expected


@pytest.mark.parametrize(("degree", "expected"), [(8, ()), (16, ("tensor parallel across nodes",))])
def test_tensor_parallel_across_nodes_was_never_measured(degree: int, expected: tuple[str, ...]) -> None:
    cluster = Cluster(gpu=gpus.load("a100-80gb"), gpus=64, nodes=8)
    shape = from_config(models.load("gpt-3-175b").hf_config, name="gpt-3-175b")
    strategy = Strategy(settings=DeepSpeedSettings(), data_parallel=64 // degree, tensor_parallel=degree)
    assert measured_on_no_machine(TimeModel(shape, Job(seq_len=2048), cluster), strategy) == expected


def test_it_stands_beside_the_figure_in_text_and_on_the_page(tmp_path: Path) -> None:
    words = "No step time was ever measured on: b200; nor on several nodes"
    asked = ["--model", "llama-3.2-1b", "--gpu", "b200", "--gpus", "16", "--all-gpus"]
    shown = CliRunner().invoke(cli, ["plan", *asked, "--out", str(tmp_path)], catch_exceptions=False)
    assert f"\n{words}\n" in shown.stdout.partition("\nStep: ")[2]
    plan = zerokit.plan(model="llama-3.2-1b", gpu="b200", gpus=16, all_gpus=True)
    assert words in plan_page(plan, PlanPage(folder="x", written_at=0.0), others=Survey())
    shown = CliRunner().invoke(cli, ["size", "--model", "llama-3.2-1b", "--gpu", "b200", "--explain"])
    assert "No step time was ever measured on: b200 (" in shown.stdout
    shown = CliRunner().invoke(cli, ["estimate", "--model", "llama-3.2-1b", "--gpu", "h200", "--gpus", "16"])
    assert "measured on: several nodes with h200\n" in shown.stdout  # of A100 and H100 they were


def test_gpus_with_measured_times_are_those_of_the_benchmarks() -> None:
    from benchmarks.published_runs import FSDP_FILES

    rows = (ROOT / "tests/data/h200/h200-deepspeed.jsonl").read_text().splitlines()
    assert all(json.loads(row) for row in rows)
    for gpu in (*FSDP_FILES, "h200"):
        assert zerokit.estimate(**JOB, gpu=gpu, gpus=1).to_dict()["measured_on_no_machine"] == []


def test_a_card_that_nobody_named_is_said_to_be_assumed(tmp_path: Path) -> None:
    asked = ["plan", "--model", "llama-3.2-1b", "--gpus", "2", "--out", str(tmp_path), "--vram"]
    told = "\nNo step time was ever measured on: rtx-4090"
    shown = CliRunner().invoke(cli, [*asked, "24GiB"])
    assert f"{told} (its speeds are assumed)\n" in shown.stdout
    shown = CliRunner().invoke(cli, [*asked, "24GiB", "--gpu", "rtx-4090"])
    assert f"{told}\n" in shown.stdout
