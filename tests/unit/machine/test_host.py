"""Host memory and processors: the kernel's word, limits of control groups, and what cannot be read."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from zerokit.machine.detect import detect
from zerokit.machine.host import detect_host
from zerokit.units import GIB


def _root(tmp_path: Path, files: dict[str, str]) -> Path:
    meminfo = "MemTotal:       131072000 kB\nMemFree: 1 kB\nMemAvailable:   120000000 kB\n"
    for name, text in {"proc/meminfo": meminfo, **files}.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return tmp_path


def test_host_memory_without_a_limit(tmp_path: Path) -> None:
    host = detect_host(_root(tmp_path, {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "max\n"}))
    assert host.ram_bytes == 131072000 * 1024
    assert host.ram_available_bytes == 120000000 * 1024
    assert host.cores == len(os.sched_getaffinity(0))


@pytest.mark.parametrize(
    "files",
    [
        {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": f"{64 * GIB}\n"},
        # the limit of an ancestor binds
        {
            "proc/self/cgroup": "0::/slurm/job_1/step_0\n",
            "sys/fs/cgroup/slurm/job_1/memory.max": f"{64 * GIB}\n",
            "sys/fs/cgroup/slurm/job_1/step_0/memory.max": "max\n",
        },
        # version 1
        {
            "proc/self/cgroup": "9:memory:/docker/abc\n3:cpu,cpuacct:/docker/abc\n",
            "sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes": f"{64 * GIB}\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
        },
        # the path of the host, seen from a container that mounts only its own group
        {"proc/self/cgroup": "9:memory:/docker/abc\n",
         "sys/fs/cgroup/memory/memory.limit_in_bytes": f"{64 * GIB}\n"},
    ],
)  # fmt: skip
def test_the_control_group_limit_counts(tmp_path: Path, files: dict[str, str]) -> None:
    host = detect_host(_root(tmp_path, files))
    assert host.ram_bytes == 64 * GIB
    assert host.ram_available_bytes == 64 * GIB
    assert "control group" in host.ram_reason and "125.00 GiB" in host.ram_reason


def test_a_cpu_quota_counts(tmp_path: Path) -> None:
    host = detect_host(
        _root(tmp_path, {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "100000 100000\n"})
    )
    assert host.cores == 1
    host = detect_host(_root(tmp_path, {"sys/fs/cgroup/cpu.max": "max 100000\n"}))
    assert host.cores == len(os.sched_getaffinity(0))


def test_an_unreadable_host_is_described(tmp_path: Path) -> None:
    host = detect_host(tmp_path)
    assert host.ram_bytes is None
    assert "cannot be read" in host.ram_reason
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_bytes(b"\xff\x00MemTotal: lots kB\nMemTotal\n")
    assert detect_host(tmp_path).ram_bytes is None


def test_this_machine_is_seen_as_the_kernel_tells_it() -> None:
    host = detect().host
    assert host.ram_bytes is not None
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert 0 < host.ram_bytes <= pages
