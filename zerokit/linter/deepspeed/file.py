"""Lint one DeepSpeed JSON: grammar, keys, then the rules of :mod:`zerokit.rules`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from zerokit.domain.deepspeed_settings import DEEPSPEED_VERSION, DeepSpeedSettings, from_config
from zerokit.linter.deepspeed.keylist import key_list, lint_keys
from zerokit.linter.deepspeed.values import LARGEST_INTEGER
from zerokit.linter.finding import Finding
from zerokit.rules import Setup, violations
from zerokit.rules.types import Edit, Rule, Violation
from zerokit.strictload import Document


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """Where the files are to run; ``None`` where that was not said."""

    world_size: int | None = None
    gpus_per_node: int | None = None
    key_value_heads: int | None = None
    precisions: frozenset[str] | None = None
    gpu_name: str | None = None


def lint_deepspeed(document: Document, context: Context) -> list[Finding]:
    """Every finding about a DeepSpeed JSON that was read with ``strict=False``."""
    findings = [
        Finding(
            path=document.path,
            place=problem.place,
            rule=problem.rule,
            severity="warning" if problem.rule.startswith("json-") else "error",
            message=problem.message,
            fix=problem.fix,
        )
        for problem in document.problems
    ]
    findings += lint_keys(document)
    if isinstance(document.value, dict):
        findings += _rules(document, context)
        findings += _hardware(document, context)
    return findings


_PARAMETERS = ("optimizer.params", "scheduler.params")


def settings_of(raw: Mapping[str, Any]) -> DeepSpeedSettings:
    """The settings as far as they can be read; a value of the wrong kind counts as absent.

    The wrong kinds are findings of their own; the rules should still see the rest.
    """
    return from_config(_readable(raw, ""))


def _readable(raw: Mapping[str, Any], block: str) -> dict[str, Any]:
    """The values that are of the kind DeepSpeed wants there."""
    blocks = key_list()["blocks"]
    kept: dict[str, Any] = {}
    for key, value in raw.items():
        path = f"{block}.{key}" if block else key
        entry = blocks.get(block, {}).get("keys", {}).get(key, {"kind": "any"})
        if path in _PARAMETERS and not isinstance(value, Mapping):
            continue
        if isinstance(value, Mapping):
            if path in blocks or entry["kind"] in ("any", "block"):
                kept[key] = _readable(value, path)
        elif value != "auto" and value is not None and _is_kind(value, entry, is_block=path in blocks):
            kept[key] = value
    return kept


def _is_kind(value: object, entry: Mapping[str, Any], *, is_block: bool) -> bool:
    kind = "block" if is_block else entry["kind"]
    if kind in ("integer", "number"):
        if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) > LARGEST_INTEGER:
            return False
        return kind == "number" or value == int(value)
    if kind == "boolean":
        return isinstance(value, bool)
    if kind == "choice":
        return not isinstance(value, bool) and value in entry["choices"]
    if kind == "text":
        return isinstance(value, str)
    return kind != "block"


def degree(raw: Mapping[str, Any]) -> int:
    """Tensor-parallel degree of a file; 1 when absent or not a number."""
    block = raw.get("tensor_parallel")
    size = block.get("autotp_size") if isinstance(block, Mapping) else None
    return size if isinstance(size, int) and not isinstance(size, bool) and size > 1 else 1


def _rules(document: Document, context: Context) -> Iterator[Finding]:
    raw: Mapping[str, Any] = document.value
    sequence_parallel = raw.get("sequence_parallel_size")
    setup = Setup(
        settings=settings_of(raw),
        raw=raw,
        world_size=context.world_size,
        tensor_parallel=degree(raw),
        sequence_parallel=sequence_parallel
        if isinstance(sequence_parallel, int) and sequence_parallel > 1
        else 1,
        gpus_per_node=context.gpus_per_node,
        key_value_heads=context.key_value_heads,
    )
    for violation in violations(setup):
        yield Finding(
            path=document.path,
            place=document.place(tuple(violation.key.split("."))),
            rule=violation.rule.id,
            severity=violation.rule.severity,
            message=violation.message,
            fix=violation.fix,
            source=_source(violation.rule),
            edits=_safe_edits(violation, setup),
        )


def _safe_edits(violation: Violation, setup: Setup) -> tuple[Edit, ...]:
    """A removed feature that was on is not taken out silently: what replaces it is for people to say."""
    if violation.rule.id.startswith("removed-"):
        value = setup.get(violation.key)
        enabled = value.get("enabled") if isinstance(value, Mapping) else value
        if enabled is not False:
            return ()
    return violation.edits


def _source(rule: Rule) -> str:
    return f"{rule.source} ({DEEPSPEED_VERSION})"


def _hardware(document: Document, context: Context) -> Iterator[Finding]:
    if context.precisions is None:
        return
    precision = settings_of(document.value).precision
    if precision not in context.precisions:
        yield Finding(
            path=document.path,
            place=document.place((precision, "enabled")),
            rule="precision-not-in-hardware",
            severity="error",
            message=f"{context.gpu_name} has no {precision} in hardware: training fails or crawls",
            fix=f"use {' or '.join(sorted(context.precisions - {'fp32'})) or 'fp32'}",
        )
