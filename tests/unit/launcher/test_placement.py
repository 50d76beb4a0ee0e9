"""Threads of the offloaded optimizer's steps."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from zerokit.cli import run
from zerokit.errors import InputError, NodeUnusable
from zerokit.launcher import placement
from zerokit.launcher.nodes.cluster import Host, SlurmJob
from zerokit.launcher.options import LaunchArguments
from zerokit.launcher.placement import Devices, Placement, RankThreads, threads_of_rank
from zerokit.launcher.rank_start import cores_per_rank
from zerokit.notes import with_level

GPU = Placement(devices=Devices(kind="cuda", ranks=1, gpu_indexes=(0,), why=""), port=1)
CPU = Placement(devices=Devices(kind="cpu", ranks=1, gpu_indexes=(), why=""), port=1)
HOSTS = Placement(devices=GPU.devices, port=1, hosts=(Host(name="a", slots=1, line=1),))
JOB = Placement(devices=GPU.devices, port=1, slurm=SlurmJob(job_id="1", nodes=("a", "b")))
OFFLOADED = {"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}}
NVME = {"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "nvme", "nvme_path": "/x"}}}
OLD = {"zero_optimization": {"stage": 2, "cpu_offload": True}}
ON_GPU = {"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "none"}}}


@pytest.mark.parametrize("config", [OFFLOADED, NVME, OLD])
def test_an_offloaded_optimizer_gets_a_rank_s_cores(config: dict[str, Any]) -> None:
    threads = threads_of_rank(config, GPU, {})
    assert threads.variables == {"OMP_NUM_THREADS": str(cores_per_rank(1))}
    assert threads.note is not None and f"OMP_NUM_THREADS={cores_per_rank(1)}" in threads.note


def test_a_dry_run_for_another_machine_does_not_take_the_cores_of_this_one() -> None:
    devices = Devices(kind="cuda", ranks=4, gpu_indexes=(0, 1, 2, 3), why="", are_here=False)
    threads = threads_of_rank(OFFLOADED, Placement(devices=devices, port=1), {})
    assert not threads.variables
    assert threads.note is not None and threads.note.startswith("OMP_NUM_THREADS: not shown")
    given = {"OMP_NUM_THREADS": "8"}
    assert threads_of_rank(OFFLOADED, Placement(devices=devices, port=1), given) == RankThreads()


@pytest.mark.parametrize("placement", [HOSTS, JOB])
def test_ranks_on_other_machines_count_the_cores_there(placement: Placement) -> None:
    threads = threads_of_rank(OFFLOADED, placement, {})
    assert threads.variables == {"ZEROKIT_SHARE_CORES": "1"}
    assert threads.note is not None and "share of its node's cores" in threads.note
    given = {"OMP_NUM_THREADS": "8"}
    assert threads_of_rank(OFFLOADED, placement, given) == RankThreads(variables=given)
    assert threads_of_rank(ON_GPU, placement, {}) == RankThreads()


@pytest.mark.parametrize(
    ("config", "placement"),
    [(None, GPU), ({}, GPU), ({"zero_optimization": True}, GPU), (ON_GPU, GPU), (OFFLOADED, CPU)],
)  # fmt: skip
def test_nothing_else_is_touched(config: dict[str, Any] | None, placement: Placement) -> None:
    assert threads_of_rank(config, placement, {}) == RankThreads()


def test_what_the_user_set_stays_and_too_few_are_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zerokit.launcher.placement.cores_per_rank", lambda ranks: 16)
    threads = threads_of_rank(OFFLOADED, GPU, {"OMP_NUM_THREADS": "1"})
    assert not threads.variables and threads.note is not None
    assert "warning: OMP_NUM_THREADS is 1" in with_level(threads.note) and "16 cores" in threads.note
    for enough in ("12", "16", "12,2", "many"):
        assert threads_of_rank(OFFLOADED, GPU, {"OMP_NUM_THREADS": enough}) == RankThreads()


UUIDS = ("GPU-11111111-aaaa", "GPU-11112222-bbbb", "GPU-33333333-cccc", "GPU-44444444-dddd")


@pytest.fixture
def four_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prints(tmp_path, monkeypatch, "nvidia-smi", *(
        f"{index}, {uuid}, NVIDIA H100 80GB HBM3, 81559, 0, 580.95" for index, uuid in enumerate(UUIDS)
    ))  # fmt: skip


def prints(folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, *lines: str) -> None:
    """A program of this name, first on the PATH, that prints these lines."""
    program = folder / name
    program.write_text("#!/bin/sh\ncat <<'END'\n" + "\n".join(lines) + "\nEND\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=":")


def resolve(
    wanted: str = "auto",
    visible: str | None = None,
    variable: str = "CUDA_VISIBLE_DEVICES",
    **numbers: int | None,
) -> placement.Devices:
    environment = {} if visible is None else {variable: visible}
    return placement.resolve(
        wanted,
        num_ranks=numbers.get("num_ranks"),
        planned_ranks=numbers.get("planned_ranks"),
        environment=environment,
    )


# What CUDA itself makes of the variable (CUDA programming guide, environment variables).
@pytest.mark.parametrize(
    ("visible", "indexes"),
    [
        (None, (0, 1, 2, 3)),
        ("2,0", (2, 0)),
        ("GPU-3333", (2,)),
        ("gpu-33333333-cccc,GPU-11111111", (2, 0)),
        ("1,9,2", (1,)),
        ("1,-1,2", (1,)),
        ("3, 1", (3, 1)),
    ],
)
def test_visible_devices(four_gpus: None, visible: str | None, indexes: tuple[int, ...]) -> None:
    assert resolve(visible=visible).gpu_indexes == indexes


@pytest.mark.parametrize("visible", ["", "-1", "NoDevFiles"])
def test_hidden_gpus(four_gpus: None, visible: str) -> None:
    assert resolve(visible=visible).kind == "cpu"
    with pytest.raises(NodeUnusable, match="CUDA_VISIBLE_DEVICES"):
        resolve("cuda", visible=visible)


@pytest.mark.parametrize("visible", ["MIG-1234", "GPU-1111", "1,1"])
def test_what_cannot_be_given_to_ranks(four_gpus: None, visible: str) -> None:
    with pytest.raises(InputError, match="CUDA_VISIBLE_DEVICES"):
        resolve(visible=visible)


def test_the_plan_says_how_many(four_gpus: None) -> None:
    assert resolve(planned_ranks=2).gpu_indexes == (0, 1)
    assert resolve(planned_ranks=2, num_ranks=3).ranks == 3
    with pytest.raises(NodeUnusable, match="8 GPUs, of which 4 can be seen") as raised:
        resolve(planned_ranks=8)
    assert raised.value.exit_code == 13


def test_a_dry_run_goes_on_without_the_gpus(four_gpus: None) -> None:
    def shown(visible: dict[str, str], planned_ranks: int | None = None) -> placement.Devices:
        return placement.resolve(
            "cuda", num_ranks=None, planned_ranks=planned_ranks, environment=visible, dry_run=True
        )

    many = shown({}, 8)
    assert (many.kind, many.ranks, many.gpu_indexes) == ("cuda", 8, tuple(range(8)))
    assert many.warning is not None and "for 8 GPUs, of which 4 can be seen here" in many.warning
    one = shown({"CUDA_VISIBLE_DEVICES": ""})
    assert one.gpu_indexes == (0,) and one.why == "this is what a machine with 1 GPU would run"
    assert one.warning is not None and "exit code 13" in one.warning
    assert shown({}, 4).warning is None


def test_a_plan_for_cpu_ranks_on_gpus_is_told(four_gpus: None) -> None:
    """Before a run as in a dry run that shows what another machine would run."""
    told = "the plan is for CPU ranks"
    on_gpus = placement.resolve("auto", num_ranks=None, planned_ranks=2, planned_gpu="cpu")
    assert on_gpus.kind == "cuda" and on_gpus.warning is not None and on_gpus.warning.startswith(told)
    elsewhere = placement.resolve("cuda", num_ranks=None, planned_ranks=8, planned_gpu="cpu", dry_run=True)
    assert elsewhere.warning is not None and "exit code 13; " + told in elsewhere.warning
    assert "the plan's ranks ask for 8 GPUs, of which 4" in elsewhere.warning
    planned = placement.resolve("auto", num_ranks=None, planned_ranks=2, planned_gpu="h200")
    assert planned.warning is None


def test_gpus_that_were_asked_for_and_are_not_here(
    four_gpus: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the number of ranks alone, CPU ranks may be meant."""
    for asks, option in ((True, "⟨gpus⟩"), (False, "⟨num_ranks⟩")):
        shown = placement.resolve("auto", num_ranks=8, planned_ranks=None, asks_for_gpus=asks, dry_run=True)
        assert (shown.warning or "").startswith(f"{option} asks for 8 GPUs, of which 4 can be seen here")
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    for gpu in (None, "cpu", "h200"):
        chosen = placement.resolve(
            "auto", num_ranks=4, planned_ranks=None, planned_gpu=gpu, asks_for_gpus=True, environment={}
        )
        assert chosen.why.startswith("4 CPU ranks (as many as the GPUs asked for): no GPU was found")
        assert (chosen.warning or "").startswith("⟨gpus⟩ asks for 4 GPUs and no GPU can be used here (no GPU")
    ranks = placement.resolve("auto", num_ranks=4, planned_ranks=None, environment={})
    assert ranks.why.startswith("4 CPU ranks (asked for)") and ranks.warning is None


def test_ranks_and_gpus_are_one_number(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["launch", "--num-ranks", "2", "--gpus", "4", "--dry-run", __file__]) == 2
    assert "--num-ranks and --gpus say the same: give one of them" in capsys.readouterr().err


def test_a_snapshot_of_gpu_memory_needs_gpus(capsys: pytest.CaptureFixture[str]) -> None:
    script = str(Path(__file__).parents[2] / "scripts" / "raw.py")
    assert run(["launch", "--no-plan", "--device", "cpu", "--dry-run", "--snapshot", "oom", script]) == 2
    assert "--snapshot is of GPU memory, and these ranks run on CPUs" in capsys.readouterr().err


def test_a_plan_for_gpus_on_the_cpu(four_gpus: None) -> None:
    chosen = resolve("cpu", planned_ranks=8)
    assert (chosen.kind, chosen.ranks, chosen.gpu_indexes) == ("cpu", 8, ())
    assert resolve("cpu").ranks == 2


@pytest.mark.parametrize(
    ("wanted", "gpu", "source", "warned"),
    [
        ("auto", "h200", "as many as the plan has GPUs", True),
        ("cpu", "h200", "as many as the plan has GPUs", False),  # asked for
        ("auto", "cpu", "as planned", False),
    ],
)
def test_a_plan_for_gpus_where_there_are_none_is_never_as_planned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wanted: str, gpu: str, source: str, warned: bool
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    chosen = placement.resolve(wanted, num_ranks=None, planned_ranks=2, planned_gpu=gpu, environment={})
    assert chosen.why.startswith(f"2 CPU ranks ({source}): ")
    assert (chosen.warning is not None) is warned
    if chosen.warning is not None:
        assert "for h200 GPUs" in chosen.warning and "no GPU found: nvidia-smi, rocm-smi" in chosen.warning
        assert "⟨device⟩ cuda stops" in chosen.warning


def test_ranks_of_several_nodes_are_said_to_be_on_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    of_job = placement.resolve(
        "cpu", num_ranks=None, planned_ranks=16, planned_gpu="h200", environment={}, nodes=2
    )
    assert of_job.why.startswith("8 CPU ranks on each node (as many as the plan has GPUs there): ")


def test_no_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert resolve().kind == "cpu"
    assert "no GPU was found" in resolve().why
    with pytest.raises(NodeUnusable):
        resolve("cuda")


def test_a_broken_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho 'NVIDIA-SMI has failed'\nexit 9\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert resolve().kind == "cpu"
    with pytest.raises(NodeUnusable, match="exit code 9"):
        resolve("cuda")


@pytest.mark.parametrize(
    ("variable", "value", "indexes"),
    [
        ("ROCR_VISIBLE_DEVICES", "2,3", (0, 1)),  # stays set: HIP counts anew among what it leaves
        ("HIP_VISIBLE_DEVICES", "3,1", (3, 1)),
        ("CUDA_VISIBLE_DEVICES", "2", (2,)),
        ("NONE_OF_THEM", "", (0, 1, 2, 3)),
    ],
)
def test_amd_gpus(
    variable: str,
    value: str,
    indexes: tuple[int, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cards = {
        f"card{index}": {"Card Series": "AMD Instinct MI300X", "VRAM Total Memory (B)": str(192 << 30)}
        for index in range(4)
    }
    prints(tmp_path, monkeypatch, "rocm-smi", json.dumps(cards))
    found = resolve(visible=value, variable=variable)
    assert (found.kind, found.gpu_indexes) == ("cuda", indexes)
    assert "MI300X" in found.why


@pytest.mark.parametrize("wanted", ["gpu", "CPU", ""])
def test_an_unknown_device(wanted: str) -> None:
    with pytest.raises(InputError, match="use one of auto, cuda, cpu"):
        LaunchArguments(device=wanted)  # type: ignore[arg-type]
