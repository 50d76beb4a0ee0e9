"""Threads of the offloaded optimizer's steps."""

from __future__ import annotations

from typing import Any

import pytest

from zerokit.launcher.devices import Devices
from zerokit.launcher.host_threads import RankThreads, threads_of_rank
from zerokit.launcher.nodes.cluster import Host, SlurmJob
from zerokit.launcher.placement import Placement
from zerokit.launcher.rank.core_share import cores_per_rank

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
    monkeypatch.setattr("zerokit.launcher.host_threads.cores_per_rank", lambda ranks: 16)
    threads = threads_of_rank(OFFLOADED, GPU, {"OMP_NUM_THREADS": "1"})
    assert not threads.variables and threads.note is not None
    assert "warning: OMP_NUM_THREADS is 1" in threads.note and "16 cores" in threads.note
    for enough in ("12", "16", "12,2", "many"):
        assert threads_of_rank(OFFLOADED, GPU, {"OMP_NUM_THREADS": enough}) == RankThreads()
