"""A rank's share of its machine's cores, as threads of OpenMP, where only the rank itself can count them.

Before torch is imported: OpenMP reads the variable once. Standard library only.
"""

from __future__ import annotations

import os
from collections.abc import MutableMapping
from pathlib import Path

THREADS_VARIABLE = "OMP_NUM_THREADS"
SHARE_VARIABLE = "ZEROKIT_SHARE_CORES"
"""Set for ranks on other machines: each takes its share of the cores there."""
# how many ranks the machine has: of torchrun, and of DeepSpeed (launcher/launch.py:182 of 0.19.8)
_RANKS_HERE = ("LOCAL_WORLD_SIZE", "LOCAL_SIZE")


def cores_per_rank(ranks: int) -> int:
    """Cores of this machine (as this process may use them) for each of its ranks."""
    try:
        cores = len(os.sched_getaffinity(0))
    except AttributeError:
        cores = os.cpu_count() or 1
    quota = _cgroup_cores()
    return max(1, int(min(cores, quota or cores)) // ranks)


def take_share(environment: MutableMapping[str, str] | None = None) -> None:
    """Set this rank's threads, if the launch left that to the ranks; over what the launcher set."""
    environment = os.environ if environment is None else environment
    if not environment.get(SHARE_VARIABLE):
        return
    counts = [environment[name] for name in _RANKS_HERE if environment.get(name, "").isdigit()]
    if counts:
        environment[THREADS_VARIABLE] = str(cores_per_rank(max(1, int(counts[0]))))


def _cgroup_cores() -> float | None:
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return None if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError):
        return None
