"""What keeps plans from a script, and what of a plan only the script can do."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from zerokit.errors import InputError
from zerokit.machine.versions import deepspeed_note
from zerokit.script.arguments import ScriptOptions, truth
from zerokit.script.reader import STYLE_WORDS, ScriptFacts
from zerokit.units import format_gib

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


def parts_of_the_script(options: ScriptOptions, chosen: Mapping[str, Any], writes_here: bool) -> list[str]:
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
