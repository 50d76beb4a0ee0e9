"""A trainer's own file in place of the options that it says: for a plan, an estimate, a size."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from zerokit.catalog import models
from zerokit.domain.fsdp2_config import from_arguments
from zerokit.errors import InputError, about
from zerokit.linter.arguments_file import find_beside
from zerokit.linter.files import load_deepspeed
from zerokit.notes import Note
from zerokit.planner.accelerate_file import Fsdp2File, read_accelerate_file, whole_arguments
from zerokit.planner.effects import IN_FILE
from zerokit.planner.hardware import hardware, integer
from zerokit.planner.one_strategy import StrategyFile, open_options, read_strategy_file, settings_beside
from zerokit.planner.options import BY_NAME, as_text
from zerokit.planner.request import resolve_optimizer, why_dtype_is_idle
from zerokit.trainer_files import KEPT, NOT_MODELLED, UNKNOWN_KEY
from zerokit.trainer_files.reading import TrainerFile

_SEARCHED = ("micro_batch", "gradient_accumulation", "checkpointing")
"""What a file says and a plan looks for."""
_OF_JOB = tuple(
    name
    for name, option in BY_NAME.items()
    if option.group in ("Model", "Job") and name not in (*_SEARCHED, "global_batch", "inference")
)
"""What a file says of its job, and a plan neither looks for nor writes back."""
_BATCH = ("global_batch", "micro_batch", "gradient_accumulation")


def job_options(
    file: TrainerFile, options: Mapping[str, Any], *, on_these_gpus: bool = True
) -> dict[str, Any]:
    """The options of a plan for the file's job; those that were given win. ``on_these_gpus``: how many there
    are is known, and with them the global batch that the file trains with."""
    said = _said(file, options)
    _leave_out_idle(said, options, "fsdp2" if "fsdp" in file.engine else "deepspeed")
    if on_these_gpus and said.get("micro_batch") and not any(options.get(name) for name in _BATCH):
        per_gpu = (integer(said, "micro_batch") or 1) * (integer(said, "gradient_accumulation") or 1)
        said.setdefault("global_batch", per_gpu * hardware(options).cluster.gpus)
    said = {name: value for name, value in said.items() if name not in _SEARCHED}
    return _merged(options, said)


def searched_values(file: TrainerFile, options: Mapping[str, Any]) -> dict[str, Any]:
    """What the file says of what a plan looks for, by the names of pins; options that are given win."""
    said = {name: value for name, value in _said(file, options).items() if not options.get(name)}
    values = {"micro_batch": integer(said, "micro_batch"), "checkpointing": said.get("checkpointing")}
    return {name: value for name, value in values.items() if value}


def strategy_options(file: TrainerFile, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of an estimate of what the file runs, whatever room that leaves; those that were given
    win."""
    said = {name: value for name, value in _said(file, options).items() if name != "margin"}
    if any(options.get(name) for name in _BATCH):
        said = {name: value for name, value in said.items() if name not in _BATCH or name == "micro_batch"}
    return _merged(options, said)


def given_strategy(
    options: Mapping[str, Any],
    *,
    deepspeed: str | Path | None,
    accelerate: str | Path | None,
    file: TrainerFile | None,
) -> tuple[str, Fsdp2File | StrategyFile | None, dict[str, Any]]:
    """The argument that decides the strategy of an estimate, the configuration that it names, and the options
    with what it says; None: options alone decide. Raises InputError: two arguments do, or a file that cannot
    be read or is not modelled."""
    files = {"accelerate": accelerate, "deepspeed": deepspeed, "file": file}
    fields = [name for name, one in files.items() if one is not None]
    if len(fields) > 1:
        named = " and ".join(f"⟨{name}⟩" for name in fields)
        raise InputError(f"{named} both decide the strategy; leave one out")
    field = fields[0] if fields else "deepspeed"
    with about(field):
        if file is not None:
            return field, *strategy_of(file, options)
        if accelerate is not None:
            return field, *read_accelerate_file(Path(accelerate), options)
        given = None if deepspeed is None else read_strategy_file(Path(deepspeed), options)
        return field, given, dict(options)


def strategy_of(
    file: TrainerFile, options: Mapping[str, Any]
) -> tuple[Fsdp2File | StrategyFile | None, dict[str, Any]]:
    """The DeepSpeed or FSDP2 configuration that a file runs with, and the options that it leaves open; None:
    it runs without an engine, unless the options name one. Raises InputError: it names what is not there, or
    what is not modelled."""
    said, engine = strategy_options(file, options), file.engine
    if not engine and not options.get("engine"):
        return None, {**said, "engine": "ddp"}
    _leave_out_idle(said, options, "fsdp2" if "fsdp" in engine else "deepspeed")
    try:
        if fsdp := engine.get("fsdp"):
            says = from_arguments(whole_arguments({**fsdp, _precision(said): True}, Path(file.path)))
            left = {name: value for name, value in said.items() if name not in ("precision", "checkpointing")}
            left["checkpointing"] = "full" if says.checkpointing else said.get("checkpointing")
            return Fsdp2File(path=Path(file.path), says=says), left
        if not (named := engine.get("deepspeed")):
            return None, said
        if isinstance(named, Mapping):
            left = left_beside(said, named)
            path = Path(file.path)
            return StrategyFile(path=path, config=named, settings=settings_beside(left, path, named)), left
        found = find_beside(str(named), file.path)
        if found is None:
            raise InputError(f"deepspeed: {named}: there is no such file")
        config = load_deepspeed(found, strict=False).value
        left = left_beside(said, config)
        return read_strategy_file(found, left), left
    except InputError as error:
        raise InputError(f"{file.path}: {error.marked}") from None


def _precision(said: Mapping[str, Any]) -> str:
    """The Trainer's switch of the precision; ``auto`` is bf16 where there is FSDP2."""
    return "fp16" if said.get("precision") == "fp16" else "bf16"


def left_beside(said: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    """The options without those that a DeepSpeed file decides: a Trainer refuses other values."""
    decided = IN_FILE.keys() - open_options(config)
    return {name: value for name, value in said.items() if name not in decided}


def notes_on(file: TrainerFile | None) -> tuple[Note, ...]:
    """What the answer does not count of a file."""
    if file is None:
        return ()
    left = [f"{key} ({what})" if what else key for key, what in _left_out(file).items()]
    notes = []
    if left:
        text = f"not modelled of {file.path}: {', '.join(left)}"
        notes.append(Note(NOT_MODELLED, text, level="warning"))
    if file.unknown:
        keys = f"{', '.join(file.unknown)} of {file.path}"
        text = f"no keys of {file.trainer.title}: {keys}; `zerokit check` says more"
        notes.append(Note(UNKNOWN_KEY, text, level="warning"))
    return tuple(notes)


def kept_of(file: TrainerFile, options: Mapping[str, Any]) -> tuple[Note, ...]:
    """What was typed of the job otherwise than the file says: a plan does not write it there."""
    kept, given = [], {**options, "seq_len": integer(options, "seq_len")}
    for name in _OF_JOB:
        typed, said = given.get(name), file.options.get(name)
        if typed in (None, False) or as_text(typed) == as_text(said):
            continue
        if name == "model" and said and models.is_same(as_text(typed), as_text(said)):
            continue
        key = file.keys.get("model" if name == "params" else name, "such line" if said is None else "")
        line = file.document.value.get(key)
        written = (f"no {key}" if key else as_text(said)) if line is None else f"{key}: {as_text(line)}"
        kept.append(f"{written} (⟨{name}⟩ {as_text(typed)})")
    if not kept:
        return ()
    text = f"the plan is for what was typed, and {file.path} still says {', '.join(kept)}: change it there"
    return (Note(KEPT, text, level="warning"),)


def _said(file: TrainerFile, options: Mapping[str, Any]) -> dict[str, Any]:
    if file.refused:
        rehearse = "`zerokit rehearse FILE --gpus N` runs its trainer on GPUs that are not there"
        raise InputError(f"{file.path}: {file.refused}; {rehearse}")
    said = dict(file.options)
    if options.get("model") or options.get("params"):
        said.pop("model", None)
    if _unknown_optimizer(file):
        del said["optimizer"]
    if (options.get("method") or said.get("method")) == "full":
        said = {
            name: value for name, value in said.items() if not name.startswith("lora_") and name != "quant"
        }
    return said


def _leave_out_idle(said: dict[str, Any], options: Mapping[str, Any], engine: str) -> None:
    """Take out the file's dtype of loading where the engine, or the one that is asked for, makes nothing of
    it."""
    method = options.get("method") or said.get("method") or "full"
    if not options.get("load_dtype") and why_dtype_is_idle(str(options.get("engine") or engine), method):
        said.pop("load_dtype", None)


def _left_out(file: TrainerFile) -> dict[str, str]:
    """Keys that are not modelled; a value that no option takes is among them."""
    unknown = _unknown_optimizer(file)
    return {**file.not_modelled, **({file.keys["optimizer"]: unknown} if unknown else {})}


def _unknown_optimizer(file: TrainerFile) -> str:
    """What is taken in place of an optimizer that is not modelled; empty: it is."""
    try:
        resolve_optimizer(file.options.get("optimizer"))
    except InputError:
        return f"{file.options['optimizer']} counted as AdamW"
    return ""


def _merged(options: Mapping[str, Any], said: Mapping[str, Any]) -> dict[str, Any]:
    given = {name: value for name, value in options.items() if value not in (None, False)}
    texts = {name: value if value is True else as_text(value) for name, value in said.items()}
    return {**options, **texts, **given}
