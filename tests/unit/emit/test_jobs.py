"""Files for services that start jobs: each is what its own tool reads, and starts a node for every rank."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.command import call
from tests.support.plans import write_plan
from zerokit.catalog import gpus

_SCRIPT = "import argparse, deepspeed\n"


@pytest.fixture
def emitted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    monkeypatch.chdir(tmp_path)
    write_plan(tmp_path / "plan", ranks=8)
    (tmp_path / "t.py").write_text(_SCRIPT)
    (tmp_path / "requirements.txt").write_text("torch\n")

    def emit(service: str, *options: str) -> Path:
        file = tmp_path / f"job_{service}"
        common = ("--plan", "plan", "--style", "raw", "--out", str(file))
        code, _, said = call(capsys, "emit", service, *common, *options, "t.py", "--epochs", "1")
        assert code == 0, said
        return file

    return emit


def test_skypilot_reads_it(emitted: Any) -> None:
    schemas, jsonschema = pytest.importorskip("sky.utils.schemas"), pytest.importorskip("jsonschema")
    task = yaml.safe_load(emitted("skypilot", "--gpu-name", "H100", "--image", "team/train:1").read_text())
    jsonschema.validate(task, schemas.get_task_schema())
    jsonschema.validate(task["resources"], schemas.get_resources_schema())


def test_dstack_reads_it(emitted: Any) -> None:
    configurations = pytest.importorskip("dstack._internal.core.models.configurations")
    task = configurations.parse_apply_configuration(
        yaml.safe_load(emitted("dstack", "--gpu-name", "H100:80GB").read_text())
    )
    assert task.nodes == 1 and task.resources.gpu.name == ["H100"] and task.resources.gpu.count.min == 8


def test_torchx_reads_it(emitted: Any) -> None:
    finder = pytest.importorskip("torchx.specs.finder")
    component = finder.get_component(f"{emitted('torchx')}:train")  # it validates
    (node,) = component.fn(image="i").roles
    assert (node.num_replicas, node.resource.gpu) == (1, 8)


def test_ray_starts_it(emitted: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """On a node that says that it has GPUs; torchrun is a stand-in that writes what it was given."""
    ray = pytest.importorskip("ray")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "torchrun").write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/given\n')
    (tmp_path / "bin" / "torchrun").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    file = emitted("ray")
    monkeypatch.setattr(
        ray, "init", lambda init=ray.init: init(num_gpus=8, num_cpus=1, include_dashboard=False)
    )
    try:
        runpy.run_path(str(file))
    finally:
        ray.shutdown()
    given = (tmp_path / "given").read_text().split()
    assert given[:3] == ["--nnodes=1", "--nproc-per-node=8", "--node-rank=0"]
    assert given[5:8] == ["t.py", "--epochs", "1"]


@pytest.mark.parametrize(
    ("service", "options", "said"),
    [
        ("skypilot", ("--image", "--gpu-name"), None),
        ("dstack", ("--image", "--gpu-name"), None),
        ("torchx", ("--image",), "no --image: the nodes must have what the script imports"),
        ("ray", (), "zerokit: the nodes must have what the script imports"),
    ],
)
def test_a_service_has_the_options_that_its_file_has_a_place_for(
    service: str, options: tuple[str, ...], said: str | None, emitted: Any,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """A requirements.txt is here, which two of them install."""
    file, gpu = Path(f"job_{service}"), ["--gpu-name", "H100:80GB"] if "--gpu-name" in options else []
    code, _, err = call(
        capsys, "emit", service, "--plan", "plan", "--style", "raw", "--out", str(file), *gpu, "t.py"
    )
    assert code == 0, err
    assert ("pip install -r requirements.txt" in file.read_text()) == (said is None)
    assert "must have what the script imports" not in err if said is None else said in err
    for option in ("--image", "--gpu-name"):
        words = ("--plan", "plan", "--style", "raw", *gpu, option, "A100", "t.py")
        code, out, err = call(capsys, "emit", service, *words)
        assert (code, "A100" in out) == ((0, True) if option in options else (2, False)), err


def test_memory_alone_names_no_gpu_to_rent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The plan has the name of a GPU all the same: that whose speeds it assumes."""
    monkeypatch.chdir(tmp_path)
    Path("t.py").write_text(_SCRIPT)
    assert call(capsys, "plan", "--params", "350m", "--gpus", "1", "--vram", "24GiB")[0] == 0
    code, out, err = call(capsys, "emit", "skypilot", "--style", "raw", "t.py")
    assert (code, out) == (2, "")
    assert "24.0 GiB GPU: what skypilot calls it is not known; say it with --gpu-name" in err


def test_a_job_never_replaces_its_script(emitted: Any, capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("skypilot", "sbatch"):
        code, out, err = call(capsys, "emit", command, "--plan", "plan", "--out", "./t.py", "t.py")
        assert (code, out) == (2, "") and "would replace the script" in err
    assert Path("t.py").read_text() == _SCRIPT


def test_dstack_knows_the_names_of_gpus() -> None:
    gpuhunt = pytest.importorskip("gpuhunt")
    known = {one.name for one in (*gpuhunt.KNOWN_NVIDIA_GPUS, *gpuhunt.KNOWN_AMD_GPUS)}
    names = {name: gpus.sold_as(name, "dstack") for name in gpus.names()}
    assert {name for name in names.values() if name and name.partition(":")[0] not in known} == set()


def test_what_no_service_can_send_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    Path("t.py").write_text(_SCRIPT)
    write_plan(tmp_path / "plan")
    write_plan(Path("plan"))
    common = ("emit", "skypilot", "--style", "raw")
    for more, said in (
        (
            ("--plan", "../plan", "--gpu-name", "H100", "t.py"),
            "../plan/ds_config.json: it is not in this folder",
        ),
        (("--plan", "plan", "--gpu-name", "H100", str(tmp_path / "here" / "t.py")), "is not in this folder"),
        (("--plan", "plan", "t.py"), "what skypilot calls it is not known; say it with --gpu-name"),
        (("--plan", "plan", "--gpu-name", "H100", "--name", "9x", "t.py"), "--name '9x'"),
    ):
        code, out, err = call(capsys, *common, *more)
        assert code == 2 and said in err and not out
