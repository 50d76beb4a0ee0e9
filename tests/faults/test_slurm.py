"""Jobs of two nodes under a real Slurm (Debian: ``apt-get install slurm-wlm munge``), started for the tests.

./launch.sh test -m slow tests/faults/test_slurm.py
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.faults import slurm
from tests.faults.conftest import SCRIPT, wait_for
from tests.support.packages import needs

REASON = slurm.why_not()
pytestmark = [pytest.mark.slow, pytest.mark.skipif(REASON is not None, reason=str(REASON))]
needs("torch")
ZEROKIT = f"{sys.executable} -m zerokit"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[slurm.Slurm]:
    system = slurm.Slurm(tmp_path_factory.mktemp("slurm"))
    try:
        system.start()
        yield system
    finally:
        system.stop()


class Job:
    """``zerokit launch`` as the batch script of a job of two nodes."""

    def __init__(self, cluster: slurm.Slurm, folder: Path, *deeds: str, options: str = "") -> None:
        self.cluster, self.folder = cluster, folder
        (folder / "job.sh").write_text(
            f"#!/bin/sh\nexec {ZEROKIT} launch --device cpu --num-ranks 1 --grace 2 --run-dir run "
            f"{options} {SCRIPT} {' '.join(deeds)}\n"
        )
        command = ["sbatch", "--parsable", "--nodes=2", "--ntasks-per-node=1", "--output=out", "job.sh"]
        done = subprocess.run(command, cwd=folder, env=cluster.environment, capture_output=True, text=True,
                              check=True)  # fmt: skip
        self.number = done.stdout.strip()

    def until_started(self) -> dict[int, int]:
        """Wait until both ranks train; their process ids."""
        paths = {rank: self.folder / "run" / f"rank-{rank:05d}.jsonl" for rank in range(2)}
        ticked = [lambda path=path: path.exists() and '"tick"' in path.read_text() for path in paths.values()]
        wait_for(lambda: all(one() for one in ticked), 120, self.out)
        time.sleep(1)
        return {rank: json.loads(path.read_text().splitlines()[0])["pid"] for rank, path in paths.items()}

    def state(self) -> str:
        fields = self.cluster.ask("scontrol", "--oneliner", "show", "job", self.number).split()
        values = dict(field.split("=", 1) for field in fields if "=" in field)
        return f"{values.get('JobState')} {values.get('ExitCode')}"

    def until_ended(self, seconds: float = 180) -> str:
        going = ("PENDING", "RUNNING", "COMPLETING", "CONFIGURING")
        wait_for(lambda: not self.state().startswith(going), seconds, lambda: self.state() + self.out())
        return self.state()

    def out(self) -> str:
        path = self.folder / "out"
        return path.read_text() if path.exists() else ""

    def report(self) -> dict[str, Any]:
        value: dict[str, Any] = json.loads((self.folder / "run" / "report.json").read_text())
        return value

    def left(self) -> list[int]:
        """Living processes of the run, on either node."""
        marker = f"ZEROKIT_RUN_DIR={self.folder / 'run'}".encode()
        found = []
        for entry in Path("/proc").iterdir():
            try:
                if entry.name.isdigit() and marker in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
            except OSError:
                continue
        return found


@pytest.mark.parametrize(("deed", "ended", "outcome"), [
    ("all:short", "COMPLETED 0:0", "ok"),
    ("1:fail", "FAILED 10:0", "rank_failed"),
])  # fmt: skip
def test_a_job_of_two_nodes(
    cluster: slurm.Slurm, tmp_path: Path, deed: str, ended: str, outcome: str
) -> None:
    job = Job(cluster, tmp_path, deed)
    assert job.until_ended() == ended, job.out()
    report = job.report()
    assert report["outcome"] == outcome
    assert len(report["ranks"]) == 2
    assert "one torchrun on each of 2 nodes" in job.out()
    if outcome != "ok":
        assert report["first_failure"]["rank"] == 1
    wait_for(lambda: not job.left(), 10, lambda: f"left: {job.left()}")


@pytest.mark.parametrize("deed", ["work", "saves", "stubborn"])
def test_a_cancelled_job_leaves_a_report_and_nobody(cluster: slurm.Slurm, tmp_path: Path, deed: str) -> None:
    job = Job(cluster, tmp_path, f"all:{deed}")
    job.until_started()
    cluster.ask("scancel", "--batch", "--signal=TERM", job.number)  # what --signal=B:TERM@60 sends, too
    assert job.until_ended().split()[0] in ("FAILED", "CANCELLED"), job.out()
    report = job.report()
    assert report["outcome"] != "ok" and report["exit_code"] == 143
    if deed == "saves":  # ranks have their grace, under srun too, which leaves them none
        assert all((tmp_path / f"saved-{rank}").read_text() == "whole" for rank in range(2))
    else:
        assert [rank["state"] for rank in report["ranks"]] == ["terminated"] * 2
    wait_for(lambda: not job.left(), 1, lambda: f"left: {job.left()}")


def test_a_rank_is_killed(cluster: slurm.Slurm, tmp_path: Path) -> None:
    job = Job(cluster, tmp_path, "all:work")
    os.kill(job.until_started()[1], signal.SIGKILL)
    assert job.until_ended() == "FAILED 10:0", job.out()
    report = job.report()
    assert (report["outcome"], report["first_failure"]["rank"]) == ("rank_failed", 1)
    wait_for(lambda: not job.left(), 1, lambda: f"left: {job.left()}")


def test_zerokit_is_killed_and_nobody_is_left(cluster: slurm.Slurm, tmp_path: Path) -> None:
    job = Job(cluster, tmp_path, "all:stubborn", options="--heartbeat 5")
    job.until_started()
    cluster.ask("scancel", "--batch", "--signal=KILL", job.number)
    assert job.until_ended() == "FAILED 0:9", job.out()
    wait_for(lambda: not job.left(), 2 * 5 + 20, lambda: f"left: {job.left()}")


def test_the_emitted_script_is_one_that_slurm_runs(cluster: slurm.Slurm, tmp_path: Path) -> None:
    """GPUs as Slurm counts them; the script says what it was given."""
    (tmp_path / "train.py").write_text(
        "import json, os, sys\n"
        "config = json.load(open(sys.argv[sys.argv.index('--deepspeed_config') + 1]))\n"
        "print('rank', os.environ['RANK'], 'of', os.environ['WORLD_SIZE'],\n"
        "      'batch', config['train_batch_size'], flush=True)\n"
    )
    for command in (
        ["plan", "--params", "1b", "--gpu", "a100-80gb", "--gpus", "2", "--nodes", "2", "--out", "plan"],
        ["emit", "sbatch", "--plan", "plan", "--style", "raw", "--out", "job.sh", "train.py"],
    ):
        done = subprocess.run([sys.executable, "-m", "zerokit", *command], cwd=tmp_path, capture_output=True,
                              text=True, check=False)  # fmt: skip
        assert done.returncode == 0, done.stderr
    done = subprocess.run(["sbatch", "--wait", "--output=out", "job.sh"], cwd=tmp_path,
                          env=cluster.environment, capture_output=True, text=True, check=False)  # fmt: skip
    out = (tmp_path / "out").read_text()
    assert done.returncode == 0, done.stdout + done.stderr + out
    lines = sorted(line for line in out.splitlines() if line.startswith("rank "))
    assert [line.split(" batch")[0] for line in lines] == ["rank 0 of 2", "rank 1 of 2"]
