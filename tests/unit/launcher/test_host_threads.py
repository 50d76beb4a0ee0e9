"""Threads of the offloaded optimizer's steps."""

from __future__ import annotations

from typing import Any

import pytest

from zerokit.launcher.devices import Devices, cores_per_rank
from zerokit.launcher.host_threads import threads_of_rank
from zerokit.launcher.nodes.hostfile import Host
from zerokit.launcher.placement import Placement

GPU = Placement(devices=Devices(kind="cuda", ranks=1, gpu_indexes=(0,), why=""), port=1)
CPU = Placement(devices=Devices(kind="cpu", ranks=1, gpu_indexes=(), why=""), port=1)
HOSTS = Placement(devices=GPU.devices, port=1, hosts=(Host(name="a", slots=1, line=1),))
OFFLOADED = {"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}}
NVME = {"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "nvme", "nvme_path": "/x"}}}
OLD = {"zero_optimization": {"stage": 2, "cpu_offload": True}}
ON_GPU = {"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "none"}}}


@pytest.mark.parametrize("config", [OFFLOADED, NVME, OLD])
def test_an_offloaded_optimizer_gets_a_rank_s_cores(config: dict[str, Any]) -> None:
    threads, note = threads_of_rank(config, GPU, {})
    assert threads == cores_per_rank(1)
    assert note is not None and f"OMP_NUM_THREADS={threads}" in note


def test_a_dry_run_for_another_machine_does_not_take_the_cores_of_this_one() -> None:
    devices = Devices(kind="cuda", ranks=4, gpu_indexes=(0, 1, 2, 3), why="", are_here=False)
    threads, note = threads_of_rank(OFFLOADED, Placement(devices=devices, port=1), {})
    assert threads is None
    assert note is not None and note.startswith("OMP_NUM_THREADS: not shown")
    assert threads_of_rank(OFFLOADED, Placement(devices=devices, port=1), {"OMP_NUM_THREADS": "8"}) == (
        None,
        None,
    )


@pytest.mark.parametrize(
    ("config", "placement"),
    [(None, GPU), ({}, GPU), ({"zero_optimization": True}, GPU), (ON_GPU, GPU), (OFFLOADED, CPU),
     (OFFLOADED, HOSTS)],
)  # fmt: skip
def test_nothing_else_is_touched(config: dict[str, Any] | None, placement: Placement) -> None:
    assert threads_of_rank(config, placement, {}) == (None, None)


def test_what_the_user_set_stays_and_too_few_are_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zerokit.launcher.host_threads.cores_per_rank", lambda ranks: 16)
    threads, note = threads_of_rank(OFFLOADED, GPU, {"OMP_NUM_THREADS": "1"})
    assert threads is None and note is not None
    assert "warning: OMP_NUM_THREADS is 1" in note and "16 cores" in note
    for enough in ("12", "16", "12,2", "many"):
        assert threads_of_rank(OFFLOADED, GPU, {"OMP_NUM_THREADS": enough}) == (None, None)
