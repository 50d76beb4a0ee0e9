"""GPUs, host memory, limits, disks and the port: what the machine itself would stop a run with."""

from __future__ import annotations

import os
import resource
import shutil
from pathlib import Path

from zerokit.doctor.finding import DoctorFinding, Surroundings, note, ok, warning
from zerokit.launcher.ports import holder, is_free
from zerokit.units import GIB, MIB, counted, format_gib

DEFAULT_PORT = 29500  # deepspeed --master_port and torchrun agree on it
_DOCKER_SHM_BYTES = 64 * MIB  # what a container gets without --shm-size
_SMALL_SHM_BYTES = GIB
_FULL_DISK_BYTES = 5 * GIB
_LOW_DISK_BYTES = 50 * GIB
_FEW_FILES = 4096
_BUSY_GPU_BYTES = GIB


def findings(around: Surroundings) -> list[DoctorFinding]:
    """Everything about the machine itself."""
    temporary = Path(around.environment.get("TMPDIR") or around.root / "tmp")
    cache = Path(around.environment.get("HF_HOME") or around.environment.get("XDG_CACHE_HOME") or around.home)
    result, devices = [], set()
    for purpose, path in (("this folder", around.cwd), ("temporary files", temporary), ("caches", cache)):
        while not path.exists() and path != path.parent:
            path = path.parent
        try:
            device, free = path.stat().st_dev, shutil.disk_usage(path).free
        except OSError as error:
            result.append(warning("disk.space", f"{purpose} ({path}): {error.strerror}", "make it readable"))
            continue
        if device not in devices:
            devices.add(device)
            state = warning if free < _FULL_DISK_BYTES else note if free < _LOW_DISK_BYTES else ok
            fix = "make room: a checkpoint takes about 14 bytes a parameter (98 GB for 7B)"
            told = f"{path} ({purpose}) has {format_gib(free)} free"
            result.append(state("disk.space", told, None if state is ok else fix))
    return [
        *_gpus(around),
        *_host(around),
        _shared_memory(around),
        _locked_memory(around),
        _open_files(),
        *result,
        _port(),
    ]


def _gpus(around: Surroundings) -> list[DoctorFinding]:
    detected = around.detected
    if not detected.gpus:
        fix = "unset the variable, or run on CPU ranks" if detected.hidden_gpus else None
        state = warning if detected.hidden_gpus else note
        problem = f"{detected.gpu_reason}; a run here would be on CPU ranks"
        return [state("gpu.found", problem, fix or "plan for other machines with --gpu NAME --gpus N")]
    first = detected.gpus[0]
    result = [
        ok(
            "gpu.found",
            f"{len(detected.gpus)} × {first.name}, driver {detected.driver_version}; {detected.gpu_reason}",
        )
    ]
    entry, reason = detected.catalog_gpu()
    if entry is None:
        result.append(note("gpu.catalogue", reason, "give --gpu NAME or --vram SIZE when planning"))
    else:
        result.append(ok("gpu.catalogue", reason))
    kinds = sorted({gpu.name for gpu in detected.gpus})
    if len(kinds) > 1:
        fix = "choose alike GPUs with CUDA_VISIBLE_DEVICES"
        result.append(warning("gpu.alike", f"GPUs differ: {', '.join(kinds)}: all wait for the slowest", fix))
    if entry is not None and not entry.peer_to_peer and len(detected.gpus) > 1:
        problem = f"{entry.name} has no peer access: every exchange goes through host memory"
        result.append(note("gpu.peer-to-peer", problem))
    busy = [gpu for gpu in detected.gpus if (gpu.used_bytes or 0) > _BUSY_GPU_BYTES]
    if busy:
        listed = ", ".join(f"GPU {gpu.index}: {format_gib(gpu.used_bytes or 0)}" for gpu in busy)
        result.append(
            warning(
                "gpu.memory-in-use", f"memory is taken already: {listed}", "see who with nvidia-smi; end it"
            )
        )
    return result


def _host(around: Surroundings) -> list[DoctorFinding]:
    host, gpus = around.detected.host, len(around.detected.gpus)
    result = []
    if host.ram_bytes is None:
        result.append(note("host.memory", f"host memory is unknown: {host.ram_reason}"))
    else:
        available = f", {format_gib(host.ram_available_bytes)} available" if host.ram_available_bytes else ""
        result.append(ok("host.memory", f"{format_gib(host.ram_bytes)}{available} ({host.ram_reason})"))
    cores = f"{counted(host.cores, 'core')} ({host.cores_reason})"
    if gpus and host.cores < 2 * gpus:
        fix = "give the job at least two cores per GPU: one drives the rank, one loads its data"
        result.append(warning("host.cores", f"{cores} for {counted(gpus, 'GPU')}", fix))
    else:
        result.append(ok("host.cores", cores))
    return result


def _shared_memory(around: Surroundings) -> DoctorFinding:
    check, path = "system.shared-memory", around.root / "dev/shm"
    try:
        space = os.statvfs(path)
    except OSError:
        return warning(
            check, "/dev/shm is missing: NCCL and data loaders use it", "mount a tmpfs on /dev/shm"
        )
    size = space.f_blocks * space.f_frsize
    size_text = f"/dev/shm has {format_gib(size)}"
    fix = "docker run --shm-size=16g (or --ipc=host); Kubernetes: an emptyDir with medium Memory"
    if size <= _DOCKER_SHM_BYTES:
        return warning(
            check, f"{size_text}, a container's default: NCCL and data loaders with workers will fail", fix
        )
    if size < _SMALL_SHM_BYTES:
        return note(check, f"{size_text}: little for data loaders with workers", fix)
    return ok(check, size_text)


def _locked_memory(around: Surroundings) -> DoctorFinding:
    check = "system.locked-memory"
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if soft == resource.RLIM_INFINITY:
        return ok(check, "locked memory is unlimited")
    limit = f"locked memory is limited to {format_gib(soft)}"
    fix = "ulimit -l unlimited (docker run --ulimit memlock=-1; limits.conf: memlock unlimited)"
    infiniband = around.root / "sys/class/infiniband"
    try:
        adapters = sorted(path.name for path in infiniband.iterdir())
    except OSError:
        adapters = []
    if adapters:
        cause = f"InfiniBand ({', '.join(adapters[:4])}) and NVMe offload lock their buffers"
        return warning(check, f"{limit}: {cause}", fix)
    return note(check, f"{limit}: only NVMe offload, which locks its buffers, is affected", fix)


def _open_files() -> DoctorFinding:
    check = "system.open-files"
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < _FEW_FILES:
        limit = f"at most {soft} open files: many ranks with data loader workers may need more"
        return note(check, limit, f"ulimit -n {hard if hard > 0 else 65536}")
    return ok(check, "open files: " + ("unlimited" if soft == resource.RLIM_INFINITY else f"up to {soft}"))


def _port() -> DoctorFinding:
    check = "system.port"
    if is_free(DEFAULT_PORT):
        return ok(check, f"port {DEFAULT_PORT}, the launchers' default, is free")
    return warning(
        check,
        f"port {DEFAULT_PORT}, the launchers' default, is held by {holder(DEFAULT_PORT)}",
        "`zerokit launch` takes a free one by itself; plain deepspeed needs --master_port",
    )
