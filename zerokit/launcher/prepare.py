"""From the user's wishes to a launch that is ready: plan, devices, configuration, command, run folder."""

from __future__ import annotations

import json
import os
import socket
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from zerokit.errors import InputError
from zerokit.fields import as_options
from zerokit.files import home_folder
from zerokit.launcher import build_locks, ports, preflight, run_folder
from zerokit.launcher import command as commands
from zerokit.launcher import devices as device_module
from zerokit.launcher.launch import Launch
from zerokit.launcher.nodes import cluster, gather, hostfile
from zerokit.launcher.rank import deadman
from zerokit.launcher.secrets import Secrets
from zerokit.launcher.verdict.as_planned import PlanCheck
from zerokit.script import adapt_config, agreement
from zerokit.script import arguments as script_arguments
from zerokit.script import reader as style

_NEEDED_ON_NODES = ["ds_config.json", "plan.yaml"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
    """The options of ``zerokit launch``, parsed. Seconds; ``None``: not given."""

    target: commands.Target
    plan: str | None = None
    deepspeed: str | None = None
    device: str = "auto"
    launcher: str = "deepspeed"
    style: str = "auto"
    run_dir: str | None = None
    grace_seconds: float = 10.0
    heartbeat_seconds: float | None = None
    num_ranks: int | None = None
    nodes: int | None = None
    hostfile: str | None = None
    master_port: int | None = None
    show_ranks: str = "first"
    stop_after_steps: int | None = None
    limit_seconds: float | None = None
    no_arguments: bool = False
    accept_mismatch: bool = False


@dataclass(slots=True, kw_only=True)
class Prepared:
    """A launch that can be shown or started, and what is worth saying about it.

    Attributes:
        plan: the plan file's ``request``, ``chosen`` and ``cluster``; None without one.
        added_arguments: options that the script gets from the plan.
        planned_ranks: what it was made for.
        micro_batch_free: whether the script takes its micro-batch from the configuration.
        notes: one line each, for standard error and command.json.
    """

    wishes: Wishes
    launch: Launch
    command: commands.Command
    config: dict[str, Any] | None
    plan: dict[str, Any] | None
    plan_file: Path | None
    notes: list[str] = field(default_factory=list)
    style: str = "none"
    added_arguments: tuple[str, ...] = ()
    planned_ranks: int | None = None
    micro_batch_free: bool = False


def read_plan(place: str) -> tuple[Any, dict[str, Any]]:
    """The plan file and its DeepSpeed configuration (``ds_config.json`` beside it goes first).

    Raises:
        InputError: no plan there, or a file in it that cannot be read.
    """
    from zerokit.emit import plan_file as planfile

    plan = planfile.read(place)
    path = plan.folder / "ds_config.json"
    if not path.is_file():
        return plan, dict(plan.chosen["deepspeed_config"])
    return plan, _read_config(path)


def _read_config(path: Path) -> dict[str, Any]:
    """A DeepSpeed JSON.

    Raises:
        InputError: it cannot be read, or is no object.
    """
    from zerokit.strictload import load_json

    value = load_json(path).value
    if not isinstance(value, dict):
        raise InputError(f"{path}: expected an object")
    return value


def prepare(wishes: Wishes, run_dir: Path, stack: ExitStack) -> Prepared:
    """Decide everything. Ports stay reserved until ``stack`` is closed. Writes nothing.

    Raises:
        InputError: bad input. NodeUnusable: a device, node or port cannot be used.
    """
    preflight.check_packages(wishes.launcher)
    script = Path(wishes.target.script) if wishes.target.script is not None else None
    facts = style.read_script(script, wishes.target.module, wishes.target.source)
    plan, config = read_plan(wishes.plan) if wishes.plan is not None else (None, None)
    if wishes.deepspeed is not None:
        config = _read_config(Path(wishes.deepspeed))
    place = _place(wishes, run_dir, plan.world_size if plan is not None else None, stack)
    notes = list(place.notes)
    chosen_style = _style(wishes, facts, notes, has_config=config is not None)
    added: tuple[str, ...] = ()
    held_to: dict[str, Any] | None = None
    if config is not None and plan is None:
        # the user's own file: what runs on CPU ranks is all that may be changed
        agreement.check_reaches(facts, chosen_style)
        adapted = adapt_config.adapt(
            config, style="none", device=place.devices.kind, ranks=place.ranks, planned_ranks=place.ranks,
            facts=facts,
        )  # fmt: skip
        config = adapted.config
        notes += [f"{wishes.deepspeed}: {change}" for change in adapted.changes]
        notes += [f"warning: {warning}" for warning in adapted.warnings]
    if config is not None and plan is not None:
        on_device = adapt_config.adapt(
            config, style="none", device=place.devices.kind, ranks=place.ranks, planned_ranks=plan.world_size,
            facts=facts,
        )  # fmt: skip
        # what these devices cannot do is no difference: fp16 on CPU ranks
        held_to = _content(plan)
        held_to["chosen"] = {**plan.chosen, "precision": adapt_config.precision(on_device.config)}
        agreed = agreement.agree(
            script_arguments.ScriptOptions.read(facts, chosen_style, wishes.target.arguments),
            plan.chosen,
            on_device.config,
            plan_folder=plan.folder,
            on_cpu=place.devices.kind == "cpu",
            no_arguments=wishes.no_arguments,
            accept_mismatch=wishes.accept_mismatch,
        )
        added = agreed.added
        notes += agreed.notes
        adapted = adapt_config.adapt(
            config,
            style=chosen_style,
            device=place.devices.kind,
            ranks=place.ranks,
            planned_ranks=plan.world_size,
            facts=facts,
        )
        config = adapted.config
        notes += [f"ds_config.json: {change}" for change in adapted.changes]
        notes += [f"warning: {warning}" for warning in adapted.warnings]
    locks = build_locks.stale_locks(os.environ, home_folder())
    notes += [f"warning: {lock.what}; remove it: {lock.command}" for lock in locks]
    config_path = run_dir / "ds_config.json" if config is not None else None
    command = commands.build(
        launcher=wishes.launcher,
        target=wishes.target,
        extra=[
            *added,
            *commands.script_options(chosen_style, facts, wishes.target.arguments, config_path),
        ],
        style=chosen_style,
        facts=facts,
        devices=place.devices,
        port=place.port,
        run_dir=run_dir,
        config=config_path,
        plan=run_dir / "plan.yaml" if plan is not None else None,
        plan_environment=_mapping(plan.chosen.get("environment") if plan is not None else None),
        base=os.environ,
        hosts=place.hosts,
        hostfile=Path(wishes.hostfile).resolve() if wishes.hostfile else None,
        slurm=place.slurm,
        stop_after_steps=wishes.stop_after_steps,
        alive_seconds=place.alive_seconds if place.remote else None,
    )
    return Prepared(
        wishes=wishes,
        launch=replace(
            _launch(wishes, place, command, run_dir, _predicted(plan, place.devices.kind)),
            plan=held_to,
            plan_check=None
            if config is None
            else PlanCheck(plan=None if wishes.accept_mismatch else held_to, style=chosen_style),
            style=chosen_style,
        ),
        command=command,
        config=config,
        plan=_content(plan) if plan is not None else None,
        plan_file=plan.path if plan is not None else None,
        notes=notes,
        style=chosen_style,
        added_arguments=added,
        planned_ranks=plan.world_size if plan is not None else None,
        micro_batch_free=chosen_style == "raw" and facts.reads_micro_batch,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """Where the ranks will run.

    Attributes:
        hosts: of the hostfile; None without one.
        ranks: on all nodes together.
        unshared: hosts that do not see the run folder.
        alive_seconds: how long a remote rank outlives its launcher.
        notes: what is worth saying about it.
    """

    hosts: list[hostfile.Host] | None
    slurm: cluster.SlurmJob | None
    node_count: int
    devices: device_module.Devices
    port: int
    ranks: int
    unshared: tuple[str, ...]
    alive_seconds: float
    notes: tuple[str, ...]

    @property
    def remote(self) -> bool:
        """Whether ranks may run on other machines."""
        return bool(self.hosts) or self.slurm is not None


def _place(wishes: Wishes, run_dir: Path, planned_ranks: int | None, stack: ExitStack) -> _Place:
    hosts = _hosts(wishes)
    slurm = cluster.slurm_job() if hosts is None else None
    node_count = len(hosts) if hosts else len(slurm.nodes) if slurm else 1
    devices = device_module.resolve(
        wishes.device, num_ranks=wishes.num_ranks, planned_ranks=planned_ranks, nodes=node_count
    )
    port = stack.enter_context(ports.reserve(wishes.master_port))
    unshared: tuple[str, ...] = ()
    notes = [devices.why]
    if hosts:
        preflight.check_pdsh()
        unshared = _check_nodes(hosts, run_dir, need_gpus=devices.kind == "cuda", port=port)
    if slurm is not None:
        notes.append(f"Slurm job {slurm.job_id}: one torchrun on each of {node_count} nodes, through srun")
    if unshared:
        notes.append(f"the run folder is not shared with {', '.join(unshared)}: files go over ssh")
    return _Place(
        hosts=hosts,
        slurm=slurm,
        node_count=node_count,
        devices=devices,
        port=port,
        ranks=sum(host.slots for host in hosts) if hosts else devices.ranks * node_count,
        unshared=unshared,
        alive_seconds=deadman.patience_seconds(wishes.heartbeat_seconds),
        notes=tuple(notes),
    )


def _launch(
    wishes: Wishes, place: _Place, command: commands.Command, run_dir: Path, predicted: int | None
) -> Launch:
    return Launch(
        argv=command.argv,
        environment=command.environment(os.environ),
        script_arguments=wishes.target.arguments,
        cwd=Path.cwd(),
        run_dir=run_dir,
        expected_ranks=place.ranks,
        local_ranks=place.devices.ranks if place.node_count == 1 and not place.hosts else 0,
        host=socket.gethostname(),
        grace_seconds=wishes.grace_seconds,
        heartbeat_seconds=wishes.heartbeat_seconds,
        remote=place.remote,
        remote_hosts=place.slurm.nodes if place.slurm else tuple(host.name for host in place.hosts or ()),
        slurm_job=place.slurm.job_id if place.slurm else None,
        unshared_hosts=place.unshared,
        alive_seconds=place.alive_seconds,
        show_ranks=wishes.show_ranks,
        predicted_peak_bytes=predicted,
        stop_after_steps=wishes.stop_after_steps,
        limit_seconds=wishes.limit_seconds,
    )


def _content(plan: Any) -> dict[str, Any]:
    return {"request": plan.request, "chosen": plan.chosen, "cluster": plan.cluster}


def _hosts(wishes: Wishes) -> list[hostfile.Host] | None:
    if wishes.hostfile is None:
        if wishes.nodes not in (None, 1):
            raise InputError(f"⟨nodes⟩ {wishes.nodes} needs ⟨hostfile⟩ FILE with the machines' names")
        return None
    return hostfile.choose_hosts(hostfile.read_hostfile(wishes.hostfile), wishes.nodes)


def _check_nodes(hosts: list[hostfile.Host], run_dir: Path, *, need_gpus: bool, port: int) -> tuple[str, ...]:
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


def _mapping(value: object) -> dict[str, object]:
    return dict(value) if isinstance(value, dict) else {}


def _predicted(plan: Any, kind: str) -> int | None:
    if plan is None or kind != "cuda":
        return None
    value = _mapping(plan.chosen.get("estimate")).get("peak_allocated_bytes")
    return value if isinstance(value, int) else None


def _style(wishes: Wishes, facts: style.ScriptFacts, notes: list[str], *, has_config: bool) -> str:
    """The style to use; notes how it was found, and warns where the plan cannot reach the script."""
    if wishes.style != "auto":
        if wishes.style not in style.STYLES:
            raise InputError(f"⟨style⟩ {wishes.style}: use auto, {', '.join(style.STYLES)}")
        return wishes.style
    notes.append(f"{wishes.target.name} is taken as {facts.style}: {facts.why}")
    if facts.style == "none" and has_config:
        notes.append(
            "warning: the plan's configuration does not reach this script; if it takes one, say how "
            "with ⟨style⟩ raw, accelerate or trainer"
        )
    return facts.style


def write_files(prepared: Prepared) -> None:
    """Write what the run needs and what it is, into the run folder. No secret is among it.

    Raises:
        ReportNotWritten: the disk is full or read-only.
        NodeUnusable: a node that does not share the folder cannot write it.
    """
    run_dir = prepared.launch.run_dir
    if prepared.config is not None:
        run_folder.write_json(run_dir / "ds_config.json", prepared.config)
    if prepared.plan_file is not None:
        run_folder.write_atomically(run_dir / "plan.yaml", prepared.plan_file.read_bytes())
    if prepared.wishes.launcher == "accelerate":
        run_folder.write_json(run_dir / "accelerate.yaml", _accelerate_yaml(prepared))
    for name, text in prepared.command.files.items():
        run_folder.write_atomically(run_dir / name, text.encode())
    run_folder.write_json(run_dir / run_folder.COMMAND_FILE, describe(prepared))
    if prepared.launch.unshared_hosts:
        gather.copy_to(list(prepared.launch.unshared_hosts), run_dir, _NEEDED_ON_NODES)


def _accelerate_yaml(prepared: Prepared) -> dict[str, Any]:
    """What ``accelerate launch`` reads (JSON is YAML), so that no default file of the user's joins in."""
    body: dict[str, Any] = {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": "DEEPSPEED",
        "num_machines": 1,
        "machine_rank": 0,
        "num_processes": prepared.launch.expected_ranks,
        "main_training_function": "main",
        "use_cpu": False,
        "rdzv_backend": "static",
        "same_network": True,
        "downcast_bf16": "no",
    }
    if prepared.config is not None:
        body["deepspeed_config"] = {
            "deepspeed_config_file": str(prepared.launch.run_dir / "ds_config.json"),
            "zero3_init_flag": json.dumps(prepared.config.get("zero_optimization", {}).get("stage") == 3)
            == "true",
        }
    return body


def describe(prepared: Prepared) -> dict[str, Any]:
    """``command.json``: the command, the variables that zerokit set, and every note."""
    secrets = Secrets(os.environ, prepared.launch.script_arguments)
    return {
        "schema": run_folder.COMMAND_SCHEMA,
        "argv": secrets.argv(prepared.launch.argv),
        "cwd": str(prepared.launch.cwd),
        "environment": {n: secrets.text(v) for n, v in prepared.command.set_variables.items()},
        "unset": prepared.command.unset_variables,
        "script": prepared.wishes.target.name,
        "script_arguments": secrets.argv(list(prepared.wishes.target.arguments)),
        "added_arguments": secrets.argv(prepared.added_arguments),
        "style": prepared.style,
        "launcher": prepared.wishes.launcher,
        "device": prepared.command.set_variables["ZEROKIT_DEVICE"],
        "expected_ranks": prepared.launch.expected_ranks,
        "remote_hosts": prepared.launch.remote_hosts,
        "slurm_job": prepared.launch.slurm_job,
        "unshared_hosts": prepared.launch.unshared_hosts,
        "grace_seconds": prepared.launch.grace_seconds,
        "heartbeat_seconds": prepared.launch.heartbeat_seconds,
        "stop_after_steps": prepared.launch.stop_after_steps,
        "limit_seconds": prepared.launch.limit_seconds,
        "notes": [secrets.text(as_options(note)) for note in prepared.notes],
    }
