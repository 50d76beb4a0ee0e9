"""Which devices the ranks get, decided before the launcher starts.

``deepspeed`` crashes on UUIDs in ``CUDA_VISIBLE_DEVICES`` and drops the variable when it gets
``--num_gpus``; so the variable is resolved to physical indexes here, and those are given to it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from zerokit.errors import InputError, NodeUnusable

DEVICES = ("auto", "cuda", "cpu")
DEFAULT_CPU_RANKS = 2
_MOST_CPU_RANKS = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSeen:
    """One GPU as nvidia-smi lists it; ``index`` counts in PCI bus order."""

    index: int
    uuid: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Devices:
    """What the ranks run on: physical GPU indexes, or a number of CPU ranks; and why."""

    kind: str
    ranks: int
    gpu_indexes: tuple[int, ...]
    why: str


def list_gpus() -> list[GpuSeen]:
    """The NVIDIA GPUs of this machine; empty when there is no driver."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    query = [program, "--query-gpu=index,uuid,name", "--format=csv,noheader"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return []
    if done.returncode != 0:
        return []
    gpus = []
    for line in done.stdout.splitlines():
        parts = [part.strip() for part in line.split(",", 2)]
        if len(parts) == 3 and parts[0].isdigit():
            gpus.append(GpuSeen(index=int(parts[0]), uuid=parts[1], name=parts[2]))
    return gpus


def visible_gpus(gpus: list[GpuSeen], variable: str | None) -> list[GpuSeen]:
    """The GPUs that ``CUDA_VISIBLE_DEVICES`` leaves, in its order.

    As CUDA reads it: unset means all; indexes or (shortened) UUIDs; the list ends at the first
    entry that is no device; an empty value or -1 hides all.

    Raises:
        InputError: a MIG instance, a duplicate, or a UUID that fits several GPUs.
    """
    if variable is None:
        return gpus
    chosen: list[GpuSeen] = []
    for part in (part.strip() for part in variable.split(",")):
        if part.startswith("MIG"):
            raise InputError(
                f"CUDA_VISIBLE_DEVICES={variable}: a MIG instance cannot be given to several ranks by index; "
                "use --launcher torchrun --num-ranks 1 with it, or whole GPUs"
            )
        if part.isdigit():
            found = [gpu for gpu in gpus if gpu.index == int(part)]
        elif part.upper().startswith("GPU-"):
            found = [gpu for gpu in gpus if gpu.uuid.lower().startswith(part.lower())]
        else:
            break
        if not found:
            break
        if len(found) > 1:
            raise InputError(
                f"CUDA_VISIBLE_DEVICES={variable}: {part} fits {len(found)} GPUs; write more of the UUID"
            )
        if found[0] in chosen:
            raise InputError(
                f"CUDA_VISIBLE_DEVICES={variable}: names GPU {found[0].index} twice; CUDA would see none"
            )
        chosen.append(found[0])
    return chosen


def resolve(
    wanted: str,
    *,
    num_ranks: int | None,
    planned_ranks: int | None,
    environment: Mapping[str, str] | None = None,
    nodes: int = 1,
) -> Devices:
    """Choose the devices of this machine: as many as asked for, as planned, or all there are.

    Raises:
        InputError: an unknown kind, or no sensible number of ranks.
        NodeUnusable: fewer GPUs than needed.
    """
    environment = os.environ if environment is None else environment
    if wanted not in DEVICES:
        raise InputError(f"--device {wanted}: use auto, cuda or cpu")
    if planned_ranks is not None and nodes > 1:
        planned_ranks = -(-planned_ranks // nodes)
    variable = environment.get("CUDA_VISIBLE_DEVICES")
    all_gpus = list_gpus() if wanted != "cpu" else []
    gpus = visible_gpus(all_gpus, variable)
    if wanted == "cuda" or (wanted == "auto" and gpus):
        return _on_gpus(gpus, all_gpus, variable, num_ranks, planned_ranks)
    ranks = num_ranks or planned_ranks or DEFAULT_CPU_RANKS
    if ranks > _MOST_CPU_RANKS:
        raise InputError(
            f"{ranks} ranks on the CPU of one machine: use --num-ranks {_MOST_CPU_RANKS} or fewer, "
            "or run on the GPUs"
        )
    why = "--device cpu" if wanted == "cpu" else "no GPU " + ("is visible" if all_gpus else "was found")
    source = "asked for" if num_ranks else "as the plan has GPUs" if planned_ranks else "the default"
    return Devices(kind="cpu", ranks=ranks, gpu_indexes=(), why=f"{ranks} CPU ranks ({source}): {why}")


def _on_gpus(
    gpus: list[GpuSeen],
    all_gpus: list[GpuSeen],
    variable: str | None,
    num_ranks: int | None,
    planned_ranks: int | None,
) -> Devices:
    if not gpus:
        reason = (
            f"CUDA_VISIBLE_DEVICES={variable} leaves none of {len(all_gpus)}"
            if all_gpus
            else "nvidia-smi lists none on this machine"
        )
        raise NodeUnusable(f"--device cuda: no GPU: {reason}; use --device cpu for CPU ranks")
    ranks = num_ranks or planned_ranks or len(gpus)
    if ranks > len(gpus):
        who = "--num-ranks asks for" if num_ranks else "the plan is for"
        raise NodeUnusable(
            f"{who} {ranks} GPUs, and {len(gpus)} are visible here; plan again with --gpus {len(gpus)}, or "
            "run on CPU ranks with --device cpu"
        )
    chosen = gpus[:ranks]
    indexes = tuple(gpu.index for gpu in chosen)
    shown = ",".join(map(str, indexes))
    return Devices(
        kind="cuda", ranks=ranks, gpu_indexes=indexes, why=f"{ranks} × {chosen[0].name} (GPU {shown})"
    )


def cores_per_rank(ranks: int) -> int:
    """Cores of this machine (as this process may use them) for each rank."""
    try:
        cores = len(os.sched_getaffinity(0))
    except AttributeError:
        cores = os.cpu_count() or 1
    quota = _cgroup_cores()
    return max(1, int(min(cores, quota or cores)) // ranks)


def _cgroup_cores() -> float | None:
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return None if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError):
        return None
