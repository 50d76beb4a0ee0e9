"""Step times as ranges, narrowed by what was measured; and hardware that they were never compared on."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import zerokit
from tests.support.requests import request_for
from zerokit.catalog import gpus, models
from zerokit.cli import cli
from zerokit.domain.deepspeed_settings import DeepSpeedSettings
from zerokit.domain.families import from_config
from zerokit.domain.hardware import Cluster
from zerokit.domain.job import Job
from zerokit.domain.strategy import Strategy
from zerokit.planner import documents
from zerokit.planner.page import PlanPage, Survey, plan_page
from zerokit.search.plan import Plan, make_plan, make_space
from zerokit.search.space import Pins
from zerokit.timing.constants import Calibration, JobFactors
from zerokit.timing.host_speed import FASTEST, SLOWEST
from zerokit.timing.ranges import KERNELS, measured_on_no_machine, step_range, unmeasured
from zerokit.timing.step_time import TimeModel

SMALL = Pins(zero_stage=3, micro_batch=1, gradient_accumulation=1, checkpointing="none")


def small(calibration: Calibration | None = None) -> Plan:
    request = request_for("llama-3.2-1b", "h200", 2, job=Job(seq_len=2048), pins=SMALL)
    return make_plan(replace(request, calibration=calibration))


def test_a_step_that_the_host_paces_spans_the_hosts_that_were_measured() -> None:
    """Kernels are launched one after the other: a host twice as fast takes half the time for them. What the
    GPU takes is off by some per cent at either end."""
    time = small().chosen.time
    assert time.step_seconds_range is not None
    low, high = time.step_seconds_range
    assert low < time.step_seconds < high
    assert 1.5 < high / low <= SLOWEST / FASTEST * (1 + KERNELS) / (1 - KERNELS)


def test_a_probed_host_narrows_the_range_and_moves_the_time() -> None:
    unknown = small().chosen.time
    probed = small(Calibration(host_factor=0.6, host_factor_low=0.58, host_factor_high=0.65)).chosen.time
    assert unknown.step_seconds_range is not None and probed.step_seconds_range is not None
    low, high = probed.step_seconds_range
    assert low < probed.step_seconds < high < unknown.step_seconds
    assert high - low < 0.3 * (unknown.step_seconds_range[1] - unknown.step_seconds_range[0])


def test_a_rehearsed_step_spans_what_its_own_rehearsal_found() -> None:
    family = small().chosen.strategy.family
    factors = JobFactors(by_family={family: 2.0}, otherwise=2.0, ranges={family: (0.7, 1.6)})
    plain, time = small().chosen.time, small(Calibration(rehearsed=factors)).chosen.time
    assert time.step_seconds == pytest.approx(2 * plain.step_seconds)
    assert time.step_seconds_range == pytest.approx((0.7 * time.step_seconds, 1.6 * time.step_seconds))
    known = replace(factors, ranges={family: (1.0, 1.0)})
    assert small(Calibration(rehearsed=known)).chosen.time.step_seconds_range is None
    ran = JobFactors(by_family={family: 2.0}, otherwise=2.0)  # a trial of `tune` goes before a rehearsal
    assert small(Calibration(tuned=ran, rehearsed=factors)).chosen.time.step_seconds_range is None


def test_a_host_whose_spread_is_not_known_is_as_it_was_measured() -> None:
    time = small(Calibration(host_factor=2 * SLOWEST)).chosen.time
    assert time.step_seconds_range == pytest.approx(
        ((1 - KERNELS) * time.step_seconds, (1 + KERNELS) * time.step_seconds)
    )


def test_only_an_unknown_network_widens_the_range() -> None:
    request = request_for("llama-3.1-70b", "h100-sxm-80gb", 32, 4)
    given = replace(request, cluster=replace(request.cluster, network_bytes_per_second=400e9))
    for asked, names in ((request, {"the host's speed", "the network"}), (given, {"the host's speed"})):
        chosen, space = make_plan(asked).chosen, make_space(asked)[0]
        assert {entry.name for entry in unmeasured(space.timing, chosen.strategy)} == names
        low, high = step_range(space.timing, chosen.strategy, chosen.memory) or (0, 0)
        assert low <= chosen.time.step_seconds <= high


def test_offload_depends_on_the_host_unless_it_was_measured() -> None:
    pins = Pins(zero_stage=3, offload_optimizer="cpu", offload_param="cpu")
    request = request_for("llama-3.1-8b", "rtx-4090", 2, job=Job(seq_len=2048, global_batch=8), pins=pins)
    chosen, space = make_plan(request).chosen, make_space(request)[0]
    low, high = chosen.time.step_seconds_range or (0, 0)
    assert high > 1.2 * low
    measured = Calibration(cpu_adam_parameters_per_second=3e9, host_to_device_bytes_per_second=100e9)
    model = TimeModel(space.shape, space.job, space.cluster, calibration=measured)
    assert {entry.name for entry in unmeasured(model, chosen.strategy)} == {"the host's speed"}


def test_an_nvme_disk_that_nobody_measured_is_said_and_widens_the_range() -> None:
    options = {"model": "llama-3.1-8b", "gpus": 1, "gpu": "h100-sxm-80gb", "nvme": "/disk", "seq_len": 2048}
    estimate = zerokit.plan(**options, offload_optimizer="nvme", offload_param="none").chosen.estimate
    low, high = estimate.step_seconds_range or (0, 0)
    on_disk = estimate.time_parts["nvme"]
    assert low < estimate.step_seconds - 0.5 * on_disk and high > estimate.step_seconds + 1.9 * on_disk
    said = documents.nvme(estimate.planned)
    assert (
        f"{estimate.nvme_bytes_per_node / 2**30:.1f} GiB per node; 3 GB/s assumed (1 to 7 are usual" in said
    )
    assert documents.nvme(zerokit.plan(**options, offload_optimizer="cpu").chosen) == ""


def test_a_plan_says_when_a_slow_network_would_change_the_choice() -> None:
    plan = zerokit.plan(params="13b", gpus=16, gpu="a100-80gb")
    said = [line for line in plan.advice if "decides between the choice" in line]
    assert said and "the network" in said[0] and "network" in said[0]
    known = zerokit.plan(params="13b", gpus=16, gpu="a100-80gb", network="200GB")
    assert not [line for line in known.advice if line.startswith("the network decides")]


def test_a_host_that_was_probed_is_not_to_be_probed_again() -> None:
    varying = Calibration(host_factor=0.9, host_factor_low=0.6, host_factor_high=1.5)
    plan = small(varying)
    timing = make_space(request_for("llama-3.2-1b", "h200", 2, job=Job(seq_len=2048), pins=SMALL))[0].timing
    host = next(unmeasured(timing, plan.chosen.strategy))
    assert host.told_by is not None and "doctor --measure" in host.told_by
    probed = TimeModel(timing.shape, timing.job, timing.cluster, calibration=varying)
    assert next(unmeasured(probed, plan.chosen.strategy)).told_by is None


def test_the_range_is_in_the_json_and_none_for_cpu_ranks() -> None:
    estimate = zerokit.plan(params="1b", gpus=2, gpu="h200", zero=3, micro_batch=1).chosen.estimate
    low, high = estimate.to_dict()["step_seconds_range"]
    assert low <= estimate.step_seconds <= high
    on_cpu = zerokit.plan(params="20m", gpus=2, device="cpu", seq_len=64).chosen.estimate
    assert on_cpu.to_dict()["step_seconds_range"] is None
    assert pytest.approx(high) == estimate.step_seconds_range[1]


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
