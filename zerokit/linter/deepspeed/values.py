"""Values of the wrong kind, for a key whose kind is known."""

from __future__ import annotations

import json
import math
import operator
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from zerokit.linter.deepspeed.tables import version
from zerokit.linter.finding import Finding
from zerokit.rules.types import EVERY_READER, FRAMEWORKS, Edit, Severity
from zerokit.strictload import Document, Path

_PLAIN_INTEGER = re.compile(r"[-+]?[0-9]+(_[0-9]+)*(\.0*)?")
LARGEST_INTEGER = 2**63 - 1
"""Beyond it no tensor can be sized, nor element counted."""

_ASKED_WHETHER_TRUE = frozenset({"activation_checkpointing", "checkpoint", "flops_profiler"})
"""Blocks whose booleans, as those at the top level, are only asked ``if``; others reach compiled code, which
refuses text (DeepSpeed 0.19.8, csrc/aio/py_lib, and torch.autocast)."""


def finding(
    document: Document, path: Path, rule: str, message: str, fix: str, *, severity: Severity = "error",
    source: str | None = None, **more: Any,
) -> Finding:  # fmt: skip
    """A finding at a path of a DeepSpeed JSON; the source is the table of keys unless it is named. ``more``:
    attributes of the finding."""
    return Finding(
        path=document.path, location=document.location(path), rule=rule, severity=severity, marked=message,
        marked_fix=fix, source=f"keys that DeepSpeed {version()} reads" if source is None else source, **more,
    )  # fmt: skip


def can_stand(findings: Iterable[Finding]) -> bool:
    """Whether a value has no finding, or only such that ``--fix`` removes."""
    return all(finding.fixable == "safe" for finding in findings)


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


def lint_value(
    document: Document,
    path: Path,
    entry: Mapping[str, Any],
    value: object,
    *,
    refused: bool,
    readers: frozenset[str] = EVERY_READER,
) -> Iterator[Finding]:
    """Findings about one value. ``refused``: DeepSpeed's own class looks at its kind, too, and reads numbers
    and booleans out of text. ``readers``: who may read the file."""
    kind = entry["kind"]
    if value is None:
        if not entry.get("null", not refused):
            yield wrong(document, path, entry, value)
        return
    if entry.get("fold") and isinstance(value, str):
        entry = {**entry, "choices": [choice.lower() for choice in entry["choices"]]}
        value = value.lower()
    if kind in ("integer", "number"):
        yield from _number(document, path, entry, value, refused=refused, readers=readers)
    elif kind == "boolean":
        yield from _boolean(document, path, entry, value, refused=refused, readers=readers)
    elif (kind == "text" and not isinstance(value, str)) or (
        kind == "choice" and value not in entry["choices"]
    ):
        yield from _choice(document, path, entry, value, readers)
    elif kind == "choice" and isinstance(value, bool):
        problem = f"{path[-1]} is {quoted(value)}: DeepSpeed takes it for {int(value)}"  # one of the choices
        fix = f"write the {path[-1]} that is meant"
        yield finding(document, path, "wrong-kind", problem, fix, severity="warning")


def _number(
    document: Document, path: Path, entry: Mapping[str, Any], value: object, *, refused: bool,
    readers: frozenset[str],
) -> Iterator[Finding]:  # fmt: skip
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        yield wrong(document, path, entry, value)
        return
    if isinstance(value, str):
        yield from number_as_text(document, path, entry, value, refused=refused, readers=readers)
        return
    if entry["kind"] == "integer" and value != int(value):
        yield wrong(document, path, entry, value)
        return
    if abs(value) > LARGEST_INTEGER:
        problem = f"{path[-1]} is {quoted(value)}: more than can be counted, DeepSpeed fails on it"
        yield finding(document, path, "out-of-range", problem, "use a number below 2**63")
        return
    if "not" in entry and value == entry["not"]:
        problem = f"{path[-1]} is {quoted(value)}: the run fails at its first step"
        yield finding(document, path, "out-of-range", problem, "use a positive number, or leave the key out")
        return
    for limit, breaks, words in _LIMITS:
        if limit in entry and breaks(value, entry[limit]):
            problem = f"{path[-1]} is {quoted(value)}: DeepSpeed refuses the file"
            yield finding(document, path, "out-of-range", problem, f"use {words} {entry[limit]}")


def number_as_text(
    document: Document, path: Path, entry: Mapping[str, Any], text: str, *, refused: bool, safe: bool = True,
    readers: frozenset[str] = EVERY_READER,
) -> Iterator[Finding]:  # fmt: skip
    """A number in quotes: ``"4"``, ``"5e8"``; ``safe``: the same is built without them, or nothing was."""
    try:
        number = float(text.replace("_", ""))
    except ValueError:
        number = math.nan
    if not math.isfinite(number) or abs(number) > LARGEST_INTEGER:
        yield wrong(document, path, entry, text)
        return
    value: object = int(number) if number == int(number) else number
    dotted = ".".join(str(part) for part in path)
    severity: Severity = "error"
    if not refused:
        effect = "DeepSpeed takes it as text and fails in arithmetic"
    elif entry["kind"] == "integer" and not _PLAIN_INTEGER.fullmatch(text):
        effect = "DeepSpeed refuses the file"  # pydantic reads "2_000", and neither "5e8" nor "2.5"
    else:
        severity, others = _of_text(readers, "see text")
        effect = f"DeepSpeed reads it as a number{others}"
    problem, edit = (
        f'{path[-1]} is the text "{text}": {effect}',
        Edit(kind="set", key=dotted, value=value, safe=safe),
    )
    yield finding(
        document, path, "number-as-text", problem, f"write {value} without quotes", severity=severity,
        edits=(edit,),
    )  # fmt: skip


def _of_text(readers: frozenset[str], they_do: str) -> tuple[Severity, str]:
    """Of text that DeepSpeed's class reads as is meant (pydantic, 0.19.8 runtime/config_utils.py): nobody but
    the frameworks minds."""
    return ("error", f"; Accelerate and the Trainer {they_do}") if readers & FRAMEWORKS else ("note", "")


def _boolean(
    document: Document, path: Path, entry: Mapping[str, Any], value: object, *, refused: bool,
    readers: frozenset[str],
) -> Iterator[Finding]:  # fmt: skip
    if isinstance(value, bool):
        return
    truths = {
        **dict.fromkeys(("true", "yes", "on", "1"), True),
        **dict.fromkeys(("false", "no", "off", "0"), False),
    }
    replacement = truths.get(str(value).lower()) if isinstance(value, str | int) else None
    is_asked = len(path) == 1 or path[0] in _ASKED_WHETHER_TRUE or path[-1] == "torch_adam"
    if replacement is None and isinstance(value, str) and is_asked and not refused:
        replacement = True  # as DeepSpeed takes it
    if replacement is None:
        yield wrong(document, path, entry, value)
        return
    dotted = ".".join(str(part) for part in path)
    severity: Severity = "error"
    if refused:
        severity, others = _of_text(readers, "compare it with a boolean")
        effect = f"DeepSpeed reads {str(replacement).lower()}{others}"
    elif isinstance(value, str):
        effect = "DeepSpeed takes any text as true"
        if replacement and is_asked:
            severity = "warning"
    else:
        return  # 0 and 1 do what they say
    if isinstance(value, str):
        problem, fix = (
            f'{path[-1]} is the text "{value}": {effect}',
            f"write {str(replacement).lower()} without quotes",
        )
        # where any text counts as true, writing false would turn something off
        edit = Edit(kind="set", key=dotted, value=replacement, safe=refused or replacement)
        yield finding(document, path, "boolean-as-text", problem, fix, severity=severity, edits=(edit,))


def _choice(
    document: Document, path: Path, entry: Mapping[str, Any], value: object, readers: frozenset[str]
) -> Iterator[Finding]:
    choices = entry.get("choices", [])
    if isinstance(value, str) and value in map(str, choices):
        yield from number_as_text(document, path, entry, value, refused=True, readers=readers)
        return
    lower = value.lower() if isinstance(value, str) else None
    edits: tuple[Edit, ...] = ()
    if lower in choices:
        edits = (Edit(kind="set", key=".".join(str(part) for part in path), value=lower),)
    listed = ", ".join(str(choice) for choice in choices) if choices else _NAMES["text"]
    problem = f"{path[-1]} is {quoted(value)}: DeepSpeed refuses the file"
    yield finding(document, path, "wrong-value", problem, f"use {listed}", edits=edits)


def wrong(document: Document, path: Path, entry: Mapping[str, Any], value: object) -> Finding:
    """A value of another kind than its key takes."""
    expected = _NAMES.get(entry["kind"], "another value")
    if entry.get("choices"):
        expected = ", ".join(str(choice) for choice in entry["choices"])
    problem = f"{path[-1]} is {quoted(value)}: DeepSpeed fails on it"
    return finding(document, path, "wrong-kind", problem, f"use {expected}")


def quoted(value: object) -> str:
    """A value as JSON, cut short."""
    text = json.dumps(value, default=str, ensure_ascii=False)
    return text if len(text) <= 40 else text[:39] + "…"


def value_at(document: Document, block: str, key: str) -> object:
    """What a block, named by its key path (empty: the top level), has for a key; ``None`` where nothing."""
    value = document.value
    for part in (*filter(None, block.split(".")), key):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def fix_elsewhere(document: Document, home: str, key: str) -> str:
    """The fix for a key that another block takes, by what stands there."""
    label = home or "the top level"
    there = value_at(document, home, key)
    if there is not None:
        return f"remove it; {label} has it, with {quoted(there)}"
    if home == "fp16" and value_at(document, "bf16", "enabled") is True:
        return "remove it; it is for fp16, and bf16 is enabled"
    return f"move it to {label}"
