"""Several machines, played by this one: ``ssh`` and ``pdsh`` on the PATH are stand-ins; DeepSpeed is real."""

from __future__ import annotations

import ast
import os
import signal
import sys
from pathlib import Path

import pytest

from tests.faults.conftest import PROGRAMS, SCRIPT, Run, wait_for
from tests.support.hostile import MARKER, strings
from tests.support.plans import write_plan

SCRIPTS = Path(__file__).parents[1] / "scripts"


@pytest.fixture
def path_of_programs(tmp_path: Path) -> str:
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("ssh", "pdsh"):
        program = folder / name
        program.write_text(f"#!{sys.executable}\n" + (PROGRAMS / f"{name}.py").read_text())
        program.chmod(0o755)
    hostname = folder / "hostname"
    hostname.write_text("#!/bin/sh\necho 127.0.0.1\n")
    hostname.chmod(0o755)
    return f"{folder}:{os.environ['PATH']}"


def launch(tmp_path: Path, path: str, hosts: str, *arguments: str, options: tuple[str, ...] = ()) -> Run:
    write_plan(tmp_path / "plan")
    (tmp_path / "hosts").write_text(hosts)
    command = ["--plan", "plan", "--hostfile", "hosts", *options, str(SCRIPTS / "raw.py"), *arguments]
    return Run(
        Path(sys.executable), tmp_path, command, {"PATH": path, "WANDB_API_KEY": "0123456789abcdef0123"}
    )


def test_a_node_that_does_not_answer(tmp_path: Path, path_of_programs: str) -> None:
    run = launch(tmp_path, path_of_programs, "node-1 slots=1\ngone-2 slots=1\n")
    code, _, err = run.end()
    assert code == 13, err
    assert "gone-2 (hostfile line 2)" in err and "No route to host" in err
    assert "node-1 (" not in err


def test_a_dry_run_needs_no_other_machine(tmp_path: Path, path_of_programs: str) -> None:
    hosts = "node-1 slots=1\ngone-2 slots=1\n"
    code, out, err = launch(tmp_path, path_of_programs, hosts, options=("--dry-run",)).end()
    assert code == 0 and "--hostfile=" in out, err
    assert "warning: " in err and "No route to host" in err, err


def test_a_sweep_finds_the_runs_processes(path_of_programs: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import subprocess

    from zerokit.launcher.nodes.cluster import sweep

    monkeypatch.setenv("PATH", path_of_programs)
    environment = {**os.environ, "ZEROKIT_RUN_DIR": "/a run/of 'mine"}
    sleeper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], env=environment)
    other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        wait_for(
            lambda: b"mine" in Path(f"/proc/{sleeper.pid}/environ").read_bytes(), 10, lambda: "not started"
        )
        answers = sweep(["node-1", "gone-2"], "/a run/of 'mine", signal.SIGKILL)
        assert answers == {"node-1": 1, "gone-2": None}
        assert sleeper.wait(10) == -signal.SIGKILL
        assert other.poll() is None
    finally:
        sleeper.kill()
        other.kill()


@pytest.mark.slow
def test_hostile_arguments_and_folders_on_two_machines(tmp_path: Path, path_of_programs: str) -> None:
    """DeepSpeed's own launcher, and a real shell for each host; nothing of what is passed on runs there."""
    pytest.importorskip("deepspeed")
    folder = tmp_path / f'w $(touch {MARKER}) `touch {MARKER}` it\'s;touch {MARKER} "q" ä'
    folder.mkdir()
    (folder / "hosts").write_text("node-1 slots=1\nnode-2 slots=1\n")
    (folder / "deepspeed.py").write_text(f"open({str(tmp_path / MARKER)!r}, 'w')\n")
    (folder / ".deepspeed_env").write_text(f"X=$(touch {tmp_path / MARKER})\n")
    texts = strings(150)
    environment = {"PATH": path_of_programs, "NCCL_DEBUG_SUBSYS": f"$(touch {MARKER})", "MLFLOW_RUN": "it's"}
    run = Run(
        Path(sys.executable),
        folder,
        ["--hostfile", "hosts", str(SCRIPT), "all:arguments", *texts],
        environment,
    )
    try:
        code, out, err = run.end(240)
        assert code == 0, out + err
        for rank in (0, 1):
            assert ast.literal_eval((folder / f"argv-{rank}").read_text())[1:] == ["all:arguments", *texts]
            assert (folder / f"environment-{rank}").read_text() == f"$(touch {MARKER})|it's|None"
        assert not list(tmp_path.rglob(MARKER)) and not Path("/", MARKER).exists()
        wait_for(lambda: not run.left(), 10, lambda: f"left: {run.left()}")
    finally:
        run.clean_up()


@pytest.mark.slow
def test_two_machines(tmp_path: Path, path_of_programs: str) -> None:
    run = launch(tmp_path, path_of_programs, "node-1 slots=1\nnode-2 slots=1\n", "--steps", "3")
    code, out, err = run.end(240)
    assert code == 0, out + err
    assert [rank["steps"] for rank in run.report()["ranks"]] == [3, 3]
    for path in run.run_dir.rglob("*"):
        assert path.is_dir() or b"0123456789abcdef0123" not in path.read_bytes()
    wait_for(lambda: not run.left(), 10, lambda: f"left: {run.left()}")


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["rank", "sigterm", "stopped"])
def test_faults_on_two_machines(tmp_path: Path, path_of_programs: str, fault: str) -> None:
    options = ("--grace", "2", "--heartbeat", "6")
    hosts = "node-1 slots=1\nnode-2 slots=1\n"
    run = launch(tmp_path, path_of_programs, hosts, "--steps", "1000000", options=options)
    try:
        pids = run.until_started(2, 120)
        wait_for(
            lambda: any('"steps":2' in p.read_text() for p in run.run_dir.glob("rank-*")),
            120,
            lambda: "no step",
        )
        target, number, wanted = {
            "rank": (pids[1], signal.SIGKILL, (10, 12)),
            "sigterm": (run.process.pid, signal.SIGTERM, (143,)),
            "stopped": (pids[1], signal.SIGSTOP, (11,)),
        }[fault]
        os.kill(target, number)
        code, out, err = run.end(90)
        assert code in wanted, out + err
        wait_for(lambda: not run.left(), 10, lambda: f"left: {run.left()}")
        assert run.report()["outcome"] != "ok"
    finally:
        run.clean_up()


@pytest.mark.parametrize(
    ("deed", "code"), [("1:fail", 10), pytest.param("all:short", 0, marks=pytest.mark.slow)]
)
def test_a_slurm_job_of_two_nodes(tmp_path: Path, deed: str, code: int) -> None:
    """srun and scontrol are stand-ins; the two torchruns are real, and meet."""
    pytest.importorskip("torch")
    folder = tmp_path / "bin"
    folder.mkdir()
    texts = {
        "srun": f"#!{sys.executable}\n" + (PROGRAMS / "srun.py").read_text(),
        "scontrol": "#!/bin/sh\nprintf 'localhost\\n127.0.0.1\\n'\n",
    }
    for name, text in texts.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    job = {"SLURM_JOB_ID": "77", "SLURM_JOB_NODELIST": "n[1-2]", "SLURM_JOB_NUM_NODES": "2"}
    run = Run(
        Path(sys.executable), tmp_path, ["--num-ranks", "1", "--grace", "10", str(SCRIPT), deed],
        {**job, "PATH": f"{folder}:{os.environ['PATH']}"},
    )  # fmt: skip
    try:
        ended, out, err = run.end(180)
        assert ended == code, out + err
        assert "Slurm job 77: one torchrun on each of 2 nodes" in err
        report = run.report()
        assert len(report["ranks"]) == 2
        if code:
            assert report["first_failure"]["rank"] == 1
        wait_for(lambda: not run.left(), 10, lambda: f"left: {run.left()}")
    finally:
        run.clean_up()
