"""Where the ranks will run: machines, devices, threads, and the port at which they meet."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from zerokit.errors import InputError, NodeUnusable
from zerokit.fields import as_options
from zerokit.launcher import ports, preflight, run_folder
from zerokit.launcher.nodes import cluster
from zerokit.launcher.options import LaunchOptions
from zerokit.launcher.rank import deadman
from zerokit.launcher.rank_start import SHARE_VARIABLE, THREADS_VARIABLE, cores_per_rank
from zerokit.machine.detect import VISIBILITY, FoundGpu, Listing, chosen, list_gpus
from zerokit.notes import warning
from zerokit.units import counted

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
    """What the ranks run on: physical GPU indexes, or a number of CPU ranks; and why. ``warning``: that they
    are not what the plan is for, though nobody asked for these; ``are_here``: False for a dry run of what
    another machine would run."""

    kind: str
    ranks: int
    gpu_indexes: tuple[int, ...]
    why: str
    warning: str | None = None
    are_here: bool = True


def visible_gpus(listing: Listing, environment: Mapping[str, str]) -> tuple[tuple[FoundGpu, ...], str]:
    """The GPUs that a process started here would see, in its order, and the variable that says so. Raises
    InputError: a MIG instance, a duplicate, or a UUID that fits several GPUs."""
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

    Raises:
        InputError: no sensible number of ranks.
        NodeUnusable: fewer GPUs than needed, unless ``dry_run``.
    """
    environment = os.environ if environment is None else environment
    if planned_ranks is not None and nodes > 1:
        planned_ranks = -(-planned_ranks // nodes)
    if device != "cpu":
        listing = list_gpus(os.environ, timeout_seconds=_LISTING_SECONDS)
        gpus, mask = visible_gpus(listing, environment)
        if device == "cuda" or gpus:
            reason = f"{mask} leaves none of {len(listing.gpus)}" if listing.gpus else listing.reason
            for_cpu = planned_gpu == "cpu"
            requester = "the plan's ranks ask for" if for_cpu else "the plan is for"
            if num_ranks:
                requester = f"{'⟨gpus⟩' if asks_for_gpus else '⟨num_ranks⟩'} asks for"
            on_gpus = _on_gpus(gpus, reason, num_ranks or planned_ranks, requester, dry_run=dry_run)
            warnings = filter(None, (on_gpus.warning, _PLANNED_FOR_CPU if for_cpu else None))
            return replace(on_gpus, warning="; ".join(warnings) or None)
        why = "no GPU is visible" if listing.gpus else "no GPU was found"
        wanted = None if planned_gpu in (None, "cpu") else f"the plan is for {planned_gpu} GPUs"
        if asks_for_gpus and num_ranks:
            wanted = f"⟨gpus⟩ asks for {counted(num_ranks, 'GPU')}"
        warning = wanted and (
            f"{wanted} and no GPU can be used here ({mask if listing.gpus else listing.reason}), so this is "
            "for CPU ranks: far slower, and no figures of GPU memory; `zerokit doctor` shows what is "
            "missing, ⟨device⟩ cuda stops instead, ⟨device⟩ cpu runs on the CPU without this warning"
        )
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Where the ranks will run: ``devices`` of each machine; ``hosts`` of the hostfile, or the ``slurm`` job
    whose nodes they are; those that have a run folder of their own; after how many seconds without a sign of
    life from here ranks on other hosts end themselves; and what is worth saying."""

    devices: Devices
    port: int
    hosts: tuple[cluster.Host, ...] | None = None
    slurm: cluster.SlurmJob | None = None
    unshared_hosts: tuple[str, ...] = ()
    alive_seconds: float = 120.0
    notes: tuple[str, ...] = ()

    @property
    def ranks(self) -> int:
        """On all machines together."""
        if self.hosts is not None:
            return sum(host.slots for host in self.hosts)
        return self.devices.ranks * (len(self.slurm.nodes) if self.slurm else 1)

    @property
    def problems(self) -> list[str]:
        """What the report is to say of it, too."""
        return [] if self.devices.warning is None else [as_options(self.devices.warning)]

    @property
    def local_ranks(self) -> int:
        """How many of them run here, where the guard sees them."""
        on_one = self.hosts is None and (self.slurm is None or len(self.slurm.nodes) == 1)
        return self.devices.ranks if on_one else 0

    @property
    def remote(self) -> bool:
        """Whether ranks may run on other machines, which the guard cannot see."""
        return bool(self.hosts) or self.slurm is not None

    @property
    def remote_hosts(self) -> tuple[str, ...]:
        """The names of the machines: zerokit reaches them over ssh, or in a step of the Slurm job."""
        return self.slurm.nodes if self.slurm else tuple(host.name for host in self.hosts or ())

    @property
    def slurm_job(self) -> str | None:
        """The id of the Slurm job."""
        return self.slurm.job_id if self.slurm else None


def decide_placement(
    options: LaunchOptions,
    run_dir: Path,
    planned_ranks: int | None,
    stack: ExitStack,
    *,
    planned_gpu: str | None = None,
    dry_run: bool = False,
) -> Placement:
    """Choose machines, devices and a port, which stays reserved until ``stack`` is closed. In a ``dry_run``
    this machine may lack the GPUs, and the others need not answer. Raises InputError: bad input.
    NodeUnusable: a device, node or port cannot be used."""
    hosts = None
    if options.hostfile is not None:
        hosts = cluster.choose_hosts(cluster.read_hostfile(Path(options.hostfile)), options.nodes)
    elif options.nodes not in (None, 1):
        raise InputError(f"⟨nodes⟩ {options.nodes} needs ⟨hostfile⟩ FILE with the machines' names")
    slurm = cluster.slurm_job() if hosts is None else None
    node_count = len(hosts) if hosts else len(slurm.nodes) if slurm else 1
    devices = resolve(
        options.device, num_ranks=options.ranks, planned_ranks=planned_ranks, planned_gpu=planned_gpu,
        asks_for_gpus=options.gpus is not None, nodes=node_count, dry_run=dry_run,
    )  # fmt: skip
    port = stack.enter_context(ports.reserve(options.master_port))
    unshared: tuple[str, ...] = ()
    notes = [devices.why, *([warning("devices", devices.warning)] if devices.warning else [])]
    if hosts:
        with _warning_of_a_dry_run(notes, dry_run):
            if shutil.which("pdsh") is None:
                raise NodeUnusable(
                    "⟨hostfile⟩: DeepSpeed starts other machines' ranks with pdsh, which is not installed "
                    "here; install it (apt install pdsh), or run under Slurm"
                )
        with _warning_of_a_dry_run(notes, dry_run):
            unshared = _check_nodes(hosts, run_dir, need_gpus=devices.kind == "cuda", port=port)
    if slurm is not None:
        notes.append(
            f"Slurm job {slurm.job_id}: one torchrun on each of {counted(node_count, 'node')}, through srun"
        )
    if unshared:
        notes.append(f"the run folder is not shared with {', '.join(unshared)}: files go over ssh")
    return Placement(
        devices=devices,
        port=port,
        hosts=None if hosts is None else tuple(hosts),
        slurm=slurm,
        unshared_hosts=unshared,
        alive_seconds=deadman.patience_seconds(options.heartbeat),
        notes=tuple(notes),
    )


@contextmanager
def _warning_of_a_dry_run(notes: list[str], dry_run: bool) -> Iterator[None]:
    """What a launch would stop at; a dry run starts nothing, and only says it."""
    try:
        yield
    except NodeUnusable as error:
        if not dry_run:
            raise
        notes.append(warning("node-unusable", error.marked))


def _check_nodes(hosts: list[cluster.Host], run_dir: Path, *, need_gpus: bool, port: int) -> tuple[str, ...]:
    """Ask all nodes; returns those that have a run folder of their own (unknown in a dry run)."""
    token = run_dir / f".shared-{os.urandom(8).hex()}"
    try:
        if run_dir.is_dir():
            run_folder.write_atomically(token, b"")
        return preflight.check_nodes(
            hosts, need_gpus=need_gpus, port=port, token=token if token.exists() else None
        )
    finally:
        token.unlink(missing_ok=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankThreads:
    """The variables that give a rank its threads, none where it keeps its own, and what to say of them."""

    variables: dict[str, str] = field(default_factory=dict)
    note: str | None = None


def threads_of_rank(
    config: Mapping[str, Any] | None, placement: Placement, base: Mapping[str, str]
) -> RankThreads:
    """How many threads each rank is to be given for this DeepSpeed configuration; what the user set in
    ``base``, the environment to start from, stays."""
    zero = (config or {}).get("zero_optimization")
    zero = zero if isinstance(zero, Mapping) else {}
    offload = zero.get("offload_optimizer")
    device = offload.get("device") if isinstance(offload, Mapping) else None
    steps_on_host = device in ("cpu", "nvme") or zero.get("cpu_offload") is True  # CPU Adam does
    if placement.devices.kind != "cuda" or not steps_on_host:
        return RankThreads()
    given = base.get(THREADS_VARIABLE)
    if placement.remote:  # nobody here counts the cores of other machines: each rank does there
        if given is not None:  # pdsh would not bring it there by itself
            return RankThreads(variables={THREADS_VARIABLE: given})
        note = (
            f"{THREADS_VARIABLE}: each rank sets it to its share of its node's cores, for the offloaded "
            "optimizer"
        )
        return RankThreads(variables={SHARE_VARIABLE: "1"}, note=note)
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
        text = (
            f"{THREADS_VARIABLE} is {given}: the offloaded optimizer steps on so few threads, and each rank "
            f"has {counted(cores, 'core')} here; unset it, or set it to {cores}"
        )
        return RankThreads(note=warning("few-threads", text))
    return RankThreads()
