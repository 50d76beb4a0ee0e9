"""Unknown, misplaced and wrongly typed keys, against the list that DeepSpeed itself gave."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from zerokit.linter.deepspeed.parameters import is_parameter, lint_parameters
from zerokit.linter.deepspeed.tables import homes_in, key_list, version
from zerokit.linter.deepspeed.values import can_stand, finding, fix_elsewhere, lint_value, quoted, value_at
from zerokit.linter.finding import Finding
from zerokit.rules import EVERY_READER
from zerokit.rules.types import Edit, Severity
from zerokit.strictload import Document, Path
from zerokit.suggest import distance, fold, leaves_no_doubt, may_search, nearest, standing_in, synonym

_TELLING = {"zero_optimization", "train_micro_batch_size_per_gpu", "train_batch_size"}
_MOST_TYPOS = 2
_NOTES_TO_SELF = ("_comment", "comment", "//", "$schema")


def lint_keys(document: Document, readers: frozenset[str] = EVERY_READER) -> Iterator[Finding]:
    """Findings about keys that DeepSpeed ignores or refuses, and about values of the wrong kind."""
    if not isinstance(document.value, dict):
        yield finding(document, (), "wrong-kind", "a DeepSpeed configuration is an object", "write { … }")
        return
    outer = wrapper(document.value)
    if outer is not None:
        problem = f"the configuration stands below {outer!r}: DeepSpeed reads none of it"
        yield finding(document, (outer,), "misplaced-key", problem, "move what is in it to the top level")
        return
    yield from _block(document, "", document.value, readers)
    for name in ("optimizer", "scheduler"):
        yield from lint_parameters(document, name, key_list()["parameters"][name], readers)


def wrapper(value: Mapping[str, Any]) -> str | None:
    """The only key of a file, where the whole configuration stands below it."""
    if len(value) != 1:
        return None
    ((key, inner),) = value.items()
    known_keys = key_list()["blocks"][""]["keys"]
    if key in known_keys or not isinstance(inner, Mapping):
        return None
    return key if _TELLING & set(inner) else None


def _block(
    document: Document, name: str, value: Mapping[str, Any], readers: frozenset[str]
) -> Iterator[Finding]:
    block = key_list()["blocks"][name]
    prefix = tuple(name.split(".")) if name else ()
    for key, item in value.items():
        path = (*prefix, key)
        entry = block["keys"].get(key)
        dotted = ".".join(path)
        if entry is None:
            if name in ("optimizer", "scheduler") and (
                (not value.get("type") and nearest(key, block["keys"]) != "type")
                or is_parameter(value, name, key)
            ):
                continue  # one cause: the whole block is ignored, or the key stands beside params
            if block["unknown"] != "any" and key not in key_list()["removed"].get(name or "top_level", ()):
                found = _unknown(document, path, name, block, value)
                yield replace(found, is_ignored=block["unknown"] != "refused")
            continue
        if item == "auto" and entry["kind"] != "text":
            continue  # the rule auto-not-filled knows who fills what
        if entry["kind"] == "block" or dotted in key_list()["blocks"]:
            yield from _nested(document, path, item, readers)
        else:
            refused = block["unknown"] == "refused"
            yield from lint_value(document, path, entry, item, refused=refused, readers=readers)


def _nested(document: Document, path: Path, value: object, readers: frozenset[str]) -> Iterator[Finding]:
    dotted = ".".join(str(part) for part in path)
    if isinstance(value, dict):
        if dotted in key_list()["blocks"]:
            yield from _block(document, dotted, value, readers)
        return
    if dotted == "zero_optimization" and isinstance(value, bool):
        return  # the rule zero-as-boolean speaks of it
    nullable = dotted in ("bf16", "aio") or dotted.startswith("zero_optimization.")
    if value is None and nullable:
        return
    problem = f"{path[-1]} must be an object, not {quoted(value)}: DeepSpeed fails on it"
    yield finding(document, path, "wrong-kind", problem, f'write "{path[-1]}": {{…}}, or leave it out')


_AT_THE_TOP: Mapping[str, tuple[tuple[str, ...], str, str]] = {
    **dict.fromkeys(
        ("mixed_precision", "precision", "dtype", "torch_dtype"),
        (("bf16", "fp16", "torch_autocast"), "the model trains in fp32", 'write "bf16": {"enabled": true}'),
    ),
    **dict.fromkeys(
        ("zero_stage", "zero", "zero1", "zero2", "zero3"),
        (("zero_optimization",), "stage 0 runs", 'write "zero_optimization": {"stage": …}'),
    ),
}
"""Keys of other tools: the blocks that say it here, what runs without them, and the fix."""


def _unknown(
    document: Document, path: Path, block_name: str, block: Mapping[str, Any], siblings: Mapping[str, Any]
) -> Finding:
    key = str(path[-1])
    block_label = block_name or "the top level"
    refused = block["unknown"] == "refused"
    where = f"{'in' if block_name else 'at'} {block_label}"
    problem = f"DeepSpeed ignores {key!r}: it reads no such key {where}"
    if refused:
        problem = f"DeepSpeed refuses the file: {block_label} has no key {key!r}"
    if not may_search():
        severity: Severity = "error" if refused else "warning"
        return finding(document, path, "unknown-key", problem, "remove it, or correct it", severity=severity)
    if key.startswith(_NOTES_TO_SELF) and not refused:
        return finding(
            document, path, "unknown-key", problem, "keep it as a note, or remove it", severity="note"
        )
    special = _AT_THE_TOP.get(key) if not block_name else None
    if special is not None:
        blocks, what_runs, fix = special
        deciding = next((block for block in blocks if block in siblings), None)
        if deciding is not None:
            problem = f"DeepSpeed ignores {key!r}: what {deciding} says is what runs"
            return finding(document, path, "unknown-key", problem, "remove it", severity="warning")
        problem = f"DeepSpeed ignores {key!r}: {what_runs}"
        return finding(document, path, "unknown-key", problem, fix, suggests=blocks[0])
    owners = [name for name in homes_in(version(), key) if name != block_name]
    if owners:
        there, fix = value_at(document, owners[0], key), fix_elsewhere(document, owners[0], key)
        if there is not None:
            # ignored, or the same: what runs stays as it is
            edit = Edit(
                kind="remove", key=".".join(map(str, path)), safe=not refused or there == siblings[key]
            )
            return finding(
                document, path, "misplaced-key", problem, fix,
                severity="error" if refused else "warning", edits=() if "." in key else (edit,),
            )  # fmt: skip
        if refused or key == "stage":
            return finding(document, path, "misplaced-key", problem, fix, suggests=key)
        return finding(
            document, path, "misplaced-key", f"{problem}, and runs as if it were not there",
            fix, severity="warning", suggests=key,
        )  # fmt: skip
    guess = nearest(key, block["keys"]) or synonym(key, block["keys"])
    is_mistyped = (
        guess is not None and distance(fold(key), fold(guess)) <= _MOST_TYPOS
    )  # no other word for it
    severity = "error" if refused or is_mistyped else "warning"
    if guess is not None and guess not in siblings:
        edits = _rename(document, path, block, siblings[key], guess)
        fix = f"did you mean {guess!r}?"
        return finding(
            document, path, "unknown-key", problem, fix, severity=severity, edits=edits, suggests=guess
        )
    if guess is not None:
        fix = f"remove it; {guess!r} is given as well"
        return finding(document, path, "unknown-key", problem, fix, severity=severity)
    inside = standing_in(key, block["keys"])
    fix = f"did you mean {inside!r}?" if inside else "remove it, or correct the name"
    return finding(document, path, "unknown-key", problem, fix, severity=severity, suggests=inside or key)


def _rename(
    document: Document, path: Path, block: Mapping[str, Any], value: object, guess: str
) -> tuple[Edit, ...]:
    """The edit that gives a key its right name.

    Safe only where DeepSpeed refuses the file as it is (an ignored key would take effect from then on),
    where nothing else can be meant, and where the value fits the right name.
    """
    entry = block["keys"][guess]
    in_place = (*path[:-1], guess)
    is_block = entry["kind"] == "block" or ".".join(str(part) for part in in_place) in key_list()["blocks"]
    fits = (
        isinstance(value, dict)
        if is_block
        else value == "auto" or can_stand(lint_value(document, in_place, entry, value, refused=True))
    )
    if not fits or any("." in str(part) for part in path):
        return ()  # a dot in a name would be read as a level
    safe = block["unknown"] == "refused" and leaves_no_doubt(str(path[-1]), guess, block["keys"])
    return (Edit(kind="rename", key=".".join(map(str, path)), value=guess, safe=safe),)
