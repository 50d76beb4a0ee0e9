"""Which GPU a rehearsal is on: the named one, else the plan's, else this machine's, else an assumed one."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from zerokit.cli import run
from zerokit.errors import InputError
from zerokit.machine import host_speeds
from zerokit.rehearsal import step_time
from zerokit.rehearsal.conduct import RehearsalRequest
from zerokit.rehearsal.options import RehearsalArguments
from zerokit.rehearsal.request import read_versions, request_of, version_differences
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


def request_for(**options: Any) -> RehearsalRequest:
    return request_of(SCRIPT, RehearsalArguments(**options))


def test_this_machines_gpu_is_taken_with_its_memory_and_host_speed(has_gpus: Path) -> None:
    host_speeds.add(
        host_speeds.Reading(
            device_name="NVIDIA H200", torch_version="2.13.0", factor=0.53, low=0.5, high=0.6,
            source="probe", measured_at="2026-11-01T10:00:00+0000",
        )
    )  # fmt: skip
    said: list[str] = []
    request = request_for(say=said.append)
    assert (request.gpu.name, request.gpu.driver_vram_bytes) == ("h200", 100000 * MIB)
    assert request.memory_named and request.host is None  # which is then what was measured here
    host, _ = step_time.machine(request.gpu)
    assert host is not None and host.factor == 0.53
    assert len(said) == 1 and said[0].startswith("this machine: NVIDIA H200 is h200 in the catalogue")


def test_what_was_named_goes_before_this_machine(has_gpus: Path, tmp_path: Path) -> None:
    said: list[str] = []
    assert request_for(say=said.append, gpu="l4").gpu.name == "l4"
    assert request_for(say=said.append, vram="24GiB").gpu.driver_vram_bytes == 24 << 30
    plan = tmp_path / "plan"
    assert run(["plan", "--params", "350m", "--gpus", "1", "--gpu", "a10", "--out", str(plan)]) == 0
    assert request_for(say=said.append, plan=str(plan)).gpu.name == "a10"
    assert not any("this machine" in line for line in said)
    assert run(["plan", "--params", "350m", "--gpus", "1", "--vram", "20GiB", "--out", str(plan)]) == 0
    assert request_for(say=said.append, plan=str(plan)).gpu.driver_vram_bytes == 20 << 30


def test_without_gpus_one_is_assumed_whose_memory_is_no_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    said: list[str] = []
    request = request_for(say=said.append)
    assert (request.gpu.name, request.memory_named) == ("h100-sxm-80gb", False)
    (line,) = said
    assert "none was named, none was found here (no GPU found: " in line


def test_a_gpu_here_that_the_catalogue_lacks_is_not_passed_over(has_gpus: Path) -> None:
    has_gpus.write_text("#!/bin/sh\necho '0, GPU-aa, NVIDIA Unheard, [N/A], 0, 580.1'\n")
    with pytest.raises(InputError, match="this machine's GPUs cannot be used for a prediction"):
        request_for(say=print)


REQUIREMENTS = """
# pip freeze
torch==2.11.0+cu130
transformers[torch] == 5.17.0 ; python_version >= "3.10"
peft>=0.17
Liger-Kernel==0.8.5
flash_attn @ file:///wheels/flash_attn.whl
numpy==2.0.0
"""
UV_LOCK = """
version = 1
[[package]]
name = "torch"
version = "2.11.0"
source = { registry = "https://pypi.org/simple" }
dependencies = [{ name = "numpy" }]

[[package]]
name = "transformers"
version = "5.17.0"
"""
PYLOCK = UV_LOCK.replace("[[package]]", "[[packages]]").replace("version = 1", 'lock-version = "1.0"')


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (REQUIREMENTS, {"torch": "2.11.0+cu130", "transformers": "5.17.0", "liger_kernel": "0.8.5"}),
        (UV_LOCK, {"torch": "2.11.0", "transformers": "5.17.0"}),
        (PYLOCK, {"torch": "2.11.0", "transformers": "5.17.0"}),
        (json.dumps([{"name": "flash-attn", "version": "2.8.0"}]), {"flash_attn": "2.8.0"}),
        (
            json.dumps({"schema": "zerokit.doctor/1", "packages": {"torch": "2.11.0", "trl": None}}),
            {"torch": "2.11.0"},
        ),
    ],
)
def test_versions_are_read_from_what_people_have(tmp_path: Path, text: str, found: dict[str, str]) -> None:
    path = tmp_path / "versions"
    path.write_text(text)
    assert read_versions(path) == found


@pytest.mark.parametrize("text", ["", "torch>=2", "{", '{"schema": "zerokit.doctor/1"}', "numpy==2.0.0"])
def test_a_file_without_such_versions_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "versions"
    path.write_text(text)
    with pytest.raises(InputError, match="versions"):
        read_versions(path)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        read_versions(tmp_path / "nothing")


def test_builds_of_one_version_are_alike_and_the_rest_is_told() -> None:
    here = {"torch": "2.13.0+cpu", "transformers": "5.23.0"}
    there = {"torch": "2.13.0+cu130", "transformers": "5.17.0", "flash_attn": "2.8.0"}
    transformers, flash = version_differences(here, there, "uv.lock")
    assert transformers.startswith("transformers is 5.23.0 here and 5.17.0 in uv.lock")
    assert flash.startswith("flash_attn 2.8.0 (uv.lock) is not installed here")
