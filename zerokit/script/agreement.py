"""Whether a script does what its plan says: what it is given for that, and where it contradicts."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zerokit.domain import planning_again
from zerokit.domain.settings import SETTINGS, PlannedValues, Stated, compare
from zerokit.errors import InputError
from zerokit.machine.versions import deepspeed_note
from zerokit.messages import listed
from zerokit.rules.known import is_same_optimizer
from zerokit.script import adapt_config, file_mismatches, unlike_job
from zerokit.script.arguments import ScriptOptions, truth
from zerokit.script.planned_for import BATCH, OFFLOAD
from zerokit.script.reader import STYLE_WORDS, ScriptFacts
from zerokit.script.unlike_job import HeldTo
from zerokit.units import format_gib

WithScript = Callable[[Sequence[str], Sequence[str]], str]
"""The command that plans with the script: from the options of the plan that are left to it, and words of
others to plan with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """What a script is given from the plan, and what is to be said about it.

    Attributes:
        unlike: options of the plan that the script decides otherwise, without dashes in front.
        words: of options that a plan with the script takes beside the plan's own.
        is_refused: no plan is made with the script and these arguments: it ends at one of them, or they name
            a DeepSpeed file, with which it would train whatever the plan.
    """

    added: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    unlike: tuple[str, ...] = ()
    words: tuple[str, ...] = ()
    is_refused: bool = False


NOT_ASKED = Agreement()
"""Of a script that is held to no plan."""


def agree(
    options: ScriptOptions,
    held: HeldTo,
    config: dict[str, Any],
    *,
    on_cpu: bool,
    no_arguments: bool,
    accept_mismatch: bool,
    writes_here: bool = True,
    with_script: WithScript | None = None,
) -> Agreement:
    """Fill in what the user did not give, and hold the rest to the plan.

    Args:
        options: of the script.
        held: the plan.
        config: the plan's DeepSpeed configuration for these devices, before any script's needs.
        on_cpu: the ranks run without a GPU.
        no_arguments: add nothing. accept_mismatch: say contradictions instead of stopping.
        writes_here: the script writes to this machine's disks, whose room is looked at.
        with_script: the command that plans with the script; None: no plan of this kind is made with one.

    Raises:
        InputError: the script contradicts the plan; the message has both values.
    """
    chosen = held.chosen
    stopped = "; ".join(obstacles(options))
    if stopped and not accept_mismatch:
        why = f"no plan reaches the script: {stopped}"
        raise InputError(f"{why}, or launch it without a plan (⟨no_plan=True⟩)")
    planned = _planned_values(options, held, config, on_cpu=on_cpu)
    added = () if no_arguments else options.additions(planned)
    own_file, decided_by_file = _own_file(options, config, held.folder)
    conflicts = [
        *options.conflicts(planned, added=not no_arguments),
        *own_file,
        *unlike_job.of_optimizer(options, config),
    ]
    longest = None if held.is_rehearsed else unlike_job.longest_sequence(options)
    unlike: tuple[str, ...] = ("seq-len",) if longest is not None and longest.value != held.seq_len else ()
    decided = _decided_options(options, chosen, on_cpu=with_script is None) | decided_by_file
    unlike += tuple(decided)
    words = planning_again.global_batch_for(chosen, held.request, decided)
    if conflicts and not accept_mismatch:
        again = f": `{held.command_for(decided)}`" if decided else ""  # by options, where they say it
        if with_script is not None and not own_file:
            command = with_script(unlike, words)
            again = f"{planning_again.what_is_left(command)}: `{command}`"
        # DeepSpeed refuses fp16 on CPU ranks
        is_refused = on_cpu and decided.get("precision") == "fp16"
        ways_out = (
            f"change it{'' if is_refused else f', plan again for what it does{again}'}, or run it all "
            "the same, with ⟨accept_mismatch=True⟩⟪ before the script⟫"
        )
        raise InputError(listed("the script contradicts the plan", conflicts, ways_out))
    # a plan's saves are of all weights
    saves_less = held.method == "full" and unlike_job.is_on(options, "use_peft")
    notes = (
        *([f"warning: no plan reaches the script: {stopped}"] if stopped else []),
        *([f"added from the plan: {shlex.join(added)} (⟨no_arguments=True⟩ adds nothing)"] if added else []),
        *(f"warning: the script contradicts the plan: {conflict}" for conflict in conflicts),
        *([] if held.is_rehearsed else unlike_job.of_arguments(options, held)),
        *_parts_of_the_script(options, chosen, writes_here and not saves_less),
    )
    return Agreement(added=added, notes=notes, unlike=unlike, words=words)


def _planned_values(
    options: ScriptOptions, held: HeldTo, config: dict[str, Any], *, on_cpu: bool
) -> PlannedValues:
    clipping = config.get("gradient_clipping")
    has_clipping = isinstance(clipping, int | float) and not isinstance(clipping, bool)
    return PlannedValues(
        micro_batch=held.micro_batch,
        gradient_accumulation=int(held.chosen["gradient_accumulation"]),
        precision=adapt_config.precision(config),
        checkpointing=str(held.chosen.get("activation_checkpointing", "none")),
        gradient_clipping=float(clipping) if has_clipping and clipping is not None else None,
        optimizer=unlike_job.made_by_script(held.request, config),
        liger_loss=held.loss == "liger" and not on_cpu and unlike_job.fuses_by_trainer(options),
        on_cpu=on_cpu,
    )


def _decided_options(options: ScriptOptions, chosen: Mapping[str, Any], *, on_cpu: bool) -> dict[str, str]:
    """What a script decides otherwise than a plan, as options of ``plan``; of its batch all that it decides.

    Args:
        chosen: the plan's choice.
        on_cpu: for CPU ranks, for which no plan is made with a script: a Trainer's checkpointing and its
            optimizer count too.
    """
    precision = options.fixed_precision()
    decided = {one.setting.name: one.value for one in options.fixed() if one.setting.name in BATCH}
    decided |= {} if precision is None else {"precision": precision[0]}
    unlike = {name for name, value in decided.items() if value != chosen.get(name)}
    if unlike & {*BATCH}:
        unlike |= {*BATCH} & decided.keys()
    found = {SETTINGS[name].option: str(decided[name]) for name in (*BATCH, "precision") if name in unlike}
    if not on_cpu or options.style != "trainer":
        return found
    switch, optimizer = options.decided("gradient_checkpointing"), options.decided("optim")
    if switch is not None and (is_on := truth(switch[0])) is not None:
        mode = "full" if is_on else "none"
        if mode != chosen.get("activation_checkpointing", "none"):
            found["checkpointing"] = mode
    planned = (chosen.get("deepspeed_config") or {}).get("optimizer", {}).get("type")
    if optimizer is not None and planned and not is_same_optimizer(str(optimizer[0]), str(planned)):
        found["optimizer"] = str(optimizer[0])
    return found


def _own_file(
    options: ScriptOptions, config: Mapping[str, Any], plan_folder: Path
) -> tuple[list[str], dict[str, str]]:
    """List in what a file of the script's own, which decides in place of the plan's configuration, differs
    from it: in sentences, and as options of ``plan``."""
    name, where = options.own_deepspeed_file or ("", "")
    if not name or Path(name).resolve().is_relative_to(plan_folder.resolve()):
        return [], {}
    from zerokit.strictload import load_json

    try:
        own_config = load_json(Path(name)).value
    except InputError as error:
        return [f"{where}: {error}; without it the script gets the plan's configuration"], {}
    settings = [SETTINGS[name] for name in ("zero_stage", *OFFLOAD)]
    planned = {one.name: file_mismatches.strategy_value(config, one) for one in settings}
    said = []
    for one in settings:
        value = file_mismatches.strategy_value(own_config, one)
        key = one.deepspeed.removeprefix("zero_optimization.").removesuffix(".device")
        own = None if value == "auto" else value
        said.append(Stated(setting=one, value=own, where=f"{where}: {key} {value}"))
    differing = compare(planned, said)
    conflicts = [f"{one.where}, but the plan has {value}" for one, value in differing]
    return conflicts, {one.setting.option: str(one.value) for one, _ in differing}


# ---------------------------------------------------------------- what keeps every plan from a script

_FSDP = "FSDP and DeepSpeed exclude each other"


def obstacles(options: ScriptOptions) -> list[str]:
    """What a script and its arguments have that a plan cannot get past, as far as they tell, and how to train
    with one."""
    sharding = options.decided("fsdp") if options.style == "trainer" else None
    has_fsdp = sharding is not None and truth(sharding[0]) is not False
    found = [f"{sharding[1]}: {_FSDP}; leave it out"] if sharding is not None and has_fsdp else []
    return [*found, *_own_configuration(options.facts, options.style)]


def _own_configuration(facts: ScriptFacts, style: str) -> list[str]:
    """A configuration that the script gives DeepSpeed itself, which then refuses any other
    (deepspeed/__init__.py, ``initialize``)."""
    location = facts.own_configuration
    if location is None or style not in ("raw", "none"):
        return []
    return [
        f"{location}: it gives deepspeed.initialize a configuration of its own, so another cannot reach it "
        "(DeepSpeed refuses both); remove that argument and let the script take --deepspeed_config "
        "(deepspeed.add_config_arguments)"
    ]


def check_reaches(facts: ScriptFacts, style: str) -> None:
    """Refuse a DeepSpeed file for a script that makes its own.

    Raises:
        InputError: names the call.
    """
    for obstacle in _own_configuration(facts, style):
        raise InputError(f"the DeepSpeed file does not reach the script: {obstacle}")


def refuse_unplannable(options: ScriptOptions) -> None:
    """Refuse a script that would train with a configuration of its own under each plan, where plans are to be
    compared.

    Raises:
        InputError: names the file, or the line.
    """
    if options.own_deepspeed_file is not None:
        _, where = options.own_deepspeed_file
        raise InputError(
            f"{where}: the script would train with this file, whatever the plan; leave it out to plan "
            "(`zerokit rehearse` with the same script and arguments says what the file takes)"
        )
    if found := "; ".join(obstacles(options)) if options.style != "none" else "":
        raise InputError(
            f"no plan reaches the script: {found} to plan, or go on without a plan: `zerokit rehearse` "
            "says what the script takes, `zerokit launch --no-plan` runs it"
        )


# ---------------------------------------------------------------- what only the script can do


def _parts_of_the_script(options: ScriptOptions, chosen: Mapping[str, Any], writes_here: bool) -> list[str]:
    """Warnings where the plan counts on something that only the script can do.

    Raises:
        InputError: the script would run, as another strategy than the plan's.
    """
    sequence = chosen.get("sequence_parallel", 1)
    if sequence > 1 and options.style not in ("accelerate", "trainer"):
        raise InputError(
            f"the plan shares each sequence between {sequence} ranks, which only an Accelerate or Trainer "
            "script can; plan again with ⟨sp⟩ 1"
        )
    stages = chosen.get("pipeline_parallel", 1)
    if stages > 1 and options.style in ("accelerate", "trainer"):
        raise InputError(
            f"the plan is a pipeline of {stages} stages, which {STYLE_WORDS[options.style]} cannot run; plan "
            "again with ⟨pp⟩ 1, or use a script that builds a PipelineModule (⟨style⟩ raw where it is taken "
            "for another)"
        )
    warnings = [f"warning: {line}" for line in deepspeed_note()]
    if writes_here:
        warnings += of_disk_space(chosen, options)
    if chosen.get("tensor_parallel", 1) > 1 and options.style == "raw":
        warnings.append(
            "warning: tensor parallel peers must read the same batch, or DeepSpeed stops with 'Data "
            "inconsistency within the TP group': shard the data over data-parallel ranks only"
        )
    return warnings


_OUTPUTS = ("output_dir", "output_path", "save_dir", "checkpoint_dir", "ckpt_dir", "out_dir")


def of_disk_space(chosen: Mapping[str, Any], options: ScriptOptions) -> list[str]:
    """What must be said where the free space is less than weights and one checkpoint take.

    Args:
        chosen: the strategy of a ``plan.yaml``; one written before plans knew what saves take says nothing.
        options: of the script, of which an output folder is taken; without one, the working directory. A
            Trainer leaves the frozen weights under adapters out of its checkpoints.
    """
    saving = (chosen.get("estimate") or {}).get("saving") or {}
    weights, checkpoint = (saving.get(f"{kind}_bytes") for kind in ("weights", "checkpoint"))
    if not isinstance(weights, int) or not isinstance(checkpoint, int):
        return []
    checkpoint -= saving.get("frozen_bytes", 0) if options.style == "trainer" else 0
    given = options.given(*_OUTPUTS)
    folder = Path(str(given[0]) if given is not None else "").absolute()
    try:
        existing = next(parent for parent in (folder, *folder.parents) if parent.exists())
        free = shutil.disk_usage(existing).free
    except (OSError, StopIteration):
        return []
    if free >= weights + checkpoint:
        return []
    return [
        f"warning: {folder} has {format_gib(free, 1)} free on this machine: if the script saves the planned "
        f"model there, its weights take {format_gib(weights, 1)} and each DeepSpeed checkpoint "
        f"{format_gib(checkpoint, 1)}"
    ]
