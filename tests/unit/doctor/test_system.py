"""The machine under a run: GPUs, ports, cores and shared memory."""

from __future__ import annotations

import re
import socket

import pytest

from tests.support.laid_out_machine import Machine, pretend_torch
from zerokit.doctor import system


def test_no_gpu_is_a_note_not_a_blocker(machine: Machine) -> None:
    found = machine.findings()
    assert found["gpu.found"].state == "note"
    assert "CPU ranks" in found["gpu.found"].what


def test_gpus_and_driver_are_reported(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_torch(monkeypatch, "13.0")
    machine.gpus()
    found = machine.findings()
    assert "8 × NVIDIA H100 80GB HBM3, driver 580.95.05" in found["gpu.found"].what
    assert "h100-sxm-80gb" in found["gpu.catalogue"].what
    assert found["software.torch-build"].state == "ok"
    assert "gpu.memory-in-use" not in found


def test_hidden_gpus_are_a_warning(machine: Machine) -> None:
    machine.gpus()
    machine.variables["CUDA_VISIBLE_DEVICES"] = ""
    found = machine.findings()["gpu.found"]
    assert found.state == "warning" and "CUDA_VISIBLE_DEVICES" in found.what


def test_memory_in_use_names_the_gpus(machine: Machine) -> None:
    machine.gpus(count=2, used=40960)
    found = machine.findings()["gpu.memory-in-use"]
    assert found.state == "warning" and "GPU 1: 40.00 GiB" in found.what


def test_unlike_gpus_are_a_warning(machine: Machine) -> None:
    machine.tool("nvidia-smi", "0, GPU-a, NVIDIA L4, 23034, 1, 580.1\n1, GPU-b, Tesla T4, 15360, 1, 580.1")
    assert "NVIDIA L4, Tesla T4" in machine.findings()["gpu.alike"].what


def test_a_held_port_names_its_holder(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as server:
        server.bind(("0.0.0.0", 0))
        server.listen()
        monkeypatch.setattr(system, "DEFAULT_PORT", server.getsockname()[1])
        found = machine.findings()["system.port"]
    assert found.state == "warning"
    assert re.search(r"pid \d+", found.what)


def test_few_cores_for_many_gpus(machine: Machine) -> None:
    machine.gpus(count=8)
    (machine.root / "proc/self").mkdir(parents=True)
    (machine.root / "proc/self/cgroup").write_text("0::/\n")
    (machine.root / "sys/fs/cgroup").mkdir(parents=True)
    (machine.root / "sys/fs/cgroup/cpu.max").write_text("100000 100000\n")
    found = machine.findings()["host.cores"]
    assert found.state == "warning" and "for 8 GPUs" in found.what


def test_missing_shared_memory_is_a_warning(machine: Machine) -> None:
    (machine.root / "dev/shm").rmdir()
    assert machine.findings()["system.shared-memory"].state == "warning"
