"""From the options to a launch that is ready: plan, devices, configuration, command, run folder."""

from __future__ import annotations

import os
import socket
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from zerokit.emit.plan_file import PlanFile
from zerokit.fields import as_options
from zerokit.launcher import adapt_config, fsdp2_plan, locks, plan_agreement, preflight, run_folder
from zerokit.launcher import command as commands
from zerokit.launcher.backends import Accelerate, LaunchCommand, backend_of
from zerokit.launcher.given_plan import read_config, read_plan
from zerokit.launcher.launch import Launch
from zerokit.launcher.nodes import gather
from zerokit.launcher.options import LaunchOptions
from zerokit.launcher.placement import Placement, decide_placement, threads_of_rank
from zerokit.launcher.rehearsed_plan import Agreement, PlannedCommand
from zerokit.launcher.run_folder import COMMAND_FILE, COMMAND_SCHEMA, CONFIG_FILE, PLAN_FILE
from zerokit.launcher.secrets import Secrets
from zerokit.machine import architectures
from zerokit.notes import warning, with_level
from zerokit.script import agreement, argument_warnings, reader
from zerokit.script.arguments import ScriptOptions
from zerokit.units import counted

_NEEDED_ON_NODES = [CONFIG_FILE, PLAN_FILE]


def prepare(options: LaunchOptions, run_dir: Path, stack: ExitStack, *, dry_run: bool = False) -> Launch:
    """Decide everything. Ports stay reserved until ``stack`` is closed. Writes nothing. For a ``dry_run``
    this machine may lack the GPUs. Raises InputError: bad input. NodeUnusable: a device, node or port cannot
    be used."""
    target = options.target
    facts = reader.read_target(target)
    untrained, read = plan_agreement.read_of_source(facts, target, options.command)
    plan, config = read_plan(options.plan, run_dir) if options.plan is not None else (None, None)
    engine = plan.engine if plan is not None else "deepspeed"
    options = fsdp2_plan.started_by_accelerate(options) if engine == "fsdp2" else options
    backend = backend_of(options.launcher)
    preflight.check_packages(backend, engine=engine)
    if options.deepspeed is not None:
        config = read_config(Path(options.deepspeed))
    planned_ranks = plan.world_size if plan is not None else None
    planned_gpu = str(plan.cluster.get("gpu") or "") or None if plan is not None else None
    placement = decide_placement(
        options, run_dir, planned_ranks, stack, planned_gpu=planned_gpu, dry_run=dry_run
    )
    notes = [*placement.notes, *_several_nodes(plan, placement), *read]
    preflight.check_open_files(placement.local_ranks)
    style = _style(options, facts, notes, has_config=config is not None)
    preflight.check_versions(backend, style, engine=engine)
    planned = PlannedCommand(plan, target) if plan is not None else None
    own = ScriptOptions.read(facts, style, target.arguments)
    agreed, on_cpu = _agreed(options, planned, config, own, placement), placement.devices.kind == "cpu"
    if on_cpu and agreed.config is not None:
        preflight.check_stage_on_cpu(agreed.config, placement.ranks)
    not_rehearsed = planned.note(style, None if dry_run else run_dir, agreed) if planned is not None else None
    stays_unrehearsed = options.no_rehearsal or options.rehearsal_seconds == 0
    if not (dry_run or on_cpu or stays_unrehearsed or agreed.unlike):
        not_rehearsed = None  # it is rehearsed now, and nothing is to be planned otherwise
    offload = agreed.config if agreed.accelerate is None else fsdp2_plan.offload(agreed.accelerate)
    threads = threads_of_rank(offload, placement, os.environ)
    stale = locks.stale_lock_warnings() if engine == "deepspeed" else ()  # FSDP2 builds no operators
    notes += [*agreed.notes, *filter(None, (not_rehearsed, *stale, threads.note))]
    config_path = run_dir / CONFIG_FILE if agreed.config is not None else None
    added = commands.script_options(own, config_path)
    setup = commands.ScriptSetup(
        script=own, arguments=[*agreed.added, *added], config=config_path,
        plan=run_dir / PLAN_FILE if plan is not None else None,
        plan_environment=dict(plan.chosen.get("environment") or {}) if plan is not None else {},
        thread_variables=threads.variables,
    )  # fmt: skip
    command = commands.build(options, placement, setup, run_dir=run_dir, base=os.environ)
    peak = (plan.chosen.get("estimate") or {}).get("peak_allocated_bytes") if plan is not None else None
    return Launch(
        options=options,
        placement=placement,
        command=command,
        environment=command.environment(os.environ),
        cwd=Path.cwd(),
        run_dir=run_dir,
        host=socket.gethostname(),
        config=agreed.config,
        accelerate=agreed.accelerate,
        plan=planned.content if planned is not None else None,
        plan_file=plan.path if plan is not None else None,
        planned_ranks=planned_ranks,
        held_to=agreed.held_to,
        predicted_peak_bytes=peak if isinstance(peak, int) and not on_cpu else None,
        style=style,
        added_arguments=agreed.added,
        micro_batch_free=style == "raw" and facts.reads_micro_batch,
        script_options=frozenset(facts.options),
        reads_checkpoint=argument_warnings.reads_checkpoint(facts),
        notes=(*notes, *_changed_variables(command)),
        not_rehearsed=not_rehearsed,
        names_plan=planned is not None and planned.is_named(style, agreed.is_refused),
        why_no_training=untrained,
    )


def _agreed(
    options: LaunchOptions,
    planned: PlannedCommand | None,
    config: dict[str, Any] | None,
    own: ScriptOptions,
    placement: Placement,
) -> Agreement:
    """What the script runs with: the plan's file, the one that ⟨deepspeed⟩ names, or its own."""
    facts, style = own.facts, own.style
    ranks, kind = placement.ranks, placement.devices.kind
    planned_ranks = ranks if planned is None else planned.plan.world_size

    def adapted_for(name: str) -> adapt_config.Adapted:
        return adapt_config.adapt(
            config or {}, style=name, device=kind, ranks=ranks, planned_ranks=planned_ranks, facts=facts
        )

    def adapted_notes(name: str, adapted: adapt_config.Adapted) -> tuple[str, ...]:
        changes = (f"{name}: {change}" for change in adapted.changes)
        return (*changes, *(warning("adapted", text) for text in adapted.warnings))

    # what a plan would have added --use_cpu for
    refused = argument_warnings.refused_bf16(own) if planned is None and kind == "cpu" else None
    on_cpu = () if refused is None else (warning("bf16-on-cpu", refused),)
    if planned is not None and planned.plan.engine == "fsdp2":
        return _agreed_on_fsdp2(options, planned, own, placement)
    if config is None:
        return Agreement(config=None, notes=(*plan_agreement.of_arguments(own, ranks), *on_cpu))
    on_device = adapted_for("none")
    if planned is None:  # the user's own file: what runs on CPU ranks is all that may be changed
        name, accept_mismatch = str(options.deepspeed), options.accept_mismatch
        agreement.check_reaches(facts, style)
        warnings = plan_agreement.check_own_file(
            name, style=style, ranks=ranks, accept_mismatch=accept_mismatch
        )
        unlike = plan_agreement.check_agrees(
            name, own, on_device.config, on_cpu=kind == "cpu", accept_mismatch=accept_mismatch
        )
        notes = (*warnings, *unlike, *on_cpu, *adapted_notes(name, on_device))
        return Agreement(config=on_device.config, notes=notes)
    agreed = plan_agreement.agree(
        planned,
        own,
        on_device.config,
        on_cpu=kind == "cpu",
        no_arguments=options.no_arguments,
        accept_mismatch=options.accept_mismatch,
        is_launched=True,
    )
    adapted = adapted_for(style)
    reads_it = own.own_deepspeed_file is None
    # what these devices cannot do is no difference: fp16 on CPU ranks
    chosen = {**planned.plan.chosen, "precision": adapt_config.precision(on_device.config)}
    return replace(
        agreed,
        config=adapted.config,
        held_to={**planned.content, "chosen": chosen},
        notes=(*agreed.notes, *(adapted_notes(f"the run's {CONFIG_FILE}", adapted) if reads_it else ())),
    )


def _agreed_on_fsdp2(
    options: LaunchOptions, planned: PlannedCommand, own: ScriptOptions, placement: Placement
) -> Agreement:
    fsdp2_plan.check_placed(placement)
    unreached = fsdp2_plan.check_reaches(planned.plan, own, on_cpu=placement.devices.kind == "cpu")
    file, changes = fsdp2_plan.accelerate_file(planned.plan, placement.ranks)
    agreed = plan_agreement.agree(
        planned,
        own,
        {},
        on_cpu=placement.devices.kind == "cpu",
        no_arguments=options.no_arguments,
        accept_mismatch=options.accept_mismatch,
        is_launched=True,
    )
    notes = (*unreached, *agreed.notes, *changes)
    return replace(agreed, accelerate=file, held_to=planned.content, notes=notes)


def _several_nodes(plan: PlanFile | None, placement: Placement) -> list[str]:
    """Said of a plan for several machines where the launch is on this one alone."""
    if plan is None or plan.nodes == 1 or placement.hosts is not None or placement.slurm is not None:
        return []
    each = plan.world_size // plan.nodes
    started = (
        f"inside a Slurm job of {plan.nodes} nodes it runs `srun torchrun` with {each} on each, ⟨hostfile⟩ "
        "FILE names other machines, and "
    )
    text = (
        f"the plan is for {plan.nodes} nodes × {counted(each, 'GPU')}, and this launch starts "
        f"{counted(placement.ranks, 'rank')} on one machine: "
        f"{started if plan.engine == 'deepspeed' else ''}`zerokit emit sbatch` shows the job"
    )
    return [warning("fewer-nodes", text)]


def _changed_variables(command: LaunchCommand) -> list[str]:
    """The user's variables that the ranks get with another value, since DeepSpeed fails on theirs."""
    name = architectures.VARIABLE
    changed = command.set_variables.get(name)
    if changed is None:
        return []
    entries = ", ".join(architectures.unreadable(os.environ[name]))
    now = f"{name}={changed}" if changed else f"no {name}, so that DeepSpeed asks the GPUs"
    return [f"DeepSpeed cannot read {entries} in {name}={os.environ[name]}; the ranks get {now}"]


def _style(options: LaunchOptions, facts: reader.ScriptFacts, notes: list[str], *, has_config: bool) -> str:
    """The style to use; notes how it was found, and warns where the plan cannot reach the script."""
    if options.style != "auto":
        return options.style
    notes.append(f"{options.target.name} is taken as {reader.STYLE_WORDS[facts.style]}: {facts.why}")
    if facts.style == "none" and has_config:
        text = (
            "the DeepSpeed configuration does not reach this script, which ends with exit code 9 if it makes "
            "no DeepSpeed engine; if it takes a configuration, say how with ⟨style⟩ raw, accelerate or "
            "trainer; to measure it as it is, launch it with ⟨no_plan=True⟩"
        )
        notes.append(warning("unreached", text))
    return facts.style


def write_files(launch: Launch) -> None:
    """Write what the run needs and what it is, into the run folder. No secret is among it. Raises
    ReportNotWritten: the disk is full or read-only. Raises NodeUnusable: a node that does not share the
    folder cannot write it."""
    run_dir = launch.run_dir
    if launch.config is not None:
        run_folder.write_json(run_dir / CONFIG_FILE, launch.config)
    if launch.plan_file is not None:
        run_folder.write_atomically(run_dir / PLAN_FILE, launch.plan_file.read_bytes())
    planned = launch.accelerate
    backend = backend_of(launch.options.launcher) if planned is None else Accelerate(document=planned)
    for name, document in backend.files(run_dir, launch.config, launch.expected_ranks).items():
        run_folder.write_json(run_dir / name, document)
    for name, text in launch.command.files.items():
        run_folder.write_atomically(run_dir / name, text.encode())
    run_folder.write_json(run_dir / COMMAND_FILE, describe(launch))
    if launch.placement.unshared_hosts:
        gather.copy_to(list(launch.placement.unshared_hosts), run_dir, _NEEDED_ON_NODES)


def describe(launch: Launch) -> dict[str, Any]:
    """``command.json``: the command, the variables that zerokit set, and every note."""
    secrets = Secrets(os.environ, launch.options.target.arguments)
    return {
        "schema": COMMAND_SCHEMA,
        "argv": secrets.argv(launch.command.argv),
        "cwd": str(launch.cwd),
        "environment": {n: secrets.text(v) for n, v in launch.command.set_variables.items()},
        "unset": launch.command.unset_variables,
        "script": launch.options.target.name,
        "script_arguments": secrets.argv(list(launch.options.target.arguments)),
        "added_arguments": secrets.argv(launch.added_arguments),
        "style": launch.style,
        "launcher": launch.options.launcher,
        "device": launch.command.set_variables["ZEROKIT_DEVICE"],
        "expected_ranks": launch.expected_ranks,
        "remote_hosts": launch.placement.remote_hosts,
        "slurm_job": launch.placement.slurm_job,
        "unshared_hosts": launch.placement.unshared_hosts,
        "grace_seconds": launch.options.grace,
        "heartbeat_seconds": launch.options.heartbeat,
        "stop_after_steps": launch.options.stop_after_steps,
        "limit_seconds": launch.options.limit_seconds,
        "notes": [secrets.text(as_options(with_level(note))) for note in launch.notes],
    }
