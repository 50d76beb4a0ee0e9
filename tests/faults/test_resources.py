"""Faults of ports, disks, hostfiles, nodes and working folders."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.conftest import SCRIPT, Figure, Launch, Run
from zerokit.launcher.supervisor.hang_inquiry import slowdown


def zerokit(*arguments: str, folder: Path, python: Path | None = None) -> subprocess.CompletedProcess[str]:
    command = [str(python or sys.executable), "-m", "zerokit", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60, check=False)


# ---- ports


def test_a_port_in_use_names_its_holder(launch: Launch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        run = launch("all:done", options=("--master-port", str(server.getsockname()[1])))
        code, _, err = run.end()
    assert code == 13
    assert f"pid {os.getpid()}" in err
    assert not (run.run_dir / "report.json").exists()


@pytest.mark.slow  # tests/unit/launcher/test_ports.py
def test_two_launches_at_once_meet_at_different_ports(stub_python: Path, tmp_path: Path) -> None:
    runs = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        runs.append(Run(stub_python, tmp_path / name, ["--num-ranks", "2", str(SCRIPT), "all:short"], {}))
    ports = set()
    for run in runs:
        assert run.end()[0] == 0
        argv = json.loads((run.run_dir / "command.json").read_text())["argv"]
        ports.update(part for part in argv if part.startswith("--master_port="))
    assert len(ports) == 2


def test_too_few_open_files_are_said_before_the_start(stub_python: Path, tmp_path: Path) -> None:
    command = [str(stub_python), "-m", "zerokit", "launch", "--device", "cpu", "--num-ranks", "2"]
    done = subprocess.run(
        ["/bin/sh", "-c", 'ulimit -n 24; exec "$@"', "sh", *command, "--run-dir", "run", str(SCRIPT)],
        cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 13 and "ulimit -n 50" in done.stderr and "Traceback" not in done.stderr
    assert not (tmp_path / "run").exists()


# ---- disks


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 KiB."""
    folder = tmp_path / "small"
    folder.mkdir()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"tmpfs", str(folder).encode(), b"tmpfs", 0, b"size=256k") != 0:
        pytest.skip("mounting a small tmpfs needs root")
    yield folder
    libc.umount2(str(folder).encode(), 2)


@pytest.mark.slow
def test_the_disk_fills_during_the_run(launch: Launch, small_disk: Path) -> None:
    run = launch("all:noisy", options=("--run-dir", str(small_disk / "run")))
    code, out, err = run.end(120)
    assert code == 74, err
    assert out.count("of rank 0 with") == 200_000  # training went on, and its output too
    assert not (small_disk / "run" / "report.json").exists()
    assert "No space left" in err


def test_an_older_report_outlives_a_full_disk(small_disk: Path) -> None:
    from zerokit.errors import ReportNotWritten
    from zerokit.launcher.run_folder import write_json

    write_json(small_disk / "report.json", {"old": True})
    with (small_disk / "filler").open("wb", buffering=0) as file, pytest.raises(OSError):
        while True:
            file.write(b"x" * 4096)
    with pytest.raises(ReportNotWritten):
        write_json(small_disk / "report.json", {"new": "x" * 100_000})
    assert json.loads((small_disk / "report.json").read_text()) == {"old": True}
    assert sorted(path.name for path in small_disk.iterdir()) == ["filler", "report.json"]


def test_a_full_disk_is_noticed_before_the_run(launch: Launch, small_disk: Path) -> None:
    with (small_disk / "filler").open("wb", buffering=0) as file, pytest.raises(OSError):
        while True:
            file.write(b"x" * 4096)
    run = launch("all:done", options=("--run-dir", str(small_disk / "run")))
    assert run.end()[0] == 74


def test_a_log_on_a_full_device(tmp_path: Path) -> None:
    from zerokit.launcher.secrets import Secrets
    from zerokit.launcher.supervisor.output import Log

    (tmp_path / "full.log").symlink_to("/dev/full")
    log = Log(tmp_path / "full.log", Secrets({}))
    assert log.feed(b"one\ntwo") == b"one\n"  # passed on all the same
    assert log.close() == b"two"
    assert log.dropped_bytes == 7


@pytest.mark.slow
def test_a_second_run_in_the_same_folder_keeps_the_first(launch: Launch) -> None:
    first = launch("all:done")
    assert first.end()[0] == 0
    old = (first.run_dir / "report.json").read_bytes()
    second = launch("all:fail")
    assert second.end()[0] == 10
    assert (first.run_dir / "previous-1" / "report.json").read_bytes() == old
    assert second.report()["outcome"] == "rank_failed"


# ---- other machines


@pytest.mark.parametrize(
    ("data", "line"),
    [(b"node-0 slots=4\nnode-1 slots=4garbage\n", 2), (b"node;touch$IFS'hacked' slots=4\n", 1)],
)
def test_a_bad_hostfile(launch: Launch, tmp_path: Path, data: bytes, line: int) -> None:
    """What else its reader refuses: ``tests/unit/launcher/nodes/test_cluster.py``."""
    (tmp_path / "hosts").write_bytes(data)
    run = launch("all:arguments", options=("--hostfile", "hosts"))
    code, _, err = run.end()
    assert code == 2, err
    assert f"hosts:{line}:" in err
    assert "Traceback" not in err
    assert not list(tmp_path.glob("argv-*")) and not (tmp_path / "hacked").exists()


def test_a_missing_hostfile_is_no_local_run(launch: Launch, tmp_path: Path) -> None:
    run = launch("all:arguments", options=("--hostfile", "nowhere"))
    code, _, err = run.end()
    assert code == 2 and "nowhere" in err
    assert not list(tmp_path.glob("argv-*"))


@pytest.mark.skipif(shutil.which("ssh") is None, reason="needs an ssh client")
def test_unreachable_nodes_are_all_named(tmp_path: Path, figure: Figure) -> None:
    from zerokit.errors import NodeUnusable
    from zerokit.launcher.nodes.cluster import Host
    from zerokit.launcher.preflight import check_nodes

    # TEST-NET addresses (RFC 5737) never answer; a name below .invalid (RFC 2606) never resolves.
    hosts = [Host(name=f"192.0.2.{n}", slots=8, line=n) for n in range(1, 20)]
    hosts.append(Host(name="node.invalid", slots=8, line=20))
    began = time.monotonic()
    with pytest.raises(NodeUnusable) as raised:
        check_nodes(hosts, need_gpus=False)
    assert figure("seconds", time.monotonic() - began) <= 10 + 3 * slowdown()
    assert raised.value.exit_code == 13
    for host in hosts:
        assert host.name in str(raised.value)


# ---- a hostile working folder

THIRD_PARTY = ("yaml", "torch", "click", "deepspeed", "rich", "pydantic", "jinja2", "accelerate", "numpy")
STANDARD = ("typing", "json", "logging", "signal", "subprocess", "socket", "random")  # what `-m` reads first


@pytest.mark.slow
@pytest.mark.parametrize("entry", ["module", "script"])
def test_a_hostile_working_folder(tmp_path: Path, entry: str) -> None:
    program = Path(sys.executable).with_name("zerokit")
    if entry == "script" and not program.exists():
        pytest.skip("zerokit is not installed as a program here")
    for name in THIRD_PARTY if entry == "module" else THIRD_PARTY + STANDARD:
        (tmp_path / f"{name}.py").write_text(f"open('imported-{name}', 'w').close()\nraise SystemExit(99)\n")
    (tmp_path / ".deepspeed_env").write_text("LD_PRELOAD=/tmp/evil.so\n")
    (tmp_path / "train.py").write_text("print('never run')\n")
    command = [sys.executable, "-m", "zerokit"] if entry == "module" else [str(program)]
    for arguments in (["--help"], ["gpus"], ["launch", "--dry-run", "--device", "cpu", "train.py"]):
        done = subprocess.run(
            [*command, *arguments], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
        )
        assert not list(tmp_path.glob("imported-*")), done.stderr
        assert done.returncode == 0, done.stderr
        assert "LD_PRELOAD" not in done.stdout


# ---- a dry run


def test_a_dry_run_runs_and_writes_nothing(stub_python: Path, tmp_path: Path) -> None:
    done = zerokit(
        "launch", "--dry-run", "--device", "cpu", "--num-ranks", "3", str(SCRIPT), "all:arguments", "a b",
        folder=tmp_path, python=stub_python,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "--num_accelerators=3" in done.stdout and "'a b'" in done.stdout
    assert "export DS_ACCELERATOR=cpu" in done.stdout
    assert list(tmp_path.iterdir()) == []


# ---- many ranks


@pytest.mark.slow
def test_sixty_four_ranks_cost_little(launch: Launch, figure: Figure) -> None:
    run = launch("all:blocked", ranks=64, options=("--heartbeat", "0", "--grace", "1"))
    run.until_started(64, 240)
    time.sleep(3)
    watched = [run.process.pid, *guard_of(run)]

    def cpu_seconds() -> float:
        ticks = 0
        for pid in watched:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
        return ticks / os.sysconf("SC_CLK_TCK")

    before, began = cpu_seconds(), time.monotonic()
    time.sleep(20)
    share = (cpu_seconds() - before) / (time.monotonic() - began)
    assert len(list(run.run_dir.glob("rank-*.jsonl"))) == 64
    assert figure("share of a core", share) < 0.05
    os.kill(run.process.pid, signal.SIGTERM)
    assert run.end(120)[0] == 143
    assert len(run.report()["ranks"]) == 64


def guard_of(run: Run) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                if int(fields[1]) == run.process.pid:
                    found.append(int(entry.name))
            except OSError:
                continue
    return found
