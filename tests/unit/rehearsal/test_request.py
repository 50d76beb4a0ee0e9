"""Which GPU a rehearsal is on: the named one, else the plan's, else this machine's, else an assumed one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from zerokit.cli import run
from zerokit.errors import InputError
from zerokit.machine import host_speeds
from zerokit.rehearsal import step_time
from zerokit.rehearsal.request import request_of
from zerokit.script.entry_points import Target
from zerokit.units import MIB

SCRIPT = Target(script="train.py", module=None, arguments=())


@pytest.fixture
def has_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tool that lists two H200s, as on a machine that has them."""
    tool = tmp_path / "bin" / "nvidia-smi"
    tool.parent.mkdir()
    line = "GPU-aa, NVIDIA H200, 100000, 0, 580.1"
    tool.write_text(f"#!/bin/sh\nprintf '0, {line}\\n1, {line}\\n'\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tool.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tool


def test_this_machines_gpu_is_taken_with_its_memory_and_host_speed(has_gpus: Path) -> None:
    host_speeds.add(
        host_speeds.Reading(
            device_name="NVIDIA H200", torch_version="2.13.0", factor=0.53, low=0.5, high=0.6,
            source="probe", measured_at="2026-11-01T10:00:00+0000",
        )
    )  # fmt: skip
    said: list[str] = []
    request = request_of(SCRIPT, say=said.append)
    assert (request.gpu.name, request.gpu.driver_vram_bytes) == ("h200", 100000 * MIB)
    assert request.memory_named and request.host is None  # which is then what was measured here
    host, _ = step_time.machine(request.gpu)
    assert host is not None and host.factor == 0.53
    assert len(said) == 1 and said[0].startswith("this machine: NVIDIA H200 is h200 in the catalogue")


def test_what_was_named_goes_before_this_machine(has_gpus: Path, tmp_path: Path) -> None:
    said: list[str] = []
    assert request_of(SCRIPT, say=said.append, gpu="l4").gpu.name == "l4"
    assert request_of(SCRIPT, say=said.append, vram="24GiB").gpu.driver_vram_bytes == 24 << 30
    plan = tmp_path / "plan"
    assert run(["plan", "--params", "350m", "--gpus", "1", "--gpu", "a10", "--out", str(plan)]) == 0
    assert request_of(SCRIPT, say=said.append, plan=str(plan)).gpu.name == "a10"
    assert not any("this machine" in line for line in said)
    assert run(["plan", "--params", "350m", "--gpus", "1", "--vram", "20GiB", "--out", str(plan)]) == 0
    assert request_of(SCRIPT, say=said.append, plan=str(plan)).gpu.driver_vram_bytes == 20 << 30


def test_without_gpus_one_is_assumed_whose_memory_is_no_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    said: list[str] = []
    request = request_of(SCRIPT, say=said.append)
    assert (request.gpu.name, request.memory_named) == ("h100-sxm-80gb", False)
    (line,) = said
    assert "none was named, none was found here (no GPU found: " in line


def test_a_gpu_here_that_the_catalogue_lacks_is_not_passed_over(has_gpus: Path) -> None:
    has_gpus.write_text("#!/bin/sh\necho '0, GPU-aa, NVIDIA Unheard, [N/A], 0, 580.1'\n")
    with pytest.raises(InputError, match="this machine's GPUs cannot be used for a prediction"):
        request_of(SCRIPT, say=print)
