"""Whether a script does what its plan says: what it is given for that, and where it contradicts."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zerokit.domain import planning_again
from zerokit.domain.job import CHECKPOINTS_A_PIPELINE, Lora
from zerokit.errors import InputError
from zerokit.machine.versions import deepspeed_note
from zerokit.messages import listed
from zerokit.script import (
    adapt_config,
    assignments,
    code_settings,
    code_values,
    disk_space,
    file_mismatches,
    planned_loss,
    scripts_optimizer,
    unlike_adapters,
    unlike_job,
    unreached,
    unsaved_weights,
)
from zerokit.script.arguments import SPELLINGS, ScriptOptions
from zerokit.script.loader_batch import PlannedBatch, before_the_run
from zerokit.script.planned_values import PlannedValues
from zerokit.script.reader import STYLE_WORDS, ScriptFacts
from zerokit.script.sequence_length import length_warnings, longest_sequence
from zerokit.temporary import is_temporary

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


_OPTION_OF: Mapping[str, tuple[str, Callable[[object], str]]] = {
    "per_device_train_batch_size": ("micro-batch", str),
    "gradient_accumulation_steps": ("gradient-accumulation", str),
    "bf16": ("precision", lambda value: "bf16" if value else "fp32"),
    "fp16": ("precision", lambda value: "fp16" if value else "fp32"),
    "gradient_checkpointing": ("checkpointing", lambda value: "full" if value else "none"),
}
"""Options of ``plan`` that plan for an argument's value."""


def agree(
    options: ScriptOptions,
    chosen: Mapping[str, Any],
    config: dict[str, Any],
    *,
    request: Mapping[str, Any],
    seq_len: int,
    method: str,
    lora: Lora | None,
    plan_folder: Path,
    on_cpu: bool,
    no_arguments: bool,
    accept_mismatch: bool,
    writes_here: bool = True,
    with_script: WithScript | None = None,
    by_options: bool = True,
    is_launched: bool = True,
) -> Agreement:
    """Fill in what the user did not give, and hold the rest to the plan.

    Args:
        options: of the script.
        chosen: the plan's choice.
        config: the plan's DeepSpeed configuration for these devices, before any script's needs.
        request: what the plan was made from, by option without dashes in front.
        seq_len: tokens of a sequence that the plan counts on.
        method: what the plan trains: ``full``, ``lora`` or ``qlora``. lora: its adapters.
        plan_folder: where the plan's files lie, which a script may name itself.
        on_cpu: the ranks run without a GPU.
        no_arguments: add nothing.
        accept_mismatch: say contradictions instead of stopping.
        writes_here: the script writes to this machine's disks, whose room is looked at.
        with_script: the command that plans with the script; None: no plan of this kind is made with one.
        by_options: warnings say which options plan for what the script does, as no command beside them does.
        is_launched: ``launch`` runs it, and judges whether the run was as planned.

    Raises:
        InputError: the script contradicts the plan; the message has both values.
    """
    obstacles = _obstacles(options)
    if obstacles and not accept_mismatch:
        raise InputError(
            f"no plan reaches the script: {obstacles}, or launch it without a plan (⟨no_plan=True⟩)"
        )
    batch = PlannedBatch(
        chosen=chosen, request=request, folder=None if is_temporary(plan_folder) else plan_folder
    )
    loss = planned_loss.of_request(request, rehearsed=batch.rehearsed)
    planned = PlannedValues(
        micro_batch=int(chosen["micro_batch"]),
        gradient_accumulation=int(chosen["gradient_accumulation"]),
        precision=adapt_config.precision(config),
        checkpointing=str(chosen.get("activation_checkpointing", "none")),
        gradient_clipping=_clipping(config),
        optimizer=scripts_optimizer.made_by_script(request, config),
        liger_loss=loss == "liger" and not on_cpu and planned_loss.is_of_trainer(options),
        on_cpu=on_cpu,
    )
    added = () if no_arguments else options.additions(planned)
    conflicts = options.conflicts(planned, added=not no_arguments)
    own_file, decided_by_file = _own_file(options, config, plan_folder)
    conflicts += own_file
    conflicts += code_settings.unlike_plan(
        options.facts.code_settings, options.style, chosen, planned.precision
    )
    conflicts += scripts_optimizer.conflicts(options, config)
    notes = [f"warning: no plan reaches the script: {obstacles}"] if obstacles else []
    if added:
        notes.append(f"added from the plan: {shlex.join(added)} (⟨no_arguments=True⟩ adds nothing)")
    longest = None if batch.rehearsed else longest_sequence(options)
    unlike: tuple[str, ...] = ("seq-len",) if longest is not None and longest[0] != seq_len else ()
    unlike += ("pp",) if _lacks_pipeline(options.facts, chosen) else ()
    decided = code_values.decided_options(options, chosen, on_cpu=with_script is None) | decided_by_file
    unlike += tuple(decided)
    words = planning_again.global_batch_for(chosen, request, decided)
    if conflicts and not accept_mismatch:
        command = with_script(unlike, words) if with_script is not None and not own_file else None
        # DeepSpeed refuses fp16 on CPU ranks
        is_refused = planned.on_cpu and decided.get("precision") == "fp16"
        again = None if is_refused else _planning_again(batch, decided, command)
        ways_out = _ways_out(again, is_launched=is_launched)
        raise InputError(listed("the script contradicts the plan", conflicts, ways_out))
    notes += [f"warning: the script contradicts the plan: {conflict}" for conflict in conflicts]
    is_judged = is_launched and not accept_mismatch
    notes += _assigned(options.facts, planned, batch, is_judged=is_judged)
    notes += planned_loss.warnings(options, loss)
    notes += before_the_run(options, batch, by_options=by_options, is_judged=is_judged)
    if not batch.rehearsed:  # its length is that of the script's own data
        notes += length_warnings(options, seq_len, by_options=by_options)
        notes += unlike_job.warnings(options, method, by_options=by_options)
        notes += unlike_adapters.warnings(options, method, lora, by_options=by_options)
    notes += file_mismatches.ignored_clipping(options, config)
    notes += unsaved_weights.warnings(options.facts, config, method)
    saves_less = method == "full" and unlike_job.trains_adapters(options)
    writes_here = writes_here and not saves_less  # the plan's saves are of all weights
    notes += _parts_of_the_script(options, chosen, writes_here)
    return Agreement(added=added, notes=tuple(notes), unlike=unlike, words=words)


def _ways_out(again: str | None, *, is_launched: bool) -> str:
    """What to do about contradictions; ``again``: the command that plans for them, None: no plan can be."""
    plan = "" if again is None else f", plan again for what it does{again}"
    return (
        f"change it{plan}, or {'run it' if is_launched else 'go on'} all the same, with "
        "⟨accept_mismatch=True⟩⟪ before the script⟫"
    )


def _planning_again(batch: PlannedBatch, decided: Mapping[str, str], with_script: str | None) -> str:
    """The command that plans for what the script does, in brackets: with the script, or by options where no
    plan is made with it; empty where no option says it.

    Args:
        decided: what the script decides otherwise, as options of ``plan``.
        with_script: the command that plans with the script; None: none does.
    """
    if with_script is not None:
        return f"{planning_again.what_is_left(with_script)}: `{with_script}`"
    return f": `{batch.command_for(decided)}`" if decided else ""


def _assigned(
    facts: ScriptFacts, planned: PlannedValues, batch: PlannedBatch, *, is_judged: bool
) -> list[str]:
    """Warnings of what its code sets otherwise, once the arguments are read."""
    values = _by_any_name(planned)
    names = {name: key for key in _OPTION_OF for name in SPELLINGS.get(key, (key,))}
    ran: dict[str, str] = {}
    for one in facts.assigned:
        if one.name in names and one.value != values.get(one.name):
            option, value_of = _OPTION_OF[names[one.name]]
            ran[option] = value_of(one.value)
    held = {name for name, key in names.items() if _OPTION_OF[key][0] != "checkpointing" and is_judged}
    return assignments.unlike_plan(facts.assigned, values, held, batch.command_for(ran) if ran else "")


def _by_any_name(planned: PlannedValues) -> dict[str, object]:
    """What the plan decided, by each name that a script may use for it."""
    values = planned.trainer_values()
    values.pop("max_grad_norm", None)  # changes neither memory nor time
    return {name: value for key, value in values.items() for name in SPELLINGS.get(key, (key,))}


def check_reaches(facts: ScriptFacts, style: str) -> None:
    """Refuse a DeepSpeed file for a script that makes its own.

    Raises:
        InputError: names the call.
    """
    for obstacle in unreached.own_configuration(facts, style):
        raise InputError(f"the DeepSpeed file does not reach the script: {obstacle.text}")


def _clipping(config: Mapping[str, Any]) -> float | None:
    value = config.get("gradient_clipping")
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _own_file(
    options: ScriptOptions, config: Mapping[str, Any], plan_folder: Path
) -> tuple[list[str], dict[str, str]]:
    """In what a file of the script's own, which decides in place of the plan's configuration, differs from
    it: in sentences, and as options of ``plan``."""
    if options.own_deepspeed_file is None:
        return [], {}
    name, where = options.own_deepspeed_file
    if Path(name).resolve().is_relative_to(plan_folder.resolve()):
        return [], {}
    from zerokit.strictload import load_json

    try:
        own_config = load_json(Path(name)).value
    except InputError as error:
        return [f"{where}: {error}; without it the script gets the plan's configuration"], {}
    conflicts, decided = [], {}
    planned = dict(_strategy(config))
    for label, own_value in _strategy(own_config):
        if own_value not in (planned[label], "auto"):
            conflicts.append(f"{where}: {label} {own_value}, but the plan has {planned[label]}")
            decided["zero" if label == "stage" else label.replace("_", "-")] = str(own_value)
    return conflicts, decided


def is_refused(options: ScriptOptions) -> bool:
    """Whether no plan is made with the script and these arguments (:attr:`Agreement.is_refused`)."""
    ends = options.facts.option_list.refuses(options.user_arguments)
    return ends or options.own_deepspeed_file is not None


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
    obstacles = _obstacles(options) if options.style != "none" else ""
    if obstacles:
        raise InputError(
            f"no plan reaches the script: {obstacles} to plan, or go on without a plan: `zerokit rehearse` "
            "says what the script takes, `zerokit launch --no-plan` runs it"
        )


def _obstacles(options: ScriptOptions) -> str:
    return "; ".join(obstacle.text for obstacle in unreached.obstacles(options))


def _strategy(config: Any) -> Sequence[tuple[str, object]]:
    zero = config.get("zero_optimization") if isinstance(config, dict) else None
    zero = zero if isinstance(zero, dict) else {}

    def device(name: str) -> object:
        block = zero.get(name)
        return block.get("device", "none") if isinstance(block, dict) else "none"

    return (
        ("stage", zero.get("stage", 0)),
        ("offload_optimizer", device("offload_optimizer")),
        ("offload_param", device("offload_param")),
    )


def _pipeline(facts: ScriptFacts, chosen: Mapping[str, Any]) -> list[str]:
    """A script that can build a pipeline, under a plan that has none, and the reverse; whether it does only
    the run tells."""
    stages = chosen.get("pipeline_parallel", 1)
    if _lacks_pipeline(facts, chosen):
        return [
            f"the plan is a pipeline of {stages} stages, and the script shows no sign of building one "
            "(PipelineModule): without it each rank holds the whole model; plan again with ⟨pp⟩ 1"
        ]
    if stages > 1 or "PipelineModule" not in facts.mentions:
        return []
    refused = chosen.get("zero_stage", 0) > 1
    problem = (
        "DeepSpeed refuses a pipeline under ZeRO-2 and ZeRO-3"
        if refused
        else "the stages of a pipeline would share each batch, and DeepSpeed refuses the plan's batch"
    )
    return [
        f"the script can build a pipeline (PipelineModule), and the plan has none: {problem}; plan again "
        "with ⟨pp⟩ STAGES, or have the script build none"
    ]


def _lacks_pipeline(facts: ScriptFacts, chosen: Mapping[str, Any]) -> bool:
    """Whether the plan has a pipeline that nothing in the script looks like building."""
    looks_like_one = "PipelineModule" in facts.mentions or facts.unreadable
    return chosen.get("pipeline_parallel", 1) > 1 and not looks_like_one


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
    warnings = [f"warning: {line}" for line in (*deepspeed_note(), *_pipeline(options.facts, chosen))]
    if writes_here:
        warnings += disk_space.warnings(
            chosen, options.user_arguments, options.file.values if options.file else None,
            is_trainer=options.style == "trainer",
        )  # fmt: skip
    if chosen.get("tensor_parallel", 1) > 1 and options.style == "raw":
        warnings.append(
            "warning: tensor parallel peers must read the same batch, or DeepSpeed stops with 'Data "
            "inconsistency within the TP group': shard the data over data-parallel ranks only"
        )
    if chosen.get("activation_checkpointing") == "full" and options.never_checkpoints:
        turns_it_on = CHECKPOINTS_A_PIPELINE if stages > 1 else "call model.gradient_checkpointing_enable()"
        warnings.append(
            "warning: the plan counts on activation checkpointing, and the script shows no sign of turning "
            f"it on: {turns_it_on}, or plan again with ⟨checkpointing⟩ none"
        )
    return warnings
