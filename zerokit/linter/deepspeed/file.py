"""Lint one DeepSpeed JSON: grammar, keys, then the rules of :mod:`zerokit.rules`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from zerokit.domain.deepspeed_settings import DEEPSPEED_VERSION, DeepSpeedSettings, from_config
from zerokit.domain.settings import value_at
from zerokit.linter.deepspeed.autos import lint_autos, stops_initialize
from zerokit.linter.deepspeed.clipping import lint_accumulation, lint_clipping
from zerokit.linter.deepspeed.keylist import lint_keys, wrapper
from zerokit.linter.deepspeed.readers import readers_of
from zerokit.linter.deepspeed.tables import key_list, minor, version
from zerokit.linter.deepspeed.values import LARGEST_INTEGER
from zerokit.linter.finding import Finding, Row, one_for_each_cause, read_past
from zerokit.rules import FRAMEWORKS, Setup, violations
from zerokit.rules.types import ACCELERATE_VERSION, Edit, Rule, Severity, Violation
from zerokit.strictload import Document
from zerokit.values import frozen_dataclass


@frozen_dataclass
class Context:
    """Where the files are to run; ``None`` where that was not said.

    Attributes:
        model_code: the source that defines the model's classes.
        readers: who may read a DeepSpeed JSON; ``None``: inferred from what lies beside it.
        every_reader_must_do: what is fatal for one of them is an error, rather than for all.
    """

    world_size: int | None = None
    gpus_per_node: int | None = None
    key_value_heads: int | None = None
    model_code: str | None = None
    precisions: frozenset[str] | None = None
    gpu_name: str | None = None
    readers: frozenset[str] | None = None
    every_reader_must_do: bool = False


@frozen_dataclass
class _Where:
    """A context with the readers that were given or inferred."""

    context: Context
    readers: frozenset[str]


def lint_deepspeed(document: Document, context: Context) -> list[Finding]:
    """Every finding about a DeepSpeed JSON that was read with ``strict=False``."""
    readers = context.readers
    if readers is None:
        has_auto = isinstance(document.value, dict) and stops_initialize(document.value)
        readers = readers_of(document.path, has_auto=has_auto)
    reading = _Where(context=context, readers=readers)
    # the key whose value stands there is given, if in a form that cannot be read
    key_at = {at: str(path[-1]) for path, at in document.values.items() if path} if document.problems else {}
    findings = [
        read_past(document, problem, _severity(problem.rule, reading), key_at.get(problem.location, ""))
        for problem in document.problems
    ]
    findings += lint_keys(document, readers)
    if isinstance(document.value, dict) and wrapper(document.value) is None:
        findings += lint_autos(document, readers, every_reader=context.every_reader_must_do)
        findings += _rules(document, reading)
        findings += _hardware(document, context)
        stage = settings_of(document.value).zero.stage
        # below 1 gradients are whole, and PyTorch's call clips
        clipped_by = readers & ({"raw", "accelerate"} if stage else {"accelerate"})
        clipping = document.value.get("gradient_clipping")
        findings += lint_clipping(document, ("gradient_clipping",), clipping, clipped_by)
        steps = "gradient_accumulation_steps"
        if "accelerate" in readers:
            findings += lint_accumulation(document, (steps,), document.value.get(steps))
    # one finding for each cause
    rules = {finding.rule for finding in findings if finding.severity != "note"}
    unread = "activation-checkpointing-not-read" in rules
    causes = [
        finding
        for finding in findings
        if not (finding.rule == "no-zero-optimization" and "auto-not-filled" in rules)
        and not (finding.rule == "train-batch-size-beside-auto" and "batch-contradiction" in rules)
        and not (unread and "in activation_checkpointing" in finding.message)
    ]
    return one_for_each_cause(causes)


_PARAMETERS = ("optimizer.params", "scheduler.params")
_NOT_IN_HARDWARE = Row(
    "precision-not-in-hardware", "", "{gpu} has no {precision} in hardware: training fails or crawls",
    "use {instead}",
)  # fmt: skip


def _severity(rule: str, reading: _Where) -> Severity:
    """Severity of what the parser read past: hjson does so, too, ``json.load`` does not."""
    if rule == "duplicate-key" and reading.readers <= FRAMEWORKS:
        return "warning"  # they hand DeepSpeed what they have parsed
    if not rule.startswith("json-") or reading.readers <= FRAMEWORKS:
        return "error"
    if not reading.readers & FRAMEWORKS:
        return "note"
    return "error" if reading.context.every_reader_must_do else "warning"


def settings_of(raw: Mapping[str, Any]) -> DeepSpeedSettings:
    """The settings as far as they can be read; a value of the wrong kind counts as absent. The wrong kinds
    are findings of their own; the rules should still see the rest."""
    return from_config(_readable(raw, ""))


def _readable(raw: Mapping[str, Any], block: str) -> dict[str, Any]:
    blocks, removed = key_list()["blocks"], key_list()["removed"].get(block, ())
    is_refused = blocks.get(block, {}).get("unknown") == "refused"
    readable: dict[str, Any] = {}
    for key, value in raw.items():
        path = f"{block}.{key}" if block else key
        if is_refused and key not in blocks[block]["keys"] and key not in removed:
            continue
        entry = blocks.get(block, {}).get("keys", {}).get(key, {"kind": "any"})
        if path in _PARAMETERS and not isinstance(value, Mapping):
            continue
        if isinstance(value, Mapping):
            if path in blocks or entry["kind"] in ("any", "block"):
                readable[key] = _readable(value, path)
        elif value != "auto" and value is not None and _is_kind(value, entry, is_block=path in blocks):
            readable[key] = value
    return readable


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
    size = value_at(raw, "tensor_parallel.autotp_size")
    return size if isinstance(size, int) and not isinstance(size, bool) and size > 1 else 1


def _rules(document: Document, reading: _Where) -> Iterator[Finding]:
    context = reading.context
    raw: Mapping[str, Any] = document.value
    size = raw.get("sequence_parallel_size")
    setup = Setup(
        settings=settings_of(raw),
        raw=raw,
        world_size=context.world_size,
        tensor_parallel=degree(raw),
        sequence_parallel=max(1, size) if isinstance(size, int) else 1,
        gpus_per_node=context.gpus_per_node,
        key_value_heads=context.key_value_heads,
        readers=reading.readers,
    )
    for violation in _at_every_stage(setup):
        if not violation.rule.holds_in(minor(version())):
            continue
        severity = _for_readers(violation.rule, reading)
        if severity is None:
            continue
        yield Finding(
            path=document.path,
            location=document.location(tuple(violation.key.split(".")) if violation.key else ()),
            rule=violation.rule.id,
            severity=severity,
            marked=violation.message,
            marked_fix=violation.fix,
            source=_source(violation.rule),
            edits=_safe_edits(violation, setup),
            missing=violation.rule.missing,
        )


def _at_every_stage(setup: Setup) -> list[Violation]:
    """What is broken whatever the stage, where the file does not name one that DeepSpeed knows."""
    zero = setup.get("zero_optimization")
    stage = zero.get("stage") if isinstance(zero, Mapping) else 0
    unread = zero is not None and not isinstance(zero, bool | Mapping)
    if not unread and (
        not isinstance(zero, Mapping) or (stage in (0, 1, 2, 3) and not isinstance(stage, bool))
    ):
        return violations(setup)
    broken = []
    for number in range(4):
        settings = replace(setup.settings, zero=replace(setup.settings.zero, stage=number))
        broken.append({one.rule.id: one for one in violations(replace(setup, settings=settings))})
    return [one for name, one in broken[0].items() if all(name in of_stage for of_stage in broken)]


def _safe_edits(violation: Violation, setup: Setup) -> tuple[Edit, ...]:
    """A removed feature that was on is not taken out silently: what replaces it is for people to say."""
    if violation.rule.id.startswith("removed-"):
        value = setup.get(violation.key)
        enabled = value.get("enabled") if isinstance(value, Mapping) else value
        if enabled is not False:
            return ()
    return violation.edits


def _for_readers(rule: Rule, where: _Where) -> Severity | None:
    """Severity of a broken rule, given who may read the file."""
    if not rule.readers & where.readers:
        return None
    if where.readers <= rule.readers or where.context.every_reader_must_do:
        return rule.severity
    return rule.otherwise


def _source(rule: Rule) -> str:
    package, _, rest = rule.source.partition("/")
    if package.startswith("deepspeed-"):
        return f"DeepSpeed {package.partition('-')[2]}, {rest}"
    if package == "deepspeed":
        return f"DeepSpeed {DEEPSPEED_VERSION}, {rest}"
    return f"Accelerate {ACCELERATE_VERSION}, {rest}"


def _hardware(document: Document, context: Context) -> Iterator[Finding]:
    if context.precisions is None:
        return
    precision = settings_of(document.value).precision
    if precision not in context.precisions:
        instead = " or ".join(sorted(context.precisions - {"fp32"})) or "fp32"
        path = (precision, "enabled")
        yield _NOT_IN_HARDWARE.at(document, path, gpu=context.gpu_name, precision=precision, instead=instead)
