"""Threads of a rank's work on the host: DeepSpeed's CPU Adam steps offloaded states with OpenMP's.

``torchrun`` sets ``OMP_NUM_THREADS`` to 1 for more than one rank (torch 2.13, distributed/run.py:872),
``accelerate launch`` for any number (accelerate 1.15, commands/launch.py:1365); ``deepspeed`` sets none, so
that each rank takes all cores. On an H200's host, one core stepped 0.85e9 weights a second and 16 of them
6.1e9.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from zerokit.launcher.placement import Placement
from zerokit.launcher.rank.core_share import SHARE_VARIABLE, THREADS_VARIABLE, cores_per_rank
from zerokit.units import counted


@dataclass(frozen=True, slots=True, kw_only=True)
class RankThreads:
    """The variables that give a rank its threads, none where it keeps its own, and what to say of them."""

    variables: dict[str, str] = field(default_factory=dict)
    note: str | None = None


def threads_of_rank(
    config: Mapping[str, Any] | None, placement: Placement, base: Mapping[str, str]
) -> RankThreads:
    """How many threads each rank is to be given.

    Args:
        config: the DeepSpeed configuration that runs.
        base: the environment to start from; what the user set there stays.
    """
    if placement.devices.kind != "cuda" or not _steps_on_host(config):
        return RankThreads()
    given = base.get(THREADS_VARIABLE)
    if placement.remote:
        return _on_nodes(given)
    if not placement.devices.are_here:
        note = (
            f"{THREADS_VARIABLE}: not shown, as the cores of that machine are not known: a launch there sets "
            "it to those of each rank, for the offloaded optimizer"
        )
        return RankThreads(note=note if given is None else None)
    cores = cores_per_rank(placement.devices.ranks)
    if given is None:
        note = (
            f"{THREADS_VARIABLE}={cores}: the offloaded optimizer steps on the host, with its cores for each "
            "rank"
        )
        return RankThreads(variables={THREADS_VARIABLE: str(cores)}, note=note)
    words = given.partition(",")[0].strip()
    if words.isdigit() and 2 * int(words) <= cores:
        return RankThreads(
            note=f"warning: {THREADS_VARIABLE} is {given}: the offloaded optimizer steps on so few threads, "
            f"and each rank has {counted(cores, 'core')} here; unset it, or set it to {cores}"
        )
    return RankThreads()


def _on_nodes(given: str | None) -> RankThreads:
    """Nobody here counts the cores of other machines: each rank does there, unless the user chose."""
    if given is not None:  # pdsh would not bring it there by itself
        return RankThreads(variables={THREADS_VARIABLE: given})
    return RankThreads(
        variables={SHARE_VARIABLE: "1"},
        note=f"{THREADS_VARIABLE}: each rank sets it to its share of its node's cores, for the offloaded "
        "optimizer",
    )


def _steps_on_host(config: Mapping[str, Any] | None) -> bool:
    """Whether the optimizer's states are offloaded, so that CPU Adam steps them."""
    zero = (config or {}).get("zero_optimization")
    if not isinstance(zero, Mapping):
        return False
    offload = zero.get("offload_optimizer")
    device = offload.get("device") if isinstance(offload, Mapping) else None
    return device in ("cpu", "nvme") or zero.get("cpu_offload") is True
