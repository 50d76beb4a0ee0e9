"""What to type after a rehearsal that does not fit: the script's own remedy, and a plan for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from zerokit.planner.plan_folder import DEFAULT_FOLDER
from zerokit.rehearsal.changes import CHECKPOINTING
from zerokit.rehearsal.result import Rehearsal
from zerokit.script.arguments import ScriptOptions
from zerokit.script.entry_points import Target
from zerokit.script.reader import read_script


@dataclass(frozen=True, slots=True, kw_only=True)
class NextStep:
    """A command, and what it is for."""

    purpose: str
    words: tuple[str, ...]


def next_steps(
    done: Rehearsal, target: Target, hardware: Sequence[str], typed: Sequence[str]
) -> tuple[NextStep, ...]:
    """The commands to type where a script without a plan does not fit, the most likely remedy first.

    Args:
        hardware: the options of ``plan`` for the GPUs of the rehearsal.
        typed: the words of the rehearsal.
    """
    if done.fits is not False:
        return ()
    script = Path(target.script) if target.script is not None else None
    facts = read_script(script, target.module, target.source)
    options = ScriptOptions.read(facts, facts.style, target.arguments)
    return (*_checkpointed(done, options, typed), *_planned(done, options, target, hardware))


def _checkpointed(done: Rehearsal, options: ScriptOptions, typed: Sequence[str]) -> tuple[NextStep, ...]:
    """The rehearsal with the script's option for checkpointing, where it is estimated to fit with it."""
    saved = next((change.saves_bytes for change in done.changes if change.what == CHECKPOINTING), 0)
    added = options.words_for_checkpointing()
    if not saved or not added or "--" in options.user_arguments:
        return ()
    if (done.min_vram_bytes or 0) - saved > (done.vram_bytes or 0):
        return ()
    purpose = "with activation checkpointing it may fit, which another rehearsal tells"
    return (NextStep(purpose=purpose, words=("zerokit", *typed, *added)),)


def _planned(
    done: Rehearsal, options: ScriptOptions, target: Target, hardware: Sequence[str]
) -> tuple[NextStep, ...]:
    """The search of what fits. None where no plan reaches the script: a plain loop, what FSDP shards, a
    DeepSpeed file that is not named among its arguments."""
    if options.style == "none" or done.fully_sharded:
        return ()
    arguments, without = target.arguments, ""
    if options.own_deepspeed_file is not None or done.config_files:
        file, where = options.own_deepspeed_file or ("", "")
        option = where.partition(" ")[0]
        arguments = _without(option, file, target.arguments)
        if arguments == target.arguments:
            return ()
        without = f" in place of {file}"
    under = " under DeepSpeed" if done.engine is None else ""
    if done.engine is None and done.bf16:
        under += ", with its fp32 master weights"
    script = ("-m", target.module) if target.module is not None else (str(target.script),)
    return (
        NextStep(
            purpose=f"which batch size, checkpointing, ZeRO stage and offload fit{under}{without}",
            words=("zerokit", "plan", *hardware, *_folder(target), "--", *script, *arguments),
        ),
    )


def _without(option: str, value: str, arguments: Sequence[str]) -> tuple[str, ...]:
    """The arguments without an option and its value."""
    for at, word in enumerate(arguments):
        if word == option and arguments[at + 1 : at + 2] == (value,):
            return (*arguments[:at], *arguments[at + 2 :])
        if word == f"{option}={value}":
            return (*arguments[:at], *arguments[at + 1 :])
    return tuple(arguments)


def _folder(target: Target) -> tuple[str, ...]:
    """``--out`` with a folder that does not exist, where the usual one holds a plan already."""
    if not Path(DEFAULT_FOLDER).exists():
        return ()
    name = f"{DEFAULT_FOLDER}-{Path(target.name).stem if target.script else target.name.rpartition('.')[2]}"
    names = (name, *(f"{name}-{number}" for number in range(2, 100)))
    return ("--out", next((one for one in names if not Path(one).exists()), name))
