"""Threads of a rank's work on the host: DeepSpeed's CPU Adam steps offloaded states with OpenMP's.

``torchrun`` sets ``OMP_NUM_THREADS`` to 1 for more than one rank (torch 2.13, distributed/run.py:872),
``accelerate launch`` for any number (accelerate 1.15, commands/launch.py:1365); ``deepspeed`` sets none, so
that each rank takes all cores. On an H200's host, one core stepped 0.85e9 weights a second and 16 of them
6.1e9.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from zerokit.launcher.devices import cores_per_rank
from zerokit.launcher.placement import Placement
from zerokit.units import counted

VARIABLE = "OMP_NUM_THREADS"


def threads_of_rank(
    config: Mapping[str, Any] | None, placement: Placement, base: Mapping[str, str]
) -> tuple[int | None, str | None]:
    """How many threads each rank is to be given, None: as it is; and what is worth saying.

    Args:
        config: the DeepSpeed configuration that runs.
        base: the environment to start from; what the user set there stays.
    """
    if placement.devices.kind != "cuda" or placement.remote or not _steps_on_host(config):
        return None, None  # other machines have cores that nobody counted
    if not placement.devices.are_here:
        note = (
            f"{VARIABLE}: not shown, as the cores of that machine are not known: a launch there sets it to "
            "those of each rank, for the offloaded optimizer"
        )
        return None, None if VARIABLE in base else note
    cores = cores_per_rank(placement.devices.ranks)
    if VARIABLE not in base:
        note = f"{VARIABLE}={cores}: the offloaded optimizer steps on the host, with its cores for each rank"
        return cores, note
    words = base[VARIABLE].partition(",")[0].strip()
    if words.isdigit() and 2 * int(words) <= cores:
        return None, (
            f"warning: {VARIABLE} is {base[VARIABLE]}: the offloaded optimizer steps on so few threads, and "
            f"each rank has {counted(cores, 'core')} here; unset it, or set it to {cores}"
        )
    return None, None


def _steps_on_host(config: Mapping[str, Any] | None) -> bool:
    """Whether the optimizer's states are offloaded, so that CPU Adam steps them."""
    zero = (config or {}).get("zero_optimization")
    if not isinstance(zero, Mapping):
        return False
    offload = zero.get("offload_optimizer")
    device = offload.get("device") if isinstance(offload, Mapping) else None
    return device in ("cpu", "nvme") or zero.get("cpu_offload") is True
