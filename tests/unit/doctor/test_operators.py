"""Whether DeepSpeed's operators can be built here, and where they are kept."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tests.support.laid_out_machine import Machine, pretend_torch


def test_torch_keeps_compiled_operators_where_the_doctor_looks(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    extension = pytest.importorskip("torch.utils.cpp_extension")
    for name in ("TORCH_EXTENSIONS_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(machine.home))
    folder = Path(extension._get_build_directory("cpu_adam", False))
    (folder / "cpu_adam.so").write_bytes(b"")
    assert "compiled already" in machine.findings()["build.cpu_adam"].what


def test_without_a_toolkit_the_gpu_operators_cannot_be_built(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend_torch(monkeypatch, "12.8")
    machine.gpus()
    machine.variables["CUDA_HOME"] = str(machine.folder / "nowhere")
    found = machine.findings()
    assert "CUDA_HOME" in found["build.cuda-toolkit"].what
    assert found["build.fused_adam"].state == "warning"
    assert "torch_adam" in (found["build.fused_adam"].fix or "")
    assert "libaio" in found["build.async_io"].what


def test_a_lock_that_a_dead_build_left_comes_with_the_command(machine: Machine) -> None:
    lock = machine.home / ".cache/torch_extensions/py311_cpu/cpu_adam/lock"
    lock.parent.mkdir(parents=True)
    lock.touch()
    os.utime(lock, (time.time() - 7200,) * 2)
    finding = machine.findings()["build.lock"]
    assert finding.state == "warning" and "cpu_adam" in finding.what and "2 h" in finding.what
    assert finding.fix == f"rm {lock}"


def test_a_missing_compiler_is_named(machine: Machine) -> None:
    found = machine.findings()
    assert "a C++ compiler" in found["build.tools"].what
    machine.tool("g++", "")
    machine.tool("ninja", "")
    assert machine.findings()["build.tools"].state == "ok"
