"""What a launch learns of its host: from a probe before it, and from its steps."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from zerokit.doctor import launch_host
from zerokit.doctor.launch_host import LaunchHostSpeeds
from zerokit.doctor.rates import load as load_rates
from zerokit.launcher.backends import LaunchCommand
from zerokit.launcher.launch import Launch
from zerokit.launcher.options import LaunchOptions
from zerokit.launcher.placement import Devices, Placement
from zerokit.machine import host_speeds, measured
from zerokit.machine.measured import Measured
from zerokit.planner.calibration import rates
from zerokit.report.schema import RunReport
from zerokit.script.entry_points import Target
from zerokit.timing.host_speed import HostSpeed

H200 = ("NVIDIA H200",)
MEASURED = Measured(
    host="node1", device="cuda", device_name="NVIDIA H200", ranks=2, torch_version="2.13.0",
    measured_at="2026-01-01T00:00:00+00:00", matmul_flops=790e12, matmul_precision="bf16",
    memory_copy_bytes_per_second=4.24e12, host_to_device_bytes_per_second=None,
    device_to_host_bytes_per_second=None, cpu_adam_parameters_per_second=4e9, cpu_adam_kind="deepspeed",
    collectives=(), host_factor=0.7,
)  # fmt: skip


@pytest.fixture(autouse=True)
def _machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two H200s, by an nvidia-smi of our own, and an empty cache."""
    tool = tmp_path / "nvidia-smi"
    lines = "\\n".join(f"{index}, GPU-{index}, NVIDIA H200, 143771, 4, 570.133.20" for index in range(2))
    tool.write_text(f'#!/bin/sh\nprintf "{lines}\\n"\n')
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def launch_on(
    kind: str, *, plan: dict[str, Any] | None = None, held_to: dict[str, Any] | None = None, **variables: str
) -> Launch:
    indexes = (0, 1) if kind == "cuda" else ()
    return Launch(
        options=LaunchOptions(target=Target(script="train.py", module=None, arguments=())),
        placement=Placement(devices=Devices(kind=kind, ranks=2, gpu_indexes=indexes, why=""), port=1),
        command=LaunchCommand(argv=[]), environment={**os.environ, **variables}, cwd=Path(), run_dir=Path(),
        host="node1", plan=plan, held_to=held_to,
    )  # fmt: skip


def finished_report(
    *, steps: int, step_seconds: float, outcome: str = "ok", predicted_for: str | None = "plan"
) -> RunReport:
    return RunReport.model_validate({
        "schema": "zerokit.report/1", "outcome": outcome, "exit_code": 0, "expected_ranks": 1,
        "ranks": [{"rank": 0, "host": "node1", "state": "finished", "steps": steps}],
        "predicted_vs_measured": {
            "kind": "gpu_memory", "rank": 0, "predicted_for": predicted_for,
            "step_seconds": {"predicted": 0.3, "measured": step_seconds},
        },
    })  # fmt: skip


def test_the_first_launch_probes_and_the_next_prediction_counts_with_it():
    probed: list[tuple[int, ...]] = []

    def probe(indexes, _):
        probed.append(tuple(indexes))
        return HostSpeed(factor=0.8, low=0.7, high=1.1, source="probe")

    said: list[str] = []
    speeds = LaunchHostSpeeds(probe=probe)
    assert rates(H200) == (None, None)
    for _ in range(2):
        speeds.before(launch_on("cuda"), said.append)
    assert probed == [(0, 1)]  # once
    calibration, note = rates(H200)
    assert calibration is not None and calibration.matmul_flops is None
    assert (calibration.host_factor, calibration.host_factor_low, calibration.host_factor_high) == (
        0.8, 0.7, 1.1,
    )  # fmt: skip
    assert note is not None and "host speed 0.80" in note and "a probe before a launch" in note
    assert any("--no-host-probe" in line for line in said)
    assert rates(("NVIDIA A100-SXM4-80GB",)) == (None, None)
    (shown,) = load_rates().to_dict()["host_speed"]["readings"]  # of doctor --json
    assert shown["factor"] == 0.8


def test_a_probe_counts_gpus_as_the_driver_does():
    """torchrun gets GPUs 1 and 3 as CUDA_VISIBLE_DEVICES; beside it, a GPU 3 would not be there."""

    def probe(indexes, environment):
        assert indexes == (0, 1) and "CUDA_VISIBLE_DEVICES" not in environment
        return HostSpeed(factor=0.8, source="probe")

    launch = launch_on("cuda", CUDA_VISIBLE_DEVICES="0,1")
    LaunchHostSpeeds(probe=probe).before(launch, print)
    assert [reading.factor for reading in host_speeds.load().readings] == [0.8]


@pytest.mark.parametrize("case", ["cpu", "turned off"])
def test_no_probe(case):
    def probe(*_):
        raise AssertionError("probed")

    speeds = LaunchHostSpeeds(probe=probe, probes=case != "turned off")
    speeds.before(launch_on("cpu" if case == "cpu" else "cuda"), print)


def test_a_probe_that_fails_is_told_and_not_tried_again_at_once(tmp_path, monkeypatch):
    (tmp_path / "torch.py").write_text("raise ImportError('no torch for you')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    said: list[str] = []
    LaunchHostSpeeds().before(launch_on("cuda"), said.append)
    assert "no torch for you" in said[-1] and "stay ranges" in said[-1]
    said.clear()
    LaunchHostSpeeds().before(launch_on("cuda"), said.append)
    assert not said and rates(H200) == (None, None)


def test_a_run_s_steps_tell_the_host():
    """0.3 s where 0.2, 0.3 and 0.6 are predicted on hosts of 0.5, 0.8 and 1.6."""
    rehearsed = {"script": "train.py", "step_seconds_by_host_factor": [[0.5, 0.2], [0.8, 0.3], [1.6, 0.6]]}
    plan = {"chosen": {"rehearsed": rehearsed}}
    launch = launch_on("cuda", plan=plan)
    LaunchHostSpeeds().after(launch, finished_report(steps=40, step_seconds=0.45))
    (reading,) = host_speeds.load().readings
    assert reading.factor == pytest.approx(1.2) and reading.device_name == "NVIDIA H200"
    assert reading.low < 1.2 < reading.high and "the steps of a run of train.py" in reading.source
    for report in (
        finished_report(steps=5, step_seconds=0.45),
        finished_report(steps=40, step_seconds=0.05),
        finished_report(steps=40, step_seconds=0.45, outcome="oom"),
        finished_report(steps=40, step_seconds=0.45, predicted_for=None),
    ):
        LaunchHostSpeeds().after(launch, report)
    LaunchHostSpeeds().after(launch_on("cuda"), finished_report(steps=40, step_seconds=0.45))
    other = launch_on("cuda", plan={"chosen": {"rehearsed_with": "dpo.py"}}, held_to=plan)
    LaunchHostSpeeds().after(other, finished_report(steps=40, step_seconds=0.45))  # another command's steps
    assert len(host_speeds.load().readings) == 1


def test_a_reading_counts_only_until_the_doctor_measures_again():
    def keep(factor: float, at: str) -> None:
        host_speeds.add(
            host_speeds.Reading(
                device_name="NVIDIA H200", torch_version="2", factor=factor, low=factor, high=factor,
                source="x", measured_at=at,
            )
        )  # fmt: skip

    keep(1.5, "2025-12-31T00:00:00+00:00")
    measured.save(MEASURED, measured.path())
    calibration, _ = rates(H200)
    assert calibration is not None and calibration.host_factor == 0.7
    keep(0.9, "2026-01-02T00:00:00+00:00")
    calibration, _ = rates(H200)
    assert calibration is not None and calibration.matmul_flops == MEASURED.matmul_flops
    assert calibration.host_factor == pytest.approx(0.8)  # the doctor's, and a launch's since


@pytest.mark.slow
def test_two_processes_probe_at_once_and_none_is_left():
    pytest.importorskip("transformers")
    found = launch_host.probe([None, None], seconds=0.5, limit_seconds=400)
    assert found.low is not None and found.high is not None
    assert 0 < found.low <= found.factor <= found.high
