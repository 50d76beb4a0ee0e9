"""What the doctor says of installed versions: torch and driver, DeepSpeed, the CUDA toolkit."""

from __future__ import annotations

import pytest

from tests.support.laid_out_machine import Machine, pretend_torch
from zerokit.doctor import operators, software


def test_installed_versions_are_those_of_the_packages() -> None:
    for name in ("torch", "deepspeed"):
        package = pytest.importorskip(name)
        assert software.installed(name) == package.__version__
    import torch

    result = software.torch_build()
    assert result is not None
    assert (result.cuda, result.hip) == (torch.version.cuda, torch.version.hip)


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
    pretend_torch(monkeypatch, cuda)
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
    pretend_torch(monkeypatch, torch_cuda)
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
