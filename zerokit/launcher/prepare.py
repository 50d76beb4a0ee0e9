"""From the options to a launch that is ready: plan, devices, configuration, command, run folder."""

from __future__ import annotations

import os
import socket
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zerokit.emit.plan_file import PlanFile
from zerokit.errors import InputError
from zerokit.fields import as_options
from zerokit.files import home_folder
from zerokit.launcher import command as commands
from zerokit.launcher import host_threads, locks, plan_agreement, preflight, rehearsed_plan, run_folder
from zerokit.launcher.given_plan import read_config, read_plan
from zerokit.launcher.launch import Launch
from zerokit.launcher.nodes import gather
from zerokit.launcher.options import LaunchOptions
from zerokit.launcher.placement import Placement, decide_placement
from zerokit.launcher.run_folder import ACCELERATE_FILE, COMMAND_FILE, COMMAND_SCHEMA, CONFIG_FILE, PLAN_FILE
from zerokit.launcher.secrets import Secrets
from zerokit.machine import architectures
from zerokit.script import adapt_config, agreement, argument_warnings, reader
from zerokit.script import arguments as script_arguments
from zerokit.units import counted

_NEEDED_ON_NODES = [CONFIG_FILE, PLAN_FILE]


def prepare(options: LaunchOptions, run_dir: Path, stack: ExitStack, *, dry_run: bool = False) -> Launch:
    """Decide everything. Ports stay reserved until ``stack`` is closed. Writes nothing.

    Args:
        dry_run: nothing will be started, so this machine may lack the GPUs.

    Raises:
        InputError: bad input. NodeUnusable: a device, node or port cannot be used.
    """
    preflight.check_packages(options.launcher)
    target = options.target
    script = Path(target.script) if target.script is not None else None
    facts = reader.read_script(script, target.module, target.source)
    untrained, read = plan_agreement.read_of_source(facts, target, options.command)
    plan, config = read_plan(options.plan, run_dir) if options.plan is not None else (None, None)
    if options.deepspeed is not None:
        config = read_config(Path(options.deepspeed))
    planned_ranks = plan.world_size if plan is not None else None
    placement = decide_placement(
        options, run_dir, planned_ranks, stack, planned_gpu=_planned_gpu(plan), dry_run=dry_run
    )
    notes = [*placement.notes, *_several_nodes(plan, placement), *read]
    preflight.check_open_files(placement.local_ranks)
    style = _style(options, facts, notes, has_config=config is not None)
    preflight.check_versions(options.launcher, style)
    configured = _configured(options, plan, config, facts, style, placement)
    if placement.devices.kind == "cpu":
        notes += _checked_for_cpu(configured, facts, placement.ranks)
    is_refused = configured.is_refused
    not_rehearsed = rehearsed_plan.note(
        plan, target, style, None if dry_run else run_dir, configured.unlike, configured.words, is_refused
    )
    threads = host_threads.threads_of_rank(configured.config, placement, os.environ)
    notes += [*configured.notes, *filter(None, (not_rehearsed, *_stale_locks(), threads.note))]
    config_path = run_dir / CONFIG_FILE if configured.config is not None else None
    added = commands.script_options(style, facts, target.arguments, config_path)
    setup = commands.ScriptSetup(
        style=style,
        facts=facts,
        arguments=[*configured.added_arguments, *added],
        config=config_path,
        plan=run_dir / PLAN_FILE if plan is not None else None,
        plan_environment=_mapping(plan.chosen.get("environment") if plan else None),
        thread_variables=threads.variables,
    )
    command = commands.build(options, placement, setup, run_dir=run_dir, base=os.environ)
    return Launch(
        options=options,
        placement=placement,
        command=command,
        environment=command.environment(os.environ),
        cwd=Path.cwd(),
        run_dir=run_dir,
        host=socket.gethostname(),
        config=configured.config,
        plan=rehearsed_plan.content(plan, target) if plan is not None else None,
        plan_file=plan.path if plan is not None else None,
        planned_ranks=planned_ranks,
        held_to=configured.held_to,
        predicted_peak_bytes=_predicted(plan, placement.devices.kind),
        style=style,
        added_arguments=configured.added_arguments,
        micro_batch_free=style == "raw" and facts.reads_micro_batch,
        script_options=frozenset(facts.options),
        reads_checkpoint=argument_warnings.reads_checkpoint(facts),
        notes=(*notes, *_changed_variables(command)),
        not_rehearsed=not_rehearsed,
        names_plan=plan is not None and rehearsed_plan.is_named(plan, target, style, is_refused),
        why_no_training=untrained,
    )


def _checked_for_cpu(configured: _Configured, facts: reader.ScriptFacts, ranks: int) -> list[str]:
    """What to say of a run on CPU ranks.

    Raises:
        InputError: they cannot train with this configuration.
    """
    if configured.config is not None:
        preflight.check_stage_on_cpu(configured.config, ranks)
    refused = argument_warnings.refused_bf16_of_code(facts.code_settings)
    return [] if refused is None else [f"warning: {refused}"]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Configured:
    """A DeepSpeed configuration as the script gets it, and what its plan holds the run to.

    Attributes:
        unlike: options of the plan that the script decides otherwise. words: of others, to plan with it.
        is_refused: no plan is made with the script and these arguments.
    """

    config: dict[str, Any] | None
    held_to: dict[str, Any] | None = None
    added_arguments: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    unlike: tuple[str, ...] = ()
    words: tuple[str, ...] = ()
    is_refused: bool = False


def _configured(
    options: LaunchOptions,
    plan: PlanFile | None,
    config: dict[str, Any] | None,
    facts: reader.ScriptFacts,
    style: str,
    placement: Placement,
) -> _Configured:
    """What the script runs with: the plan's file, the one that ⟨deepspeed⟩ names, or its own."""
    if config is None:
        own = script_arguments.ScriptOptions.read(facts, style, options.target.arguments)
        notes = (*plan_agreement.of_arguments(own, placement.ranks), *_refused_on_cpu(own, placement))
        return _Configured(config=None, notes=notes)
    if plan is None:
        return _own_file(options, config, facts, style, placement)
    return _from_plan(options, plan, config, facts, style, placement)


def _own_file(
    options: LaunchOptions,
    config: dict[str, Any],
    facts: reader.ScriptFacts,
    style: str,
    placement: Placement,
) -> _Configured:
    """The user's own file: what runs on CPU ranks is all that may be changed."""
    agreement.check_reaches(facts, style)
    warnings = plan_agreement.check_own_file(
        str(options.deepspeed), style=style, ranks=placement.ranks, accept_mismatch=options.accept_mismatch
    )
    adapted = adapt_config.adapt(
        config, style="none", device=placement.devices.kind, ranks=placement.ranks,
        planned_ranks=placement.ranks, facts=facts,
    )  # fmt: skip
    script_options = script_arguments.ScriptOptions.read(facts, style, options.target.arguments)
    unlike = plan_agreement.check_agrees(
        str(options.deepspeed),
        script_options,
        adapted.config,
        ranks=placement.ranks,
        on_cpu=placement.devices.kind == "cpu",
        accept_mismatch=options.accept_mismatch,
    )
    refused = _refused_on_cpu(script_options, placement)
    notes = (*warnings, *unlike, *refused, *_adapted_notes(str(options.deepspeed), adapted))
    return _Configured(config=adapted.config, notes=notes)


def _refused_on_cpu(options: script_arguments.ScriptOptions, placement: Placement) -> tuple[str, ...]:
    """A warning of what a plan would have added ``--use_cpu`` for."""
    refused = argument_warnings.refused_bf16(options) if placement.devices.kind == "cpu" else None
    return () if refused is None else (f"warning: {refused}",)


def _from_plan(
    options: LaunchOptions, plan: PlanFile, config: dict[str, Any], facts: reader.ScriptFacts, style: str,
    placement: Placement,
) -> _Configured:  # fmt: skip
    def adapted_for(name: str) -> adapt_config.Adapted:
        return adapt_config.adapt(
            config, style=name, device=placement.devices.kind, ranks=placement.ranks,
            planned_ranks=plan.world_size, facts=facts,
        )  # fmt: skip

    on_device = adapted_for("none")
    # what these devices cannot do is no difference: fp16 on CPU ranks
    precision = adapt_config.precision(on_device.config)
    script_options = script_arguments.ScriptOptions.read(facts, style, options.target.arguments)
    held_to = rehearsed_plan.content(plan, options.target)
    agreed = plan_agreement.agree(
        plan,
        script_options,
        on_device.config,
        target=options.target,
        ranks=placement.ranks,
        on_cpu=placement.devices.kind == "cpu",
        no_arguments=options.no_arguments,
        accept_mismatch=options.accept_mismatch,
        is_launched=True,
    )
    adapted = adapted_for(style)
    reads_it = script_options.own_deepspeed_file is None
    return _Configured(
        config=adapted.config,
        held_to={
            **held_to,
            "chosen": {**plan.chosen, "precision": precision},
        },
        added_arguments=agreed.added,
        notes=(*agreed.notes, *(_adapted_notes(f"the run's {CONFIG_FILE}", adapted) if reads_it else ())),
        unlike=agreed.unlike,
        words=agreed.words,
        is_refused=agreed.is_refused,
    )


def _adapted_notes(name: str, adapted: adapt_config.Adapted) -> tuple[str, ...]:
    changes = (f"{name}: {change}" for change in adapted.changes)
    return (*changes, *(f"warning: {warning}" for warning in adapted.warnings))


def _planned_gpu(plan: PlanFile | None) -> str | None:
    named = _mapping(plan.cluster).get("gpu") if plan is not None else None
    return str(named) if named else None


def _mapping(value: object) -> dict[str, object]:
    return dict(value) if isinstance(value, dict) else {}


def _predicted(plan: PlanFile | None, kind: str) -> int | None:
    if plan is None or kind != "cuda":
        return None
    value = _mapping(plan.chosen.get("estimate")).get("peak_allocated_bytes")
    return value if isinstance(value, int) else None


def _several_nodes(plan: PlanFile | None, placement: Placement) -> list[str]:
    """Said of a plan for several machines where the launch is on this one alone."""
    if plan is None or plan.nodes == 1 or placement.hosts is not None or placement.slurm is not None:
        return []
    each = plan.world_size // plan.nodes
    return [
        f"warning: the plan is for {plan.nodes} nodes × {counted(each, 'GPU')}, and this launch starts "
        f"{counted(placement.ranks, 'rank')} on one machine: inside a Slurm job of {plan.nodes} nodes it "
        f"runs `srun torchrun` with {each} on each, ⟨hostfile⟩ FILE names other machines, and "
        "`zerokit emit sbatch` shows the job"
    ]


def _stale_locks() -> list[str]:
    """Locks left by builds of operators that died."""
    stale = locks.stale_locks(os.environ, home_folder())
    return [f"warning: {lock.description}; remove it: {lock.command}" for lock in stale]


def _changed_variables(command: commands.LaunchCommand) -> list[str]:
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
        if options.style not in reader.STYLES:
            raise InputError(f"⟨style⟩ {options.style}: use auto, {', '.join(reader.STYLES)}")
        return options.style
    notes.append(f"{options.target.name} is taken as {reader.STYLE_WORDS[facts.style]}: {facts.why}")
    if facts.style == "none" and has_config:
        notes.append(
            "warning: the DeepSpeed configuration does not reach this script, which ends with exit code 9 if "
            "it makes no DeepSpeed engine; if it takes a configuration, say how with ⟨style⟩ raw, accelerate "
            "or trainer; to measure it as it is, launch it with ⟨no_plan=True⟩"
        )
    return facts.style


def write_files(launch: Launch) -> None:
    """Write what the run needs and what it is, into the run folder. No secret is among it.

    Raises:
        ReportNotWritten: the disk is full or read-only.
        NodeUnusable: a node that does not share the folder cannot write it.
    """
    run_dir = launch.run_dir
    if launch.config is not None:
        run_folder.write_json(run_dir / CONFIG_FILE, launch.config)
    if launch.plan_file is not None:
        run_folder.write_atomically(run_dir / PLAN_FILE, launch.plan_file.read_bytes())
    if launch.options.launcher == "accelerate":
        run_folder.write_json(run_dir / ACCELERATE_FILE, _accelerate_yaml(launch))
    for name, text in launch.command.files.items():
        run_folder.write_atomically(run_dir / name, text.encode())
    run_folder.write_json(run_dir / COMMAND_FILE, describe(launch))
    if launch.placement.unshared_hosts:
        gather.copy_to(list(launch.placement.unshared_hosts), run_dir, _NEEDED_ON_NODES)


def _accelerate_yaml(launch: Launch) -> dict[str, Any]:
    """What ``accelerate launch`` reads (JSON is YAML), so that no default file of the user's joins in."""
    body: dict[str, Any] = {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": "DEEPSPEED",
        "num_machines": 1,
        "machine_rank": 0,
        "num_processes": launch.expected_ranks,
        "main_training_function": "main",
        "use_cpu": False,
        "rdzv_backend": "static",
        "same_network": True,
        "downcast_bf16": "no",
    }
    if launch.config is not None:
        body["deepspeed_config"] = {
            "deepspeed_config_file": str(launch.run_dir / CONFIG_FILE),
            "zero3_init_flag": launch.config.get("zero_optimization", {}).get("stage") == 3,
        }
    return body


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
        "notes": [secrets.text(as_options(note)) for note in launch.notes],
    }
