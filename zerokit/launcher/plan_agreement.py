"""How a script stands to a plan, or to a DeepSpeed file of its user's own: the same checks for a launch, a
rehearsal and a job that is written, before any rank starts."""

from __future__ import annotations

import operator
import shlex
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from zerokit.commands import command_text
from zerokit.domain import planning_again
from zerokit.domain.client_optimizers import client_optimizer
from zerokit.domain.planned import Chosen, degrees
from zerokit.domain.settings import (
    BY_ARGUMENT,
    SETTINGS,
    PlannedValues,
    Stated,
    compare,
    sharing_option,
    value_at,
)
from zerokit.domain.trainers import TRAINERS, trainer_named
from zerokit.emit.files import DEEPSPEED_NAMES
from zerokit.emit.fsdp2 import accelerate_config
from zerokit.emit.plan_file import PlanFile
from zerokit.errors import InputError
from zerokit.launcher import adapt_config
from zerokit.launcher.rehearsed_plan import Agreement, PlannedCommand, script_words
from zerokit.linter.finding import Finding
from zerokit.linter.suppress import settings_beside
from zerokit.machine.versions import deepspeed_note
from zerokit.messages import listed
from zerokit.notes import warning
from zerokit.options import divided
from zerokit.planner.checking import check, for_versions
from zerokit.planner.models import config_of, unlike_planned
from zerokit.planner.options import CheckOptions
from zerokit.script import agreement, argument_warnings, file_mismatches, unlike_job
from zerokit.script.arguments import ScriptOptions, is_like, truth
from zerokit.script.entry_points import Target
from zerokit.script.reader import STYLE_WORDS, ScriptFacts
from zerokit.strictload import load_json
from zerokit.units import format_gib

_BATCH = ("micro_batch", "gradient_accumulation")


def read_of_source(facts: ScriptFacts, target: Target, command: str) -> tuple[str | None, list[str]]:
    """Why the script will not train, if so, and what to say of its arguments, which stand behind options of
    ``command``. Raises InputError: an option of the command stands among them."""
    notes = argument_warnings.misplaced(facts, target, command)
    options = argument_warnings.without_defaults(facts, target.arguments)
    untrained = argument_warnings.why_no_training(options)
    notes += [warning("untrained", f"no training step will be seen: {untrained}")] if untrained else []
    unread = argument_warnings.why_not_resumed(options)
    notes += [warning("not-resumed", unread)] if unread else []
    return untrained, [*notes, *of_missing_model(options)]


def of_missing_model(options: ScriptOptions) -> list[str]:
    """A warning where the arguments name a folder that is not here, and another is nearly spelt so."""
    name, where = argument_warnings.named_model(options) or ("", "")
    meant = argument_warnings.folder_meant(name)
    if meant is None or config_of(name) is not None:
        return []
    text = f"{where}: no such folder is here, but {meant} is; the script would look for {name} on the Hugging"
    return [warning("missing-model", f"{text} Face Hub")]


def agree(
    command: PlannedCommand,
    options: ScriptOptions,
    config: dict[str, Any],
    *,
    on_cpu: bool,
    no_arguments: bool,
    accept_mismatch: bool,
    writes_here: bool = True,
    is_launched: bool = False,
) -> Agreement:
    """Fill in what the user did not give the script, and hold the rest to the plan.

    Args:
        config: the plan's DeepSpeed configuration for these devices, before any script's needs.
        on_cpu: the ranks run without a GPU.
        no_arguments: add nothing. accept_mismatch: say contradictions instead of stopping.
        writes_here: the script writes to this machine's disks, whose room is looked at.
        is_launched: ``launch`` runs it, and judges whether the run was as planned.

    Raises:
        InputError: the script contradicts the plan; the message has both values.
    """
    plan, chosen = command.plan, command.plan.chosen
    stopped = "; ".join(agreement.obstacles(options, plan.engine))
    if stopped and not accept_mismatch:
        why = f"no plan reaches the script: {stopped}"
        raise InputError(f"{why}, or launch it without a plan (⟨no_plan=True⟩)")
    is_refused = options.own_deepspeed_file is not None
    by_options = not command.is_named(options.style, is_refused)
    is_rehearsed = bool(chosen.get("rehearsed"))
    named = argument_warnings.named_model(options)
    parameters = chosen.get("parameters")
    another = named and unlike_planned(*named, plan.request, parameters, by_options=by_options)
    planned = _planned_values(command, options, config, on_cpu=on_cpu)
    added = () if no_arguments else options.additions(planned)
    own_file, decided_by_file = _own_file(options, config, plan.folder)
    conflicts = [
        *contradictions(options, planned, added=not no_arguments), *own_file,
        *other_optimizer(options, config),
    ]  # fmt: skip
    decided = _decided_options(options, chosen, on_cpu=not command.is_rehearsable) | decided_by_file
    length = None if is_rehearsed else unlike_job.longest_sequence(options)
    is_other_length = length is not None and length.value != plan.seq_len
    unlike = (*["model"][: bool(another)], *["seq-len"][:is_other_length], *decided)
    words = planning_again.global_batch_for(chosen, plan.request, decided)
    if conflicts and not accept_mismatch:
        again = f": `{command.by_options(decided)}`" if decided else ""  # by options, where they say it
        if command.is_rehearsable and not own_file:
            with_script = command.with_script(unlike=unlike, options=words)
            again = f"{planning_again.what_is_left(with_script)}: `{with_script}`"
        # DeepSpeed refuses fp16 on CPU ranks
        plans_again = not (on_cpu and decided.get("precision") == "fp16")
        ways_out = (
            f"change it{f', plan again for what it does{again}' if plans_again else ''}, or run it all "
            "the same, with ⟨accept_mismatch=True⟩⟪ before the script⟫"
        )
        raise InputError(listed("the script contradicts the plan", conflicts, ways_out))
    # a plan's saves are of all weights
    saves_less = plan.method == "full" and unlike_job.is_on(options, "use_peft")
    notes = [
        *([warning("unreached", f"no plan reaches the script: {stopped}")] if stopped else []),
        *([f"added from the plan: {shlex.join(added)} (⟨no_arguments=True⟩ adds nothing)"] if added else []),
        *(warning("unlike-plan", f"the script contradicts the plan: {conflict}") for conflict in conflicts),
        # a rehearsed plan has the length of the script's own data, and what it trains unless it is another
        *(of_job(options, plan, by_options) if not is_rehearsed or command.otherwise is not None else []),
        *parts_of_the_script(options, chosen, writes_here and not saves_less),
        *_beside_plan(options, added, accept_mismatch=accept_mismatch),
    ]
    notes += (
        [warning("unlike-plan", another)] if another else _of_trainer(command, options) if is_launched else []
    )
    return Agreement(added=added, notes=tuple(notes), unlike=unlike, words=words, is_refused=is_refused)


def _planned_values(
    command: PlannedCommand, options: ScriptOptions, config: Mapping[str, Any], *, on_cpu: bool
) -> PlannedValues:
    if command.plan.engine == "fsdp2":
        # accelerate casts for forward where its file says so
        strategy = command.plan.strategy()
        values = PlannedValues.of(
            strategy, liger_loss=command.plan.request.get("loss") == "liger" and not on_cpu
        )
        precision = {"no": "fp32"}.get(name := str(accelerate_config(strategy, 1)["mixed_precision"]), name)
        return replace(values, precision=precision, on_cpu=on_cpu)
    chosen, request, clipping = command.plan.chosen, command.plan.request, config.get("gradient_clipping")
    # a plan that was made with the script has the script's own loss
    to_fuse = request.get("loss") == "liger" and "rehearsed" not in chosen and not on_cpu
    is_of_trl = "SFTTrainer" in options.facts.mentions or options.facts.package == "trl"  # its own losses
    return PlannedValues(
        micro_batch=chosen["micro_batch"],
        gradient_accumulation=chosen["gradient_accumulation"],
        precision=adapt_config.precision(dict(config)),
        checkpointing=chosen.get("activation_checkpointing", "none"),
        gradient_clipping=None if isinstance(clipping, str | bool | None) else float(clipping),
        optimizer=made_by_script(request, config),
        liger_loss=to_fuse and options.style == "trainer" and not is_of_trl,
        on_cpu=on_cpu,
    )


def made_by_script(request: Mapping[str, Any], config: Mapping[str, Any]) -> str | None:
    """The Trainer's name of the optimizer that a plan leaves to the script; None: DeepSpeed makes it."""
    name = request.get("optimizer")
    return str(name) if "optimizer" not in config and client_optimizer(name) is not None else None


def contradictions(options: ScriptOptions, planned: PlannedValues, *, added: bool) -> list[str]:
    """List where the script would do something else than the plan: both values, one sentence each."""
    values = {BY_ARGUMENT[name].name: value for name, value in planned.trainer_values().items()}
    result = []
    for one, value in compare(values, options.stated(added=added), is_like):
        name = one.setting.trainer
        has = f"trains in {planned.precision}" if name in ("bf16", "fp16") else f"has {name} {value}"
        result.append(f"{one.where}, but the plan {has}")
    return result


def other_optimizer(options: ScriptOptions, config: Mapping[str, Any]) -> list[str]:
    """Where the user's ``optim`` is not the optimizer of DeepSpeed's configuration, which goes first: a
    Trainer then does not look at it (transformers/integrations/deepspeed.py, deepspeed_optim_sched, 5.24)."""
    block = config.get("optimizer")
    planned = {"optimizer": str(block.get("type"))} if isinstance(block, Mapping) else {}
    return [
        f"{one.where}, but the plan has {value} in DeepSpeed's configuration, which a Trainer takes instead"
        for one, value in compare(planned, unlike_job.by_trainer(options), is_like)
    ]


def _decided_options(options: ScriptOptions, chosen: Chosen, *, on_cpu: bool) -> dict[str, str]:
    """What a script decides otherwise than a plan, as options of ``plan``; of its batch all that it decides.
    ``on_cpu``: for CPU ranks, for which no plan is made with a script: a Trainer's checkpointing and its
    optimizer count too."""
    said = [one for one in options.fixed() if one.setting.name in (*_BATCH, "precision")]
    unlike = {one.setting.name for one, _ in compare({"precision": None, **chosen}, said, operator.eq)}
    unlike |= {*_BATCH} if unlike & {*_BATCH} else set()
    found = {one.setting.option: str(one.value) for one in said if one.setting.name in unlike}
    optimizer = (chosen.get("deepspeed_config") or {}).get("optimizer", {}).get("type")
    planned = {"activation_checkpointing": chosen.get("activation_checkpointing", "none")}
    planned |= {"optimizer": str(optimizer)} if optimizer else {}
    others = compare(planned, unlike_job.by_trainer(options), is_like) if on_cpu else []
    return found | {one.setting.option: str(one.value) for one, _ in others}


def _own_file(
    options: ScriptOptions, config: Mapping[str, Any], plan_folder: Path
) -> tuple[list[str], dict[str, str]]:
    """List in what a file of the script's own, which decides in place of the plan's configuration, differs
    from it: in sentences, and as options of ``plan``."""
    name, where = options.own_deepspeed_file or ("", "")
    if not name or Path(name).resolve().is_relative_to(plan_folder.resolve()):
        return [], {}
    try:
        own_config = load_json(Path(name)).value
    except InputError as error:
        return [f"{where}: {error}; without it the script gets the plan's configuration"], {}
    differing = compare(
        {one.setting.name: one.value for one in _strategy(config, "")},
        _strategy(own_config, f"{where}: "),
    )
    conflicts = [f"{one.where}, but the plan has {value}" for one, value in differing]
    return conflicts, {one.setting.option: str(one.value) for one, _ in differing}


def _strategy(config: Any, where: str) -> Iterator[Stated]:
    """What a configuration has of the stage and the offloads; None where that is left open."""
    for name in ("zero_stage", "offload_optimizer", "offload_param"):
        one = SETTINGS[name]
        value = value_at(config, one.deepspeed)
        value = (one.left_out or 0) if value is None else value
        key = one.deepspeed.removeprefix("zero_optimization.").removesuffix(".device")
        own = None if value == "auto" else value
        yield Stated(setting=one, value=own, where=f"{where}{key} {value}")


def of_job(options: ScriptOptions, plan: PlanFile, by_options: bool = True) -> list[str]:
    """Warnings where the arguments name another method, other adapters or another length than the plan's;
    what only code decides, the rehearsal before a launch tells. ``by_options``: say which options plan for
    what the script does, as no command beside them does."""
    planned: dict[str, Any] = {"seq_len": plan.seq_len, "method": plan.method}
    trls, lora = "", plan.lora
    if lora is not None:
        planned |= {"lora_rank": lora.rank, "lora_targets": " ".join(sorted(lora.targets))}
        row = TRAINERS["trl"]
        trls = row.asked_for(
            method=plan.method, rank=lora.rank, targets=lora.targets, dropout=row.lora_dropout, nested=False,
            dtype="bfloat16",
        )  # fmt: skip
    is_rehearsed = bool(plan.chosen.get("rehearsed"))
    length = None if is_rehearsed else unlike_job.longest_sequence(options)
    result: list[str] = []
    for one, value in compare(planned, [*filter(None, [length]), *unlike_job.adapters(options)]):
        fix = f"{one.edit[0]} {value}" if one.edit else "" if one is length else trls
        again = f"plan again with ⟨{one.setting.argument}⟩ {str(one.value).replace(' ', ',')}"
        ways_out = [f"give the script {fix}"] if fix else []
        ways_out += [again] if by_options and one.value != unlike_job.IN_FP32 else []
        said = f"{one.where}: {one.setting.label} {one.value}, but the plan has {value}"
        text = "; ".join(filter(None, (said, ", or ".join(ways_out))))
        result.append(warning("unlike-plan", text))
    return result


def _of_trainer(command: PlannedCommand, options: ScriptOptions) -> list[str]:
    """A warning where the script's trainer does otherwise than its plan counts, with both figures."""
    facts, plan, chosen = options.facts, command.plan, command.content["chosen"]
    name = trainer_named(facts.package, facts.mentions)
    estimate = chosen.get("estimate")
    if name is None or "rehearsed" in chosen or not estimate or not command.is_rehearsable:
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
    from zerokit.launcher.replan import predict_again  # with the report's types, which no plan asks for

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
    rehearsal = command_text("rehearse", "--plan", str(plan.folder), *script_words(command.target))
    text = (
        f"{row.title}, which the script uses, has {', '.join(different)}: {format_gib(after, 1)} required "
        f"per GPU, where the plan says {format_gib(before, 1)};"
        f"{f' give it {fix}, or' if fix else ''} see all that it takes: {rehearsal}"
    )
    return [warning("unlike-plan", text)]


# ---------------------------------------------------------------- what only the script can do


def parts_of_the_script(options: ScriptOptions, chosen: Chosen, writes_here: bool) -> list[str]:
    """Warnings where the plan counts on something that only the script can do. Raises InputError: the script
    would run, as another strategy than the plan's."""
    sequence = degrees(chosen)["sequence_parallel"]
    if sequence > 1 and options.style not in ("accelerate", "trainer"):
        raise InputError(
            f"the plan shares each sequence between {sequence} ranks, which only an Accelerate or Trainer "
            f"script can; plan again with ⟨{sharing_option(chosen.get('engine', 'deepspeed'))}⟩ 1"
        )
    stages = chosen.get("pipeline_parallel", 1)
    if stages > 1 and options.style in ("accelerate", "trainer"):
        raise InputError(
            f"the plan is a pipeline of {stages} stages, which {STYLE_WORDS[options.style]} cannot run; plan "
            "again with ⟨pp⟩ 1, or use a script that builds a PipelineModule (⟨style⟩ raw where it is taken "
            "for another)"
        )
    is_deepspeed = chosen.get("engine", "deepspeed") == "deepspeed"
    warnings: list[str] = [warning("deepspeed-version", line) for line in deepspeed_note() if is_deepspeed]
    if writes_here:
        warnings += of_disk_space(chosen, options)
    if chosen.get("tensor_parallel", 1) > 1 and options.style == "raw":
        text = (
            "tensor parallel peers must read the same batch, or DeepSpeed stops with 'Data inconsistency "
            "within the TP group': shard the data over data-parallel ranks only"
        )
        warnings.append(warning("same-batch", text))
    return warnings


_OUTPUTS = ("output_dir", "output_path", "save_dir", "checkpoint_dir", "ckpt_dir", "out_dir")


def of_disk_space(chosen: Chosen, options: ScriptOptions) -> list[str]:
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
    text = (
        f"{folder} has {format_gib(free, 1)} free on this machine: if the script saves the planned model "
        f"there, its weights take {format_gib(weights, 1)} and each DeepSpeed checkpoint "
        f"{format_gib(checkpoint, 1)}"
    )
    return [warning("disk-space", text)]


# ---------------------------------------------------------------- a DeepSpeed file of the user's own

_READERS = {"raw", "trainer", "accelerate"}


def check_own_file(path: str, *, style: str, ranks: int, accept_mismatch: bool) -> tuple[str, ...]:
    """Lint the file for who reads it (a ``style``; one that takes no configuration reads none) and for so
    many ranks: a warning for each finding that is none of ``check``'s notes. Raises InputError: the run would
    fail on the file, and no mismatch is accepted; the message names each such line, and its fix."""
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
    return tuple(warning(found.rule, _text(found)) for found in findings if found.severity != "note")


def check_agrees(
    path: str, options: ScriptOptions, config: Mapping[str, Any], *, on_cpu: bool, accept_mismatch: bool
) -> tuple[str, ...]:
    """Hold the script to the file (``config``, as the run has it), which decides with it: warnings. Raises
    InputError: Transformers would end the run; the message says on what, and the fix."""
    found = file_mismatches.of_trainer(options, config)
    added = file_mismatches.added_arguments(found)
    if on_cpu and "--bf16" in added and options.given("use_cpu") is None:
        added = (*added, "--use_cpu", "True")  # or TrainingArguments refuse bf16 without a GPU
    ways_out = f'write "auto" in {path}, and the Trainer fills it'
    ways_out += f"; or give the script\n  {shlex.join(added)}\n" if added else "; "
    differing = [file_mismatches.in_words(one, config) for one, _ in found]
    return _stop_or_warn(path, differing, ways_out, accept_mismatch=accept_mismatch, option="⟨deepspeed⟩ ")


def _beside_plan(options: ScriptOptions, added: Sequence[str], *, accept_mismatch: bool) -> tuple[str, ...]:
    """Hold a Trainer's arguments, with those ``added`` from a plan, to the DeepSpeed file that they name,
    though the plan gives it one: warnings. Raises InputError: Transformers would end the run; the message
    says on what, and the fix."""
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
    for_trainer = path.with_name(DEEPSPEED_NAMES["trainer"])
    is_plans = path.name in DEEPSPEED_NAMES.values() and for_trainer != path and for_trainer.is_file()
    other = f" (or name {for_trainer})" if is_plans else ""
    ways_out = f"leave --deepspeed out, and the Trainer gets the plan's configuration{other}; "
    differing = [file_mismatches.in_words(one, config) for one, _ in found]
    return _stop_or_warn(where, differing, ways_out, accept_mismatch=accept_mismatch)


def _stop_or_warn(
    where: str, differing: Sequence[str], ways_out: str, *, accept_mismatch: bool, option: str = ""
) -> tuple[str, ...]:
    """A warning where the run was asked for all the same, else the error, with the ``option`` that names the
    file in front."""
    if not differing:
        return ()
    head = f"{where}: the script's TrainingArguments contradict the file, on which Transformers ends the run"
    text = listed(head, differing, ways_out)
    if accept_mismatch:
        return (warning("unlike-file", text.rstrip("; \n")),)
    raise InputError(f"{option}{text}⟨accept_mismatch=True⟩ starts the run all the same")


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
        warning(found.rule, _text(found))
        for found in findings
        if found.severity != "note" or (reads_it_too and found.rule.startswith("json-"))
    )
    if options.style != "trainer" or any(found.severity == "error" for found in findings):
        return told
    config = load_json(Path(path)).value
    return (*told, *check_agrees(path, options, config, on_cpu=False, accept_mismatch=True))


def refuse_missing(options: ScriptOptions) -> None:
    """Stop where the script's arguments name a DeepSpeed file that does not exist: a script that ignores them
    would be rehearsed without it. A launched script may make the file itself. Raises InputError: names the
    argument."""
    named = options.given("deepspeed") or options.given("deepspeed_config")
    file = str(named[0]) if named is not None else ""
    if named is not None and file.endswith(".json") and not Path(file).exists():
        raise InputError(f"{named[1]}: there is no such file")


def _text(found: Finding) -> str:
    fix = f"; fix: {found.fix}" if found.fix else ""
    return f"{found.where}: {found.message}{fix} [{found.rule}]"
