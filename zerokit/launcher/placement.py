"""Where the ranks will run: machines, devices and the port at which they meet."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from zerokit.errors import InputError, NodeUnusable
from zerokit.fields import as_options
from zerokit.launcher import devices as device_module
from zerokit.launcher import ports, preflight, run_folder
from zerokit.launcher.nodes import cluster
from zerokit.launcher.options import LaunchOptions
from zerokit.launcher.rank import deadman
from zerokit.units import counted


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Where the ranks will run.

    Attributes:
        devices: of each machine.
        hosts: of the hostfile; None without one.
        slurm: the job whose nodes they are, where no hostfile is given.
        unshared_hosts: those that have a run folder of their own.
        alive_seconds: without a sign of life from here for so long, ranks on other hosts end themselves.
        notes: what is worth saying about it.
    """

    devices: device_module.Devices
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
    """Choose machines, devices and a port, which stays reserved until ``stack`` is closed.

    Args:
        planned_gpu: what the plan's ranks are to run on, ``cpu`` among it.
        dry_run: nothing will be started, so this machine may lack the GPUs, and the others need not answer.

    Raises:
        InputError: bad input. NodeUnusable: a device, node or port cannot be used.
    """
    hosts = _hosts(options)
    slurm = cluster.slurm_job() if hosts is None else None
    node_count = len(hosts) if hosts else len(slurm.nodes) if slurm else 1
    devices = device_module.resolve(
        options.device, num_ranks=options.ranks, planned_ranks=planned_ranks, planned_gpu=planned_gpu,
        asks_for_gpus=options.gpus is not None, nodes=node_count, dry_run=dry_run,
    )  # fmt: skip
    port = stack.enter_context(ports.reserve(options.master_port))
    unshared: tuple[str, ...] = ()
    notes = [devices.why, *([f"warning: {devices.warning}"] if devices.warning else [])]
    if hosts:
        with _warning_of_a_dry_run(notes, dry_run):
            preflight.check_pdsh()
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
        notes.append(f"warning: {error.marked}")


def _hosts(options: LaunchOptions) -> list[cluster.Host] | None:
    if options.hostfile is None:
        if options.nodes not in (None, 1):
            raise InputError(f"⟨nodes⟩ {options.nodes} needs ⟨hostfile⟩ FILE with the machines' names")
        return None
    return cluster.choose_hosts(cluster.read_hostfile(Path(options.hostfile)), options.nodes)


def _check_nodes(hosts: list[cluster.Host], run_dir: Path, *, need_gpus: bool, port: int) -> tuple[str, ...]:
    """Ask all nodes; returns those that have a run folder of their own (unknown in a dry run)."""
    token = run_dir / f".shared-{os.urandom(8).hex()}"
    try:
        if run_dir.is_dir():
            run_folder.write_atomically(token, b"")
        facts = preflight.check_nodes(
            hosts, need_gpus=need_gpus, port=port, token=token if token.exists() else None
        )
    finally:
        token.unlink(missing_ok=True)
    return tuple(fact.host for fact in facts if not fact.shared)
