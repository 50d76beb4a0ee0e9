"""How a script stands to a plan, or to a DeepSpeed file of its user's own: the same checks for a launch, a
rehearsal and a job that is written, before any rank starts."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from zerokit.commands import command_text
from zerokit.domain.trainers import TRAINERS, trainer_named
from zerokit.emit.files import DEEPSPEED_NAMES
from zerokit.emit.plan_file import PlanFile
from zerokit.errors import InputError
from zerokit.launcher import rehearsed_plan
from zerokit.launcher.predict_again import predict_again
from zerokit.linter.finding import Finding
from zerokit.linter.suppress import settings_beside
from zerokit.messages import listed
from zerokit.options import divided
from zerokit.planner.checking import check, for_versions
from zerokit.planner.models import config_of, unlike_planned
from zerokit.planner.options import CheckOptions
from zerokit.script import agreement, argument_warnings, file_mismatches, unlike_job
from zerokit.script.arguments import ScriptOptions, truth
from zerokit.script.entry_points import Target
from zerokit.script.reader import ScriptFacts
from zerokit.strictload import load_json
from zerokit.units import format_gib


def read_of_source(facts: ScriptFacts, target: Target, command: str) -> tuple[str | None, list[str]]:
    """Why the script will not train, if so, and what to say of its arguments, which stand behind options of
    ``command``.

    Raises:
        InputError: an option of the command stands among them.
    """
    notes = argument_warnings.misplaced(facts, target.name, target.arguments, command)
    untrained = argument_warnings.why_no_training(facts, target.arguments)
    notes += [f"warning: no training step will be seen: {untrained}"] if untrained else []
    unread = argument_warnings.why_not_resumed(facts, target.arguments)
    notes += [f"warning: {unread}"] if unread else []
    return untrained, [*notes, *of_missing_model(facts, target)]


def of_missing_model(facts: ScriptFacts, target: Target) -> list[str]:
    """A warning where the arguments name a folder that is not here, and another is nearly spelt so."""
    options = argument_warnings.without_defaults(facts, target.arguments)
    named = argument_warnings.named_model(options) if options is not None else None
    meant = argument_warnings.folder_meant(named[0]) if named is not None else None
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
        ranks: on all machines together.
        writes_here: the script writes to this machine's disks, whose room is looked at.
        is_launched: ``launch`` runs it, and judges whether the run was as planned.

    Raises:
        InputError: the script contradicts the plan; the message has both values.
    """
    is_refused = options.own_deepspeed_file is not None
    held = unlike_job.HeldTo(
        chosen=plan.chosen, request=plan.request, folder=plan.folder, seq_len=plan.seq_len,
        method=plan.method, lora=plan.lora,
        by_options=not rehearsed_plan.is_named(plan, target, options.style, is_refused),
    )  # fmt: skip
    named, parameters = argument_warnings.named_model(options), plan.chosen.get("parameters")
    another = None
    if named is not None:
        another = unlike_planned(*named, plan.request, parameters, by_options=held.by_options)
    unlike_model = ("model",) if another else ()

    def with_script(left_out: Sequence[str], words: Sequence[str]) -> str:
        return rehearsed_plan.command_with_script(
            plan, target, unlike=(*left_out, *unlike_model), options=words
        )

    agreed = agreement.agree(
        options, held, config, on_cpu=on_cpu, no_arguments=no_arguments, accept_mismatch=accept_mismatch,
        writes_here=writes_here, with_script=with_script if rehearsed_plan.is_rehearsable(plan) else None,
    )  # fmt: skip
    notes = [*agreed.notes, *_beside_plan(options, agreed.added, ranks, accept_mismatch=accept_mismatch)]
    if "rehearsed_with" in rehearsed_plan.content(plan, target)["chosen"]:  # it may train something else
        notes += unlike_job.of_arguments(options, held)
    notes += [f"warning: {another}"] if another else _of_trainer(plan, options, target) if is_launched else []
    unlike = (*unlike_model, *agreed.unlike)
    return replace(agreed, notes=tuple(notes), unlike=unlike, is_refused=is_refused)


def _of_trainer(plan: PlanFile, options: ScriptOptions, target: Target) -> list[str]:
    """A warning where the script's trainer does otherwise than its plan counts, with both figures."""
    facts, chosen = options.facts, rehearsed_plan.content(plan, target)["chosen"]
    name = trainer_named(facts.package, facts.mentions)
    estimate = chosen.get("estimate")
    if name is None or "rehearsed" in chosen or not estimate or not rehearsed_plan.is_rehearsable(plan):
        return []
    row, planned, lora = TRAINERS[name], TRAINERS[plan.trainer], plan.lora
    different = []
    loss = str(plan.request.get("loss", planned.loss))
    own_loss = row.loss if facts.mentions & {*row.names} else loss
    if (row.sequences, row.reference) != (planned.sequences, planned.reference):
        what = "two sequences" if row.sequences == 2 else "one sequence"
        different.append(f"{what} in a row{' and a reference model' if row.reference else ''}")
    elif own_loss != loss:
        different.append(f"a {own_loss} loss, not the {loss} one")
    dropout = options.given("lora_dropout")
    share = row.lora_dropout if dropout is None or row.disables_dropout else float(str(dropout[0]))
    if lora is not None and bool(share) != bool(lora.dropout):
        different.append(f"lora_dropout {share:g}, not {lora.dropout:g}")
    nested = options.given("use_bnb_nested_quant")
    doubly = row.double_quant if nested is None else truth(nested[0]) is True
    if plan.method == "qlora" and doubly != planned.double_quant:
        different.append(f"4-bit weights {'' if doubly else 'not '}doubly quantised")
    if not different:
        return []
    # by its own row, and where its arguments have other constants by one that has them
    counted = [name, *TRAINERS] if plan.method == "qlora" else [name]
    trainer = next((one for one in counted if TRAINERS[one].double_quant == doubly), name)
    request = {**plan.request, "trainer": trainer, "lora-dropout": f"{share:g}"}
    request.pop("loss", None)
    if own_loss != TRAINERS[trainer].loss:
        request["loss"] = own_loss
    again = predict_again({"request": request, "chosen": chosen}, []).plan
    if again is None:
        return []
    before, after = (one["min_vram_bytes"] for one in (estimate, again["chosen"]["estimate"]))
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


# ---------------------------------------------------------------- a DeepSpeed file of the user's own

_READERS = {"raw", "trainer", "accelerate"}


def check_own_file(path: str, *, style: str, ranks: int, accept_mismatch: bool) -> tuple[str, ...]:
    """Lint the file for who reads it (a ``style``; one that takes no configuration reads none) and for so
    many ranks: a warning for each finding that is none of ``check``'s notes.

    Raises:
        InputError: the run would fail on the file, and no mismatch is accepted; the message names each such
            line, and its fix.
    """
    if style not in _READERS:
        return ()
    findings = _findings(path, style, ranks)
    fatal = [found for found in findings if found.severity == "error" and not found.is_ignored]
    if fatal and not accept_mismatch:
        count = "an error" if len(fatal) == 1 else f"{len(fatal)} errors"
        again = command_text("check", "--for", style, "--world-size", str(ranks), path)
        raise InputError(
            f"⟨deepspeed⟩ {path}: the run would fail on {count}:\n  "
            + "\n  ".join(_text(found) for found in fatal)
            + f"\n`{again}` shows more; ⟨accept_mismatch=True⟩ starts the run all the same"
        )
    return tuple(f"warning: {_text(found)}" for found in findings if found.severity != "note")


def check_agrees(
    path: str,
    options: ScriptOptions,
    config: Mapping[str, Any],
    *,
    ranks: int,
    on_cpu: bool,
    accept_mismatch: bool,
) -> tuple[str, ...]:
    """Hold the script to the file (``config``, as the run has it), which decides with it: warnings.

    Raises:
        InputError: Transformers would end the run; the message says on what, and the fix.
    """
    found = file_mismatches.of_trainer(options, config) if options.style == "trainer" else []
    if not found:
        return ()
    added = file_mismatches.added_arguments(found)
    if on_cpu and "--bf16" in added and options.given("use_cpu") is None:
        added = (*added, "--use_cpu", "True")  # or TrainingArguments refuse bf16 without a GPU
    text = listed(
        f"{path}: the script's TrainingArguments contradict it, on which Transformers ends the run",
        [one.text for one in found],
        f'write "auto" in {path}, and the Trainer fills it'
        + (f"; or give the script\n  {shlex.join(added)}" if added else ""),
    )
    return _stop_or_warn(text, accept_mismatch=accept_mismatch, joint="\n" if added else "; ")


def _beside_plan(
    options: ScriptOptions, added: Sequence[str], ranks: int, *, accept_mismatch: bool
) -> tuple[str, ...]:
    """Hold a Trainer's arguments, with those ``added`` from a plan, to the DeepSpeed file that they name,
    though the plan gives it one: warnings.

    Raises:
        InputError: Transformers would end the run; the message says on what, and the fix.
    """
    if options.style != "trainer" or options.own_deepspeed_file is None:
        return ()
    name, where = options.own_deepspeed_file
    path = Path(name)
    try:
        config = load_json(path).value
    except InputError:
        return ()  # said where the file is held to the plan's strategy
    filled = replace(options, user_arguments=(*options.user_arguments, *added))
    found = file_mismatches.of_trainer(filled, config) if isinstance(config, dict) else []
    if not found:
        return ()
    for_trainer = path.with_name(DEEPSPEED_NAMES["trainer"])
    is_plans = path.name in DEEPSPEED_NAMES.values() and for_trainer != path and for_trainer.is_file()
    text = listed(
        f"{where}: the script's TrainingArguments contradict this file, on which Transformers ends the run",
        [one.text for one in found],
        "leave --deepspeed out, and the Trainer gets the plan's configuration"
        + (f" (or name {for_trainer})" if is_plans else ""),
    )
    return _stop_or_warn(text, accept_mismatch=accept_mismatch, option="")


def _stop_or_warn(
    text: str, *, accept_mismatch: bool, option: str = "⟨deepspeed⟩ ", joint: str = "; "
) -> tuple[str, ...]:
    """A warning where the run was asked for all the same, else the error, with the ``option`` that names the
    file in front; ``joint`` parts its text from the way out."""
    if accept_mismatch:
        return (f"warning: {text}",)
    raise InputError(f"{option}{text}{joint}⟨accept_mismatch=True⟩ starts the run all the same")


def _findings(path: str, reader: str, ranks: int) -> Sequence[Finding]:
    project = settings_beside(Path.cwd())
    asked = {"kind": "deepspeed", "reader": reader, "world_size": ranks, "ignore": project.ignore}
    settings, _ = divided(CheckOptions, asked)
    with for_versions(None, None):
        return check([path], {}, settings).findings


def of_arguments(options: ScriptOptions, ranks: int) -> tuple[str, ...]:
    """What ``check`` finds in the DeepSpeed file that the script's own arguments name, as warnings: a run or
    a rehearsal would end with an error of the script's that does not name the line."""
    path = own[0] if (own := options.own_deepspeed_file) is not None else None
    if path is None or Path(path).suffix != ".json" or options.style not in _READERS:
        return ()
    reads_it_too = options.style == "raw" and options.facts.reads_deepspeed_config  # with json, most likely
    findings = _findings(path, options.style, ranks)
    told = tuple(
        f"warning: {_text(found)}"
        for found in findings
        if found.severity != "note" or (reads_it_too and found.rule.startswith("json-"))
    )
    if options.style != "trainer" or any(found.severity == "error" for found in findings):
        return told
    config = load_json(Path(path)).value
    return (*told, *check_agrees(path, options, config, ranks=ranks, on_cpu=False, accept_mismatch=True))


def refuse_missing(options: ScriptOptions) -> None:
    """Stop where the script's arguments name a DeepSpeed file that does not exist: a script that ignores them
    would be rehearsed without it. A launched script may make the file itself.

    Raises:
        InputError: names the argument.
    """
    named = options.given("deepspeed") or options.given("deepspeed_config")
    file = str(named[0]) if named is not None else ""
    if named is not None and file.endswith(".json") and not Path(file).exists():
        raise InputError(f"{named[1]}: there is no such file")


def _text(found: Finding) -> str:
    location = f"{found.path}:{found.location.line}:{found.location.column}"
    fix = f"; fix: {found.fix}" if found.fix else ""
    return f"{location}: {found.message}{fix} [{found.rule}]"
