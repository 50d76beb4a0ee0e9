"""How a script stands to a plan: the same checks for a launch, a rehearsal and a job that is written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from zerokit.commands import command_text
from zerokit.domain.trainers import TRAINERS, trainer_named
from zerokit.emit.plan_file import PlanFile
from zerokit.errors import InputError
from zerokit.launcher import own_file, rehearsed_plan
from zerokit.launcher.predict_again import predict_again
from zerokit.planner.models import config_of, unlike_planned
from zerokit.script import agreement, misplaced_options, unlike_adapters
from zerokit.script.arguments import ScriptOptions
from zerokit.script.entry_points import Target
from zerokit.script.named_model import folder_meant, named_model
from zerokit.script.option_values import truth
from zerokit.script.reader import ScriptFacts
from zerokit.script.resuming import why_not_resumed
from zerokit.script.trainer_arguments import argument_file
from zerokit.script.training_switch import why_no_training
from zerokit.units import format_gib


def read_of_source(facts: ScriptFacts, target: Target, command: str) -> tuple[str | None, list[str]]:
    """Why the script will not train, if so, and what to say of its arguments.

    Args:
        command: in whose options the script's name ends: ``launch``.

    Raises:
        InputError: an option of the command stands among them.
    """
    notes = misplaced_options.warnings(facts, target.name, target.arguments, command)
    untrained = why_no_training(facts, target.arguments)
    notes += [f"warning: no training step will be seen: {untrained}"] if untrained else []
    unread = why_not_resumed(facts, target.arguments)
    notes += [f"warning: {unread}"] if unread else []
    return untrained, [*notes, *of_missing_model(facts, target)]


def of_missing_model(facts: ScriptFacts, target: Target) -> list[str]:
    """A warning where the arguments name a folder that is not here, and another is nearly spelt so."""
    try:
        file = argument_file(target.arguments, facts)
    except InputError:
        return []  # the script says so itself
    options = ScriptOptions(facts=facts, style=facts.style, user_arguments=target.arguments, file=file)
    named = named_model(options)
    meant = folder_meant(named[0]) if named is not None else None
    if named is None or meant is None or config_of(named[0]) is not None:
        return []
    return [
        f"warning: {named[1].removesuffix(', which')}: no such folder is here, but {meant} is; the script "
        f"would look for {named[0]} on the Hugging Face Hub"
    ]


def agree(
    plan: PlanFile,
    options: ScriptOptions,
    config: dict[str, Any],
    *,
    target: Target,
    ranks: int,
    on_cpu: bool,
    no_arguments: bool,
    accept_mismatch: bool,
    writes_here: bool = True,
    is_launched: bool = False,
) -> agreement.Agreement:
    """What the script is given from the plan, and all that is to be said where it does otherwise.

    Args:
        config: the plan's DeepSpeed configuration for these devices, before any script's needs.
        target: the script with its arguments, by which a rehearsed plan knows it.
        ranks: on all machines together.
        writes_here: the script writes to this machine's disks, whose room is looked at.
        is_launched: ``launch`` runs it, and judges whether the run was as planned.

    Raises:
        InputError: the script contradicts the plan; the message has both values.
    """
    is_refused = agreement.is_refused(options)
    by_options = not rehearsed_plan.is_named(plan, target, options.style, is_refused)
    another = _another_model(options, plan, by_options=by_options)
    unlike_model = ("model",) if another else ()

    def with_script(left_out: Sequence[str], words: Sequence[str]) -> str:
        return rehearsed_plan.command_with_script(
            plan, target, unlike=(*left_out, *unlike_model), options=words
        )

    agreed = agreement.agree(
        options, plan.chosen, config, request=plan.request, seq_len=plan.seq_len, method=plan.method,
        lora=plan.lora, plan_folder=plan.folder, on_cpu=on_cpu, no_arguments=no_arguments,
        accept_mismatch=accept_mismatch, writes_here=writes_here,
        with_script=with_script if rehearsed_plan.is_rehearsable(plan) else None,
        by_options=by_options, is_launched=is_launched,
    )  # fmt: skip
    unlike_file = own_file.beside_plan(options, agreed.added, ranks=ranks, accept_mismatch=accept_mismatch)
    adapters: list[str] = []
    if "rehearsed_with" in rehearsed_plan.content(plan, target)["chosen"]:  # it may train something else
        adapters = unlike_adapters.warnings(options, plan.method, plan.lora, by_options=by_options)
    unlike = (*unlike_model, *agreed.unlike)
    uncounted = [] if another or not is_launched else _of_trainer(plan, options, target)
    notes = (*agreed.notes, *unlike_file, *adapters, *another, *uncounted)
    return replace(agreed, notes=notes, unlike=unlike, is_refused=is_refused)


def _another_model(options: ScriptOptions, plan: PlanFile, *, by_options: bool) -> list[str]:
    """A warning where the script's arguments name another model than the plan's."""
    named = named_model(options)
    parameters = plan.chosen.get("parameters")
    if named is None:
        return []
    unlike = unlike_planned(*named, plan.request, parameters, by_options=by_options)
    return [f"warning: {unlike}"] if unlike is not None else []


def _of_trainer(plan: PlanFile, options: ScriptOptions, target: Target) -> list[str]:
    """A warning where the script's trainer does otherwise than its plan counts, with both figures."""
    facts, chosen = options.facts, rehearsed_plan.content(plan, target)["chosen"]
    name = trainer_named(facts.package, facts.mentions)
    estimate = chosen.get("estimate")
    if name is None or "rehearsed" in chosen or not estimate or not rehearsed_plan.is_rehearsable(plan):
        return []
    row, planned, request, lora = TRAINERS[name], TRAINERS[plan.trainer], dict(plan.request), plan.lora
    different = []
    is_other_job = (row.sequences, row.reference) != (planned.sequences, planned.reference)
    if is_other_job:
        request["trainer"] = name
        request.pop("loss", None)
        what = "two sequences" if row.sequences == 2 else "one sequence"
        different.append(f"{what} in a row{' and a reference model' if row.reference else ''}")
    elif row.loss != (loss := str(request.get("loss", planned.loss))) and facts.mentions & {*row.names}:
        request["loss"] = row.loss
        different.append(f"a {row.loss} loss, not the {loss} one")
    dropout = options.given("lora_dropout")
    share = row.lora_dropout if dropout is None or row.disables_dropout else float(str(dropout[0]))
    if lora is not None and bool(share) != bool(lora.dropout):
        different.append(f"lora_dropout {share:g}, not {lora.dropout:g}")
    nested = options.given("use_bnb_nested_quant")
    doubly = row.double_quant if nested is None else truth(nested[0]) is True
    if plan.method == "qlora" and doubly != planned.double_quant:
        if not is_other_job:
            request["trainer"] = next(key for key, one in TRAINERS.items() if one.double_quant == doubly)
        different.append(f"4-bit weights {'' if doubly else 'not '}doubly quantised")
    request |= {"lora-dropout": f"{share:g}"} | (
        {} if is_other_job else {"loss": request.get("loss", planned.loss)}
    )
    again = predict_again({"request": request, "chosen": chosen}, []) if different else None
    if again is None or again.plan is None:
        return []
    before, after = (one["min_vram_bytes"] for one in (estimate, again.plan["chosen"]["estimate"]))
    fix = ""
    if lora is not None:
        fix = row.asked_for(
            method=plan.method, rank=lora.rank, targets=lora.targets, dropout=lora.dropout,
            nested=planned.double_quant, dtype="", without=("lora", "all", "named", "packed"),
        )  # fmt: skip
    rehearsal = command_text("rehearse", "--plan", str(plan.folder), *rehearsed_plan.script_words(target))
    return [
        f"warning: {row.title}, which the script uses, has {', '.join(different)}: {format_gib(after, 1)} "
        f"required per GPU, where the plan says {format_gib(before, 1)};"
        f"{f' give it {fix}, or' if fix else ''} see all that it takes: {rehearsal}"
    ]
