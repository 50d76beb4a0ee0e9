"""What the host has: memory and cores, less what a control group takes away. Linux; never raises."""

from __future__ import annotations

import math
import os
from pathlib import Path

from zerokit.units import counted, format_gib
from zerokit.values import frozen_dataclass

_NO_LIMIT_BYTES = 1 << 60  # cgroup v1 writes a huge number where there is no limit


@frozen_dataclass
class HostFacts:
    """Memory and cores that a job here can use, each with its reason: the smaller of the machine's and the
    control group's limit. ``ram_available_bytes``: what the kernel would give now without swapping."""

    ram_bytes: int | None
    ram_reason: str
    ram_available_bytes: int | None
    cores: int
    cores_reason: str


def detect_host(root: Path = Path("/")) -> HostFacts:
    """Look at this host; ``root`` stands for ``/`` (tests lay out another)."""
    total, available = _meminfo(root)
    groups = _groups(root)
    limits = []
    for folder in groups:
        for name in ("memory.max", "memory.limit_in_bytes"):
            text = _read(folder / name).strip()
            if text.isdigit() and int(text) < _NO_LIMIT_BYTES:
                limits.append(int(text))
    ram, ram_reason = _ram(total, min(limits, default=None))
    cores, cores_reason = _cores(_cpu_limit(groups))
    if available is not None and ram is not None:
        available = min(available, ram)
    return HostFacts(ram_bytes=ram, ram_reason=ram_reason, ram_available_bytes=available, cores=cores,
                     cores_reason=cores_reason)  # fmt: skip


def bf16_in_hardware(root: Path = Path("/")) -> bool:
    """Whether the CPUs multiply bf16 themselves (AVX512-BF16, AMX, or Arm's BF16 extensions). Elsewhere torch
    emulates it: a training step of a small model took 20 times as long as in fp32."""
    for line in _read(root / "proc/cpuinfo").splitlines():
        name, _, flags = line.partition(":")
        if name.strip() in ("flags", "Features"):  # x86, Arm
            return not {"avx512_bf16", "amx_bf16", "bf16"}.isdisjoint(flags.split())
    return False


def _ram(total: int | None, limit: int | None) -> tuple[int | None, str]:
    if total is None:
        return limit, "the control group's limit" if limit is not None else "/proc/meminfo cannot be read"
    if limit is not None and limit < total:
        return limit, f"the control group's limit; the machine has {format_gib(total)}"
    return total, "MemTotal in /proc/meminfo; no lower control group limit"


def _cores(limit: float | None) -> tuple[int, str]:
    try:
        cores, reason = len(os.sched_getaffinity(0)), "cores this process may run on"
    except (AttributeError, OSError):
        cores, reason = os.cpu_count() or 1, "cores of the machine"
    if limit is not None and limit < cores:
        quota = f"the control group's quota of {counted(limit, 'core')}; {reason}: {cores}"
        return max(1, math.floor(limit)), quota
    return cores, reason


def _meminfo(root: Path) -> tuple[int | None, int | None]:
    """MemTotal and MemAvailable in bytes."""
    values: dict[str, int] = {}
    for line in _read(root / "proc/meminfo").splitlines():
        name, _, rest = line.partition(":")
        number = rest.strip().removesuffix(" kB").strip()
        if number.isdigit():
            values[name] = int(number) * 1024
    return values.get("MemTotal"), values.get("MemAvailable")


def _groups(root: Path) -> list[Path]:
    """The control group folders that bind this process, v2 and v1, with their ancestors."""
    folders: list[Path] = []
    for line in _read(root / "proc/self/cgroup").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            bases = [root / "sys/fs/cgroup", root / "sys/fs/cgroup/unified"]
        else:
            bases = [
                root / "sys/fs/cgroup" / name for name in ("memory", "cpu") if name in controllers.split(",")
            ]
        relative = Path(path.lstrip("/"))
        if ".." in relative.parts:
            relative = Path()
        for base in bases:
            folders += [base / relative, *((base / parent) for parent in relative.parents)]
    return folders or [root / "sys/fs/cgroup"]


def _cpu_limit(groups: list[Path]) -> float | None:
    """The smallest quota, in cores."""
    limits = []
    for folder in groups:
        quota, _, period = _read(folder / "cpu.max").strip().partition(" ")
        if not quota:
            quota = _read(folder / "cpu.cfs_quota_us").strip()
            period = _read(folder / "cpu.cfs_period_us").strip()
        if quota.isdigit() and period.isdigit() and int(period) > 0 and int(quota) > 0:
            limits.append(int(quota) / int(period))
    return min(limits, default=None)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
