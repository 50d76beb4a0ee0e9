"""The doctor against laid-out machines (real processes as the drivers' tools) and this one."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from zerokit import cli
from zerokit.doctor import Finding, examine, operators, software, system
from zerokit.doctor.finding import STATES
from zerokit.doctor.variables import ODDITIES

H100 = "GPU-{0}aaa, NVIDIA H100 80GB HBM3, 81559, {1}, {2}"


class Machine:
    """A machine laid out in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.root, self.bin = folder, folder / "root", folder / "bin"
        self.home, self.cwd = folder / "home", folder / "work"
        for path in (self.root / "dev/shm", self.bin, self.home, self.cwd):
            path.mkdir(parents=True)
        self.variables = {"PATH": str(self.bin), "HOME": str(self.home)}

    def tool(self, name: str, text: str) -> None:
        path = self.bin / name
        path.write_text(f"#!/bin/sh\n/bin/cat <<'END'\n{text}\nEND\n", encoding="utf-8")
        path.chmod(0o755)

    def gpus(self, count: int = 8, used: int = 4, driver: str = "580.95.05") -> None:
        lines = [f"{index}, {H100.format(index, used, driver)}" for index in range(count)]
        self.tool("nvidia-smi", "\n".join(lines))

    def findings(self) -> dict[str, Finding]:
        examination = examine(self.variables, cwd=self.cwd, home=self.home, root=self.root)
        assert {finding.state for finding in examination.findings} <= set(STATES)
        for finding in examination.findings:
            assert (finding.state in ("ok", "note")) or finding.fix, finding
        return {finding.check: finding for finding in examination.findings}


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def _pretend_torch(monkeypatch: pytest.MonkeyPatch, cuda: str | None) -> None:
    made = software.TorchBuild(version="2.13.0", cuda=cuda, hip=None)
    monkeypatch.setattr(software, "torch_build", lambda: made)
    monkeypatch.setattr(operators, "torch_build", lambda: made)


# --- as a process, on this machine ----------------------------------------------------------


def test_json_is_one_object_and_exit_0() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "zerokit", "doctor", "--json"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["schema"] == "zerokit.doctor/1"
    assert sum(answer["counts"].values()) == len(answer["findings"])
    assert {finding["state"] for finding in answer["findings"]} <= set(STATES)


def test_the_doctor_imports_no_torch() -> None:
    code = "import sys; from zerokit import cli; cli.run(['doctor']); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True).returncode == 0


def test_strict_ends_with_13_only_when_no_run_can_work(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real = software.installed
    monkeypatch.setattr(software, "installed", lambda name: None if name == "deepspeed" else real(name))
    assert cli.run(["doctor"]) == 0
    assert cli.run(["doctor", "--strict"]) == 13
    captured = capsys.readouterr()
    assert "software.deepspeed" in captured.err
    assert "pip install torch deepspeed" in captured.out


def test_installed_versions_are_those_of_the_packages() -> None:
    for name in ("torch", "deepspeed"):
        package = pytest.importorskip(name)
        assert software.installed(name) == package.__version__
    import torch

    made = software.torch_build()
    assert made is not None
    assert (made.cuda, made.hip) == (torch.version.cuda, torch.version.hip)


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


# --- GPUs, driver and torch -----------------------------------------------------------------


def test_no_gpu_is_a_note_not_a_blocker(machine: Machine) -> None:
    found = machine.findings()
    assert found["gpu.found"].state == "note"
    assert "CPU ranks" in found["gpu.found"].what


def test_gpus_and_driver_are_reported(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    _pretend_torch(monkeypatch, "13.0")
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


@pytest.mark.parametrize(
    ("cuda", "driver", "state", "words"),
    [
        (None, "580.95.05", "blocker", "without CUDA"),
        ("13.0", "570.86.10", "blocker", "580.65.06 or newer"),
        ("12.8", "525.60.13", "ok", "runs it"),
        ("12.8", "470.57.02", "blocker", "525.60.13 or newer"),
        ("12.8", "[N/A]", "note", "not compared"),
    ],
)
def test_torch_and_driver_must_fit(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, cuda: str | None, driver: str, state: str, words: str
) -> None:
    _pretend_torch(monkeypatch, cuda)
    machine.gpus(driver=driver)
    found = machine.findings()["software.torch-build"]
    assert (found.state, words in found.what) == (state, True), found


@pytest.mark.parametrize(("version", "state"), [("0.18.4", "warning"), ("0.16.4", "blocker")])
def test_another_deepspeed_is_a_warning_or_refused(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, version: str, state: str
) -> None:
    monkeypatch.setattr(software, "installed", lambda name: version)
    found = machine.findings()["software.deepspeed"]
    assert (found.state, version in found.what) == (state, True), found
    assert software.READ_FROM["deepspeed"] in found.what


# --- compiling ------------------------------------------------------------------------------


def _nvcc(machine: Machine, version: str) -> None:
    machine.tool("nvcc", f"Cuda compilation tools, release {version}, V{version}.99")


@pytest.mark.parametrize(
    ("torch_cuda", "nvcc", "state"),
    [
        ("12.8", "12.8", "ok"),
        ("12.8", "12.4", "ok"),  # DeepSpeed takes minors of 12 for one another
        ("13.0", "13.1", "warning"),  # but not those of 13
        ("12.8", "11.8", "warning"),
    ],
)
def test_the_cuda_toolkit_is_judged_as_deepspeed_does(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, torch_cuda: str, nvcc: str, state: str
) -> None:
    _pretend_torch(monkeypatch, torch_cuda)
    machine.gpus()
    _nvcc(machine, nvcc)
    found = machine.findings()
    assert found["build.cuda-toolkit"].state == state
    lacking = f"a CUDA {torch_cuda} toolkit (there is {nvcc})"
    assert (lacking in found["build.fused_adam"].what) is (state == "warning")
    assert "toolkit" not in found["build.cpu_adam"].what  # a plain C++ operator


def test_deepspeed_agrees_on_which_cuda_versions_are_alike() -> None:
    builder = pytest.importorskip("deepspeed.ops.op_builder.builder")
    alike = {major for major in builder.cuda_minor_mismatch_ok if major >= 11}
    assert alike == set(operators._MINORS_ALIKE)


def test_without_a_toolkit_the_gpu_operators_cannot_be_built(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    _pretend_torch(monkeypatch, "12.8")
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


# --- variables and files --------------------------------------------------------------------

EXAMPLES = {
    "NCCL_P2P_LEVEL": "LOC", "NCCL_NET_GDR_LEVEL": "LOC", "NCCL_DEBUG": "INFO",
    "CUDA_VISIBLE_DEVICES": "GPU-0aaa,GPU-1aaa",
}  # fmt: skip


@pytest.mark.parametrize("oddity", ODDITIES, ids=lambda oddity: oddity.name)
def test_each_odd_variable_is_remarked_on(machine: Machine, oddity: object) -> None:
    name = oddity.name  # type: ignore[attr-defined]
    assert f"environment.{name}" not in machine.findings()
    machine.variables[name] = EXAMPLES.get(name, "1")
    found = machine.findings()[f"environment.{name}"]
    assert found.what.startswith(f"{name}={EXAMPLES.get(name, '1')}: ") and found.fix


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("NCCL_P2P_DISABLE", "0"),
        ("NCCL_DEBUG", "WARN"),
        ("CUDA_VISIBLE_DEVICES", "0,1"),
        ("CUDA_LAUNCH_BLOCKING", ""),
    ],
)
def test_a_harmless_value_is_not(machine: Machine, name: str, value: str) -> None:
    machine.variables[name] = value
    assert f"environment.{name}" not in machine.findings()


@pytest.mark.parametrize(
    ("value", "remarked"),
    [("eth0", False), ("eth", False), ("=eth0", False), ("=eth", True), ("ib0", True), ("^lo", False),
     ("^eth,lo", True), ("ens,eth", False)],
)  # fmt: skip
def test_a_network_interface_must_exist(machine: Machine, value: str, remarked: bool) -> None:
    for name in ("eth0", "lo"):
        (machine.root / "sys/class/net" / name).mkdir(parents=True)
    machine.variables["NCCL_SOCKET_IFNAME"] = value
    assert ("environment.NCCL_SOCKET_IFNAME" in machine.findings()) is remarked


def test_a_deepspeed_env_that_would_crash_is_named_with_its_line(machine: Machine) -> None:
    (machine.home / ".deepspeed_env").write_text("NCCL_DEBUG=WARN\n\n# remark\n", encoding="utf-8")
    found = machine.findings()["files.deepspeed-env"]
    assert found.state == "warning" and f"{machine.home}/.deepspeed_env:2" in found.what


def test_a_secret_in_deepspeed_env_is_named_but_never_shown(machine: Machine) -> None:
    (machine.cwd / ".deepspeed_env").write_text("HF_TOKEN=hf_verysecret\n", encoding="utf-8")
    examination = examine(machine.variables, cwd=machine.cwd, home=machine.home, root=machine.root)
    text = json.dumps(examination.as_dict())
    assert "HF_TOKEN" in text and "hf_verysecret" not in text


@pytest.mark.parametrize(
    ("text", "state", "words"),
    [("node1 slots=8\nnode2 slots=8\n", "note", "lists 2 hosts"), ("node1 slots=0\n", "warning", ":1")],
)
def test_the_default_hostfile_is_pointed_out(machine: Machine, text: str, state: str, words: str) -> None:
    path = machine.root / "job/hostfile"
    path.parent.mkdir()
    path.write_text(text, encoding="utf-8")
    found = machine.findings()["files.hostfile"]
    assert (found.state, words in found.what) == (state, True), found


# --- the machine ----------------------------------------------------------------------------


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
