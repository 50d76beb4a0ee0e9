"""Two hosts of their own (network, processes, host name) with their own sshd, the real ssh client, and
the real DeepSpeed launcher; nothing is shared but, where a test says so, the run folder. The real pdsh too,
where it is installed (Debian: ``apt-get install pdsh``), with ``-m slow``."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults import hosts as machines
from tests.faults.conftest import SCRIPT, Figure, Run, wait_for
from tests.support.packages import needs
from zerokit.launcher.supervisor.hang_inquiry import slowdown

REASON = machines.why_not()
pytestmark = pytest.mark.skipif(REASON is not None, reason=str(REASON))
needs("deepspeed")
HEARTBEAT = 8.0


class Cluster:
    def __init__(self, folder: Path, *, shared: bool, real_pdsh: bool) -> None:
        self.folder = folder
        self.runs_folder = folder / "runs"
        self.runs_folder.mkdir()
        private = None if shared else self.runs_folder
        self.hosts = [machines.Host(number, folder, private) for number in (1, 2)]
        self.path = machines.programs(folder, self.hosts, real_pdsh=real_pdsh)
        self.launched: list[Run] = []

    def start(self) -> None:
        for host in self.hosts:
            host.start()
        for host in self.hosts:
            host.until_ready()

    def launch(self, *deeds: str, options: tuple[str, ...] = (), hosts: str | None = None) -> Run:
        text = hosts or "".join(f"{host.name} slots=1\n" for host in self.hosts)
        (self.folder / "hosts").write_text(text)
        arguments = ["--hostfile", "hosts", "--run-dir", "runs/run", *options, str(SCRIPT), *deeds]
        run = Run(Path(sys.executable), self.folder, arguments, {"PATH": self.path})
        run.run_dir = self.runs_folder / "run"
        self.launched.append(run)
        return run

    def stop(self) -> None:
        for run in self.launched:
            run.clean_up()
        for host in self.hosts:
            host.stop()


@pytest.fixture(
    params=[
        pytest.param((True, False), marks=pytest.mark.slow, id="shared folder"),
        pytest.param((False, False), id="local folders"),
        pytest.param(
            (False, True),
            marks=[
                pytest.mark.slow,
                pytest.mark.skipif(shutil.which("pdsh") is None, reason="pdsh is not installed"),
            ],
            id="local folders, real pdsh",
        ),
    ],
)
def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Cluster]:
    shared, real_pdsh = request.param
    cluster = Cluster(tmp_path, shared=shared, real_pdsh=real_pdsh)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


def test_a_run_on_two_hosts(cluster: Cluster) -> None:
    run = cluster.launch("all:short")
    code, out, err = run.end(180)
    assert code == 0, out + err
    report = run.report()
    assert [(rank["host"], rank["state"]) for rank in report["ranks"]] == [
        ("node-1", "finished"), ("node-2", "finished")]  # fmt: skip
    assert all(rank["peak_host_rss_bytes"] > 0 for rank in report["ranks"])
    wait_for(lambda: not run.left(), 10, lambda: f"left: {run.left()}")


@pytest.mark.slow
def test_a_host_is_cut_off_in_the_middle_of_a_run(cluster: Cluster, figure: Figure) -> None:
    grace = 2.0
    options = ("--heartbeat", str(HEARTBEAT), "--grace", str(grace))
    run = cluster.launch("all:together", options=options)
    run.until_started(2, 180)
    cluster.hosts[1].cut_off()
    began = time.monotonic()
    code, out, err = run.end(120)
    took = time.monotonic() - began
    assert code == 11, out + err
    assert "no sign of life" in err or "no progress" in err
    if "not shared" in err:  # with its own folder the host has nothing left to reach us by
        assert "rank 1 on node-2: no sign of life" in err
    figure("seconds", took)
    assert took < HEARTBEAT + grace + 30 * slowdown()  # ssh gives up on the silent host after 8 s, twice
    assert "no answer from node-2" in err
    assert run.report()["outcome"] != "ok"
    # The ranks there cannot be reached by anybody: they end themselves.
    wait_for(lambda: not run.left(), 2 * HEARTBEAT + 20, lambda: f"left: {run.left()}")


@pytest.mark.slow
def test_zerokit_is_killed_and_nobody_is_left_on_any_host(cluster: Cluster, figure: Figure) -> None:
    run = cluster.launch("all:work", options=("--heartbeat", str(HEARTBEAT)))
    run.until_started(2, 180)
    os.kill(run.process.pid, signal.SIGKILL)
    took = wait_for(lambda: not run.left(), 2 * HEARTBEAT + 20, lambda: f"left: {run.left()}")
    figure("seconds", took)


@pytest.mark.slow
def test_a_host_that_does_not_answer_is_named(cluster: Cluster, figure: Figure) -> None:
    cluster.hosts[1].cut_off()
    began = time.monotonic()
    run = cluster.launch("all:short")
    code, _, err = run.end(120)
    assert code == 13, err
    assert "node-2 (hostfile line 2)" in err and "node-1 (" not in err
    assert figure("seconds", time.monotonic() - began) < 10 + 10 * slowdown()
