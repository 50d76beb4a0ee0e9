"""Unknown, misplaced and wrongly typed keys, against the list that DeepSpeed itself gave."""

from __future__ import annotations

import functools
import json
import operator
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any

from zerokit.check.finding import Finding, fold, nearest
from zerokit.core.rules.types import Edit
from zerokit.core.settings import DEEPSPEED_VERSION
from zerokit.strictload import Document, Path

SOURCE = f"keys that DeepSpeed {DEEPSPEED_VERSION} reads"
_FILE = pathlib.Path(__file__).parent / "keys" / f"deepspeed-{DEEPSPEED_VERSION}.json"

_NAMES = {
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
    "text": "text",
    "block": "an object",
    "choice": "one of a few values",
}
_LIMITS = (
    ("minimum", operator.lt, "at least"),
    ("above", operator.le, "more than"),
    ("maximum", operator.gt, "at most"),
    ("below", operator.ge, "less than"),
)
_NOTES_TO_SELF = ("_comment", "comment", "//", "$schema")


@functools.cache
def key_list() -> Mapping[str, Any]:
    """The committed list (see :mod:`zerokit.check.keys.generate`)."""
    loaded: Mapping[str, Any] = json.loads(_FILE.read_text(encoding="utf-8"))
    return loaded


def lint_keys(document: Document) -> Iterator[Finding]:
    """Findings about keys that DeepSpeed ignores or refuses, and about values of the wrong kind."""
    if not isinstance(document.value, dict):
        yield _finding(document, (), "wrong-kind", "a DeepSpeed configuration is an object", "write { … }")
        return
    yield from _block(document, "", document.value)
    for name in ("optimizer", "scheduler"):
        yield from _parameters(document, name)


def _block(document: Document, name: str, value: Mapping[str, Any]) -> Iterator[Finding]:
    block = key_list()["blocks"][name]
    prefix = tuple(name.split(".")) if name else ()
    for key, given in value.items():
        path = (*prefix, key)
        entry = block["keys"].get(key)
        dotted = ".".join(path)
        if entry is None:
            if block["unknown"] != "any" and not _is_removed(name, key):
                yield _unknown(document, path, name, block, value)
            continue
        if given == "auto" and entry["kind"] != "text":
            continue  # the rule auto-not-filled knows who fills what
        if entry["kind"] == "block" or dotted in key_list()["blocks"]:
            yield from _nested(document, path, given)
        else:
            yield from _value(document, path, entry, given, refused=block["unknown"] == "refused")


def _is_removed(block: str, key: str) -> bool:
    removed = key_list()["removed"]
    return key in removed["top_level" if not block else "zero_optimization"] and block in (
        "",
        "zero_optimization",
    )


def _nested(document: Document, path: Path, given: object) -> Iterator[Finding]:
    dotted = ".".join(str(part) for part in path)
    if isinstance(given, dict):
        if dotted in key_list()["blocks"]:
            yield from _block(document, dotted, given)
        return
    if dotted == "zero_optimization" and isinstance(given, bool):
        return  # the rule zero-as-boolean speaks of it
    nullable = dotted in ("bf16", "aio") or dotted.startswith("zero_optimization.")
    if given is None and nullable:
        return
    yield _finding(
        document,
        path,
        "wrong-kind",
        f"{path[-1]} must be an object, not {_shown(given)}: DeepSpeed fails on it",
        f'write "{path[-1]}": {{…}}, or leave it out',
    )


def _unknown(
    document: Document, path: Path, block_name: str, block: Mapping[str, Any], siblings: Mapping[str, Any]
) -> Finding:
    key = str(path[-1])
    where = block_name or "the top level"
    refused = block["unknown"] == "refused"
    what = (
        f"DeepSpeed refuses the file: {where} has no key {key!r}"
        if refused
        else f"DeepSpeed ignores {key!r}: it reads no such key at {where}"
        if not block_name
        else f"DeepSpeed ignores {key!r}: it reads no such key in {where}"
    )
    owners = [name for name in _homes(key) if name != block_name]
    if owners:
        home = "the top level" if not owners[0] else owners[0]
        return _finding(document, path, "misplaced-key", what, f"move it to {home}")
    guess = nearest(key, block["keys"])
    if guess is None:
        guess = _synonym(key, block["keys"])
    if guess is not None and guess not in siblings:
        # of an ignored key only the spelling is mended: what it says takes effect from then on
        safe = refused or fold(key) == fold(guess)
        edit = Edit(kind="rename", key=".".join(str(part) for part in path), value=guess)
        edits = (edit,) if safe else ()
        return _finding(document, path, "unknown-key", what, f"did you mean {guess!r}?", edits=edits)
    if guess is not None:
        return _finding(document, path, "unknown-key", what, f"remove it; {guess!r} is given as well")
    if key.startswith(_NOTES_TO_SELF) and not refused:
        return _finding(
            document, path, "unknown-key", what, "keep it as a note, or remove it", severity="note"
        )
    severity = "error" if refused else "warning"
    return _finding(document, path, "unknown-key", what, "remove it, or correct the name", severity=severity)


_SYNONYMS = {
    "micro_batch_size": "train_micro_batch_size_per_gpu",
    "micro_batch_size_per_gpu": "train_micro_batch_size_per_gpu",
    "per_device_train_batch_size": "train_micro_batch_size_per_gpu",
    "train_micro_batch_size": "train_micro_batch_size_per_gpu",
    "batch_size": "train_batch_size",
    "global_batch_size": "train_batch_size",
    "gradient_accumulation": "gradient_accumulation_steps",
    "grad_accum_steps": "gradient_accumulation_steps",
    "max_grad_norm": "gradient_clipping",
    "clip_grad": "gradient_clipping",
    "zero": "zero_optimization",
    "zero_config": "zero_optimization",
    "zero_stage": "stage",
    "lr_scheduler": "scheduler",
    "learning_rate": "lr",
    "path": "nvme_path",
    "pinned_memory": "pin_memory",
    "wall_clock": "wall_clock_breakdown",
    "autotp": "tensor_parallel",
    "tp_size": "autotp_size",
    "thread_count": "intra_op_parallelism",
}


def _synonym(key: str, known: Mapping[str, Any]) -> str | None:
    meant = _SYNONYMS.get(key.lower())
    if meant is None and f"stage3_{key}" in known:
        meant = f"stage3_{key}"
    return meant if meant in known else None


@functools.cache
def _homes(key: str) -> tuple[str, ...]:
    """Blocks that do have a key of this name, when that leaves no doubt."""
    if key in ("enabled", "device", "type", "params", "dtype", "profile", "seed", "throughput"):
        return ()
    aliases = {"bfloat16", "tensor_parallel.tp", "tensor_parallel.tensor_parallel"}
    blocks = key_list()["blocks"]
    homes = [name for name, block in blocks.items() if key in block["keys"] and name not in aliases]
    return tuple(homes) if len(homes) == 1 else ()


def _value(
    document: Document, path: Path, entry: Mapping[str, Any], given: object, *, refused: bool
) -> Iterator[Finding]:
    kind = entry["kind"]
    if given is None:
        if refused and not entry.get("null"):
            yield _wrong(document, path, entry, given)
        return
    if kind == "integer":
        yield from _number(document, path, entry, given, whole=True, refused=refused)
    elif kind == "number":
        yield from _number(document, path, entry, given, whole=False, refused=refused)
    elif kind == "boolean":
        yield from _boolean(document, path, entry, given, refused=refused)
    elif (kind == "text" and not isinstance(given, str)) or (
        kind == "choice" and given not in entry["choices"]
    ):
        yield from _choice(document, path, entry, given)
    elif kind == "choice" and isinstance(given, bool | float):
        yield _wrong(document, path, entry, given)


def _number(
    document: Document, path: Path, entry: Mapping[str, Any], given: object, *, whole: bool, refused: bool
) -> Iterator[Finding]:
    if isinstance(given, bool) or not isinstance(given, int | float | str):
        yield _wrong(document, path, entry, given)
        return
    if isinstance(given, str):
        yield from _number_as_text(document, path, entry, given, refused=refused)
        return
    if whole and given != int(given):
        yield _wrong(document, path, entry, given)
        return
    for limit, breaks, words in _LIMITS:
        if limit in entry and breaks(given, entry[limit]):
            yield _finding(
                document,
                path,
                "out-of-range",
                f"{path[-1]} is {given}: DeepSpeed refuses the file",
                f"use {words} {entry[limit]}",
            )


def _number_as_text(
    document: Document, path: Path, entry: Mapping[str, Any], given: str, *, refused: bool
) -> Iterator[Finding]:
    try:
        number = float(given.replace("_", ""))
    except ValueError:
        yield _wrong(document, path, entry, given)
        return
    value: object = int(number) if number == int(number) else number
    dotted = ".".join(str(part) for part in path)
    effect = (
        "DeepSpeed reads it as a number; Accelerate and the Trainer see text"
        if refused
        else "DeepSpeed takes it as text and fails in arithmetic"
    )
    yield _finding(
        document,
        path,
        "number-as-text",
        f'{path[-1]} is the text "{given}": {effect}',
        f"write {value} without quotes",
        edits=(Edit(kind="set", key=dotted, value=value),),
    )


def _boolean(
    document: Document, path: Path, entry: Mapping[str, Any], given: object, *, refused: bool
) -> Iterator[Finding]:
    if isinstance(given, bool):
        return
    words = {
        "true": True,
        "yes": True,
        "on": True,
        "1": True,
        "false": False,
        "no": False,
        "off": False,
        "0": False,
    }
    meant = words.get(str(given).lower()) if isinstance(given, str | int) else None
    if meant is None:
        yield _wrong(document, path, entry, given)
        return
    dotted = ".".join(str(part) for part in path)
    if refused:
        effect = f"DeepSpeed reads {str(meant).lower()}; Accelerate and the Trainer compare it with a boolean"
    elif isinstance(given, str):
        effect = "DeepSpeed takes any text as true"
    else:
        return  # 0 and 1 do what they say
    if isinstance(given, str):
        yield _finding(
            document,
            path,
            "boolean-as-text",
            f'{path[-1]} is the text "{given}": {effect}',
            f"write {str(meant).lower()} without quotes",
            edits=(Edit(kind="set", key=dotted, value=meant),),
        )


def _choice(document: Document, path: Path, entry: Mapping[str, Any], given: object) -> Iterator[Finding]:
    choices = entry.get("choices", [])
    if isinstance(given, str) and given.isdigit() and int(given) in choices:
        yield from _number_as_text(document, path, entry, given, refused=True)
        return
    lower = given.lower() if isinstance(given, str) else None
    edits: tuple[Edit, ...] = ()
    if lower in choices:
        edits = (Edit(kind="set", key=".".join(str(part) for part in path), value=lower),)
    shown = ", ".join(str(choice) for choice in choices) if choices else _NAMES["text"]
    yield _finding(
        document,
        path,
        "wrong-value",
        f"{path[-1]} is {_shown(given)}: DeepSpeed refuses the file",
        f"use {shown}",
        edits=edits,
    )


def _parameters(document: Document, name: str) -> Iterator[Finding]:
    """Parameters of the optimizer or scheduler: passed on as keyword arguments, so a wrong name fails."""
    block = document.value.get(name)
    if not isinstance(block, dict):
        return
    kind, parameters = block.get("type"), block.get("params")
    if parameters is not None and not isinstance(parameters, dict):
        yield _finding(
            document,
            (name, "params"),
            "wrong-kind",
            "params must be an object: the engine fails",
            "write {…}",
        )
        return
    known = key_list()["parameters"][name].get(kind.lower() if name == "optimizer" and kind else kind)
    if known is None or not parameters:
        return
    for key, value in parameters.items():
        path = (name, "params", key)
        if key not in known and key != "max_grad_norm":
            guess = nearest(key, known) or _synonym(key, dict.fromkeys(known))
            edits = (Edit(kind="rename", key=".".join(path), value=guess),) if guess else ()
            mend = f"did you mean {guess!r}?" if guess else f"use {', '.join(known)}"
            message = f"{kind} takes no parameter {key!r}: the engine fails to start"
            yield _finding(document, path, "unknown-parameter", message, mend, edits=edits)
        elif key in ("lr", "eps", "weight_decay") and isinstance(value, str) and value != "auto":
            yield from _number_as_text(document, path, {"kind": "number"}, value, refused=False)


def _wrong(document: Document, path: Path, entry: Mapping[str, Any], given: object) -> Finding:
    wanted = _NAMES.get(entry["kind"], "another value")
    if entry.get("choices"):
        wanted = ", ".join(str(choice) for choice in entry["choices"])
    return _finding(
        document, path, "wrong-kind", f"{path[-1]} is {_shown(given)}: DeepSpeed fails on it", f"use {wanted}"
    )


def _shown(value: object) -> str:
    text = json.dumps(value, default=str, ensure_ascii=False)
    return text if len(text) <= 40 else text[:39] + "…"


def _finding(
    document: Document,
    path: Path,
    rule: str,
    message: str,
    mend: str,
    *,
    severity: Any = "error",
    edits: tuple[Edit, ...] = (),
) -> Finding:
    return Finding(
        path=document.path,
        place=document.place(path),
        rule=rule,
        severity=severity,
        message=message,
        mend=mend,
        source=SOURCE,
        edits=edits,
    )
