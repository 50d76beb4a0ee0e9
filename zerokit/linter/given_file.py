"""The DeepSpeed JSON or the plan that a user names: what to say where another file, or none, stands there."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from zerokit.errors import FileInputError, InputError
from zerokit.linter.accelerate.top_level import named_config
from zerokit.linter.kinds import UNKNOWN, detect_kind
from zerokit.strictload import load_json, parse_yaml
from zerokit.strictload.document import Document, read_text
from zerokit.suggest import alternatives, misspelt

_MOST_NAMES = 3


def load_deepspeed(path: Path, *, strict: bool = True) -> Document:
    """Read it.

    Raises:
        InputError: it cannot be read or is no JSON object; names the file that was probably meant.
    """
    is_folder, is_there = False, True
    with contextlib.suppress(OSError):  # a name too long, or no permission: the reader says so
        is_folder, is_there = path.is_dir(), path.exists()
    if is_folder:
        raise InputError(f"{path}: is a folder; give the DeepSpeed JSON in it{_one_of(_inside(path))}")
    if not is_there:
        raise InputError(f"{path}: there is no such file{similar(path)}")
    if path.suffix in (".yaml", ".yml"):
        raise InputError(f"{path}: ⟨deepspeed⟩ takes DeepSpeed's JSON; {_of_yaml(path)}")
    if path.suffix == ".py":
        raise InputError(f"{path}: ⟨deepspeed⟩ takes DeepSpeed's JSON, and this is a Python script")
    document = load_json(path, strict=strict)
    if not isinstance(document.value, dict):
        raise document.error((), "expected a JSON object: a DeepSpeed configuration")
    return document


def _inside(folder: Path) -> list[str]:
    with contextlib.suppress(OSError):
        return [str(folder / path.name) for path in sorted(folder.glob("*.json"))[:_MOST_NAMES]]
    return []


def _one_of(names: Sequence[str]) -> str:
    return f": {alternatives(names)}" if names else ""


def similar(path: Path, endings: Collection[str] = (".json",)) -> str:
    """The file beside it, or one folder below, that is called like it, to end a message with."""
    with contextlib.suppress(OSError):
        below = [str(found) for found in sorted(path.parent.glob(f"*/{path.name}"))[:_MOST_NAMES]]
        names = [found.name for found in path.parent.iterdir() if found.suffix in endings]
        beside = misspelt(path.name, sorted(names), most=2)
        names = [str(path.with_name(name)) for name in beside] or below
        return f"; did you mean {alternatives(names)}?" if names else ""
    return ""


def _of_yaml(path: Path) -> str:
    """What a YAML is, and which JSON belongs to it."""
    checked = f": `zerokit check {shlex.quote(str(path))}` says more"
    try:
        text = read_text(path)
        kind, document = detect_kind(str(path), text), parse_yaml(text, str(path))
    except FileInputError as error:
        return "zerokit knows no such YAML" + checked if error.message == UNKNOWN else error.message
    if kind == "plan":
        return f"it is a plan: ⟨plan⟩ {path.parent}"
    name = named_config(document)
    if name is not None and kind == "accelerate":
        return f"this is Accelerate's YAML, which names it: {name}"
    runs = document.value.get("distributed_type") if isinstance(document.value, dict) else None
    if kind != "accelerate" or not isinstance(runs, str):
        return "this YAML names none" + checked
    if runs == "DEEPSPEED":
        file = shlex.quote(str(path))
        return (
            f"this is Accelerate's YAML, which names none: `zerokit check {file} --model MODEL --gpu GPU` "
            f"tells whether it fits; to run, {_MAKES_PLAN} and launch that, or {_runs_as_it_is(path)}"
        )
    return f"this is Accelerate's YAML, and does not use DeepSpeed: {rehearsal_of(document.value)}"


_MAKES_PLAN = "make a plan with `zerokit plan ⟨gpus⟩ N ⟨gpu⟩ GPU -- SCRIPT`"


def _runs_as_it_is(path: Path) -> str:
    """What runs an Accelerate YAML that names no JSON, without zerokit."""
    return f"run it as it is: `accelerate launch --config_file {shlex.quote(str(path))} SCRIPT`"


def in_place_of_plan(path: Path) -> str | None:
    """What a file is that was named as a plan, and what to do with it; None: a plan, or nothing known."""
    try:
        text = read_text(path)
        kind = detect_kind(str(path), text)
    except FileInputError:
        return None
    file = shlex.quote(str(path))
    if kind == "accelerate":
        name = named_config(parse_yaml(text, str(path)))
        said = f"is Accelerate's YAML, not a plan: {_MAKES_PLAN}"
        if name is None:
            return f"{said} and launch that, or {_runs_as_it_is(path)}"
        return (
            f"{said}, or run the JSON that it names: `zerokit launch ⟨deepspeed⟩ {shlex.quote(name)} SCRIPT`"
        )
    return {
        "deepspeed": "is a DeepSpeed JSON, not a plan: "
        f"`zerokit launch ⟨deepspeed⟩ {file} SCRIPT` runs with it",
        "recipe": f"is a recipe, not a plan: `zerokit plan ⟨recipe⟩ {file}` makes one",
        "hostfile": "is a hostfile, not a plan: "
        f"`zerokit launch ⟨plan⟩ DIR ⟨hostfile⟩ {file} SCRIPT` uses both",
        "arguments": f"has a Trainer's arguments, and is not a plan: {_MAKES_PLAN}",
    }.get(kind)


def rehearsal_of(value: Mapping[str, Any]) -> str:
    """What tells whether the run of an accelerate YAML without DeepSpeed fits."""
    ranks = value.get("num_processes")
    gpus = f" --gpus {ranks}" if isinstance(ranks, int) and ranks > 1 else ""
    with_fsdp = (
        ", with the settings of its fsdp_config as variables (ACCELERATE_USE_FSDP=true, FSDP_VERSION=…)"
    )
    variables = with_fsdp if value.get("distributed_type") == "FSDP" else ""
    return f"`zerokit rehearse --launcher accelerate{gpus} --gpu GPU SCRIPT` tells whether it fits{variables}"
