"""Which devices the ranks get, decided before the launcher starts.

``deepspeed`` crashes on UUIDs in ``CUDA_VISIBLE_DEVICES`` and drops the variable when it gets
``--num_gpus``; so the variable is resolved to physical indexes here, and those are given to it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace

from zerokit.errors import InputError, NodeUnusable
from zerokit.machine.detect import VISIBILITY, Listing, list_gpus
from zerokit.machine.visible import FoundGpu, chosen
from zerokit.units import counted

DEVICES = ("auto", "cuda", "cpu")
DEFAULT_CPU_RANKS = 2
_MOST_CPU_RANKS = 256
_PLANNED_FOR_CPU = (
    "the plan is for CPU ranks, and its batch and strategy were chosen for host memory: plan for the GPUs "
    "with `zerokit plan`, or give ⟨device⟩ cpu"
)
# without persistence mode, nvidia-smi first wakes every GPU
_LISTING_SECONDS = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Devices:
    """What the ranks run on: physical GPU indexes, or a number of CPU ranks; and why.

    Attributes:
        warning: that they are not what the plan is for, though nobody asked for these.
        are_here: False for a dry run of what another machine would run.
    """

    kind: str
    ranks: int
    gpu_indexes: tuple[int, ...]
    why: str
    warning: str | None = None
    are_here: bool = True


def visible_gpus(listing: Listing, environment: Mapping[str, str]) -> tuple[tuple[FoundGpu, ...], str]:
    """The GPUs that a process started here would see, in its order, and the variable that says so.

    Raises:
        InputError: a MIG instance, a duplicate, or a UUID that fits several GPUs.
    """
    gpus, mask = listing.gpus, ""
    for variable in VISIBILITY.get(listing.vendor or "", ()):
        value = environment.get(variable)
        if value is None:
            continue
        mask = f"{variable}={value}"
        if "MIG-" in value:
            raise InputError(
                f"{mask}: a MIG instance cannot be given to several ranks by index; "
                "use ⟨launcher⟩ torchrun ⟨num_ranks⟩ 1 with it, or whole GPUs"
            )
        gpus, problem = chosen(gpus, value)
        if problem:
            raise InputError(f"{mask}: {problem}")
        if variable == "ROCR_VISIBLE_DEVICES":
            # stays set, and what comes after counts anew among what it leaves
            gpus = tuple(replace(gpu, index=number) for number, gpu in enumerate(gpus))
        elif variable == "HIP_VISIBLE_DEVICES":
            break  # CUDA_VISIBLE_DEVICES counts only where it is not set
    return gpus, mask


def resolve(
    device: str,
    *,
    num_ranks: int | None,
    planned_ranks: int | None,
    planned_gpu: str | None = None,
    asks_for_gpus: bool = False,
    environment: Mapping[str, str] | None = None,
    nodes: int = 1,
    dry_run: bool = False,
) -> Devices:
    """Choose the devices of this machine: as many as asked for, as planned, or all there are.

    Args:
        planned_gpu: what the plan's ranks are to run on, ``cpu`` among it; None: there is no plan, or it
            does not say.
        asks_for_gpus: ``num_ranks`` was said as a number of GPUs.
        dry_run: nothing will be started, so GPUs that are missing here are a warning.

    Raises:
        InputError: an unknown kind, or no sensible number of ranks.
        NodeUnusable: fewer GPUs than needed, unless ``dry_run``.
    """
    environment = os.environ if environment is None else environment
    if device not in DEVICES:
        raise InputError(f"⟨device⟩ {device}: use auto, cuda or cpu")
    if planned_ranks is not None and nodes > 1:
        planned_ranks = -(-planned_ranks // nodes)
    if device != "cpu":
        listing = list_gpus(os.environ, timeout_seconds=_LISTING_SECONDS)
        gpus, mask = visible_gpus(listing, environment)
        if device == "cuda" or gpus:
            reason = f"{mask} leaves none of {len(listing.gpus)}" if listing.gpus else listing.reason
            for_cpu = planned_gpu == "cpu"
            requester = (
                f"{'⟨gpus⟩' if asks_for_gpus else '⟨num_ranks⟩'} asks for"
                if num_ranks
                else "the plan's ranks ask for"
                if for_cpu
                else "the plan is for"
            )
            on_gpus = _on_gpus(gpus, reason, num_ranks or planned_ranks, requester, dry_run=dry_run)
            return _warned(on_gpus, _PLANNED_FOR_CPU) if for_cpu else on_gpus
        why = "no GPU is visible" if listing.gpus else "no GPU was found"
        wanted = None if planned_gpu in (None, "cpu") else f"the plan is for {planned_gpu} GPUs"
        if asks_for_gpus and num_ranks:
            wanted = f"⟨gpus⟩ asks for {counted(num_ranks, 'GPU')}"
        warning = _instead_of_gpus(wanted, mask if listing.gpus else listing.reason) if wanted else None
    else:
        why, warning = "⟨device⟩ cpu", None
    ranks = num_ranks or planned_ranks or DEFAULT_CPU_RANKS
    if ranks > _MOST_CPU_RANKS:
        raise InputError(
            f"{ranks} ranks on the CPU of one machine: use ⟨num_ranks⟩ {_MOST_CPU_RANKS} or fewer, "
            "or run on the GPUs"
        )
    planned = "as planned" if planned_gpu in (None, "cpu") else "as many as the plan has GPUs"
    if nodes > 1:
        planned += " there"
    asked = "as many as the GPUs asked for" if asks_for_gpus else "asked for"
    source = asked if num_ranks else planned if planned_ranks else "the default"
    return Devices(
        kind="cpu",
        ranks=ranks,
        gpu_indexes=(),
        why=f"{counted(ranks, 'CPU rank')}{' on each node' if nodes > 1 else ''} ({source}): {why}",
        warning=warning,
    )


def _warned(devices: Devices, warning: str) -> Devices:
    """With one warning more."""
    return replace(devices, warning="; ".join(filter(None, (devices.warning, warning))))


def _instead_of_gpus(wanted: str, reason: str) -> str:
    """What to say where CPU ranks run because there are no GPUs, which were wanted."""
    return (
        f"{wanted} and no GPU can be used here ({reason}), so this is for CPU "
        "ranks: far slower, and no figures of GPU memory; `zerokit doctor` shows what is missing, ⟨device⟩ "
        "cuda stops instead, ⟨device⟩ cpu runs on the CPU without this warning"
    )


def _on_gpus(
    gpus: tuple[FoundGpu, ...],
    reason: str,
    wanted: int | None,
    requester: str,
    *,
    dry_run: bool,
) -> Devices:
    """The first GPUs; ``reason`` says why there is none, ``requester`` who wants so many."""
    ranks = wanted or len(gpus) or 1
    missing, fix = None, ""
    if not gpus:
        missing, fix = f"⟨device⟩ cuda: {reason}", "use ⟨device⟩ cpu for CPU ranks"
    elif ranks > len(gpus):
        missing = f"{requester} {counted(ranks, 'GPU')}, of which {len(gpus)} can be seen here"
        fix = f"plan again with ⟨gpus⟩ {len(gpus)}, or run on CPU ranks with ⟨device⟩ cpu"
    if missing is not None:
        if not dry_run:
            raise NodeUnusable(f"{missing}; {fix}")
        return Devices(
            kind="cuda",
            ranks=ranks,
            gpu_indexes=tuple(range(ranks)),
            why=f"this is what a machine with {counted(ranks, 'GPU')} would run",
            warning=f"{missing}; here the launch would stop with exit code 13",
            are_here=False,
        )
    indexes = tuple(gpu.index for gpu in gpus[:ranks])
    visible = ",".join(map(str, indexes))
    return Devices(
        kind="cuda", ranks=ranks, gpu_indexes=indexes, why=f"{ranks} × {gpus[0].name} (GPU {visible})"
    )
