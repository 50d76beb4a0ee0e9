"""Parameters of the optimizer and scheduler: DeepSpeed passes them on as keyword arguments, unchecked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from zerokit.linter.deepspeed.values import can_stand, finding, number_as_text, shown, wrong
from zerokit.linter.finding import Finding
from zerokit.rules.types import Edit
from zerokit.strictload import Document
from zerokit.suggest import leaves_no_doubt, nearest, synonym

_NUMBERS = frozenset({"lr", "eps", "weight_decay", "momentum", "dampening", "muon_lr", "adam_lr"})
_WHOLE = frozenset(
    {
        "warmup_num_steps", "total_num_steps", "cycle_first_step_size", "cycle_second_step_size",
        "lr_range_test_step_size",
    }
)  # fmt: skip
_NUMBERS_OR_LISTS = frozenset(
    {"warmup_min_lr", "warmup_max_lr", "cycle_min_lr", "cycle_max_lr", "lr_range_test_min_lr"}
)
_BOOLEANS = frozenset(
    {
        "amsgrad", "adam_w_mode", "adamw_mode", "bias_correction", "capturable", "differentiable", "foreach",
        "fused", "maximize", "set_grad_none", "torch_adam", "fp32_optimizer_states", "nesterov",
        "eps_inside_sqrt", "lr_range_test_staircase", "cycle_momentum",
    }
)  # fmt: skip
_WARMUP_TYPES = ("log", "linear")


def lint_parameters(
    document: Document, name: str, known_parameters: Mapping[str, Sequence[str]]
) -> Iterator[Finding]:
    """Findings about the block ``name`` (optimizer or scheduler)."""
    block = document.value.get(name)
    if not isinstance(block, dict):
        return
    kind, parameters = block.get("type"), block.get("params")
    if kind is None:
        yield finding(
            document,
            (name,) if "type" not in block else (name, "type"),
            "block-without-type",
            f"{name} has no type: DeepSpeed ignores the whole block",
            'add "type", or remove the block',
            severity="warning",
        )
    if parameters is not None and not isinstance(parameters, dict):
        what = "params must be an object: the engine fails to start"
        yield finding(document, (name, "params"), "wrong-kind", what, "write {…}")
        return
    if not isinstance(kind, str) or not parameters:
        return
    known = known_parameters.get(kind.lower() if name == "optimizer" else kind)
    for key, value in parameters.items():
        if known is not None and key not in known and key != "max_grad_norm":
            yield _unknown(document, name, key, kind, known, parameters)
        elif value != "auto":
            yield from _value(document, (name, "params", key), value)


def _unknown(
    document: Document,
    name: str,
    key: str,
    kind: str,
    known: Sequence[str],
    parameters: Mapping[str, object],
) -> Finding:
    path = (name, "params", key)
    guess = nearest(key, known) or synonym(key, dict.fromkeys(known))
    fix = f"did you mean {guess!r}?" if guess else f"use {', '.join(known)}"
    if kind.lower() == "muon":  # the engine picks those it knows (runtime/engine.py, _muon_param_groups)
        what = f"{kind} takes no parameter {key!r}: DeepSpeed ignores it"
        return finding(document, path, "unknown-parameter", what, fix, severity="warning")
    edits: tuple[Edit, ...] = ()
    if guess and guess not in parameters and _fits(document, name, guess, parameters[key]):
        safe = leaves_no_doubt(key, guess, known)
        edits = (Edit(kind="rename", key=".".join(path), value=guess, safe=safe),)
    what = f"{kind} takes no parameter {key!r}: the engine fails to start"
    return finding(document, path, "unknown-parameter", what, fix, edits=edits)


def _fits(document: Document, name: str, key: str, value: object) -> bool:
    """Whether a value would be accepted under ``key``."""
    if key in _BOOLEANS:
        return isinstance(value, bool)
    return value == "auto" or can_stand(_value(document, (name, "params", key), value))


def _value(document: Document, path: tuple[str, str, str], value: object) -> Iterator[Finding]:
    key = path[-1]
    if key in _NUMBERS or key in _WHOLE or key in _NUMBERS_OR_LISTS:
        yield from _number(document, path, value)
    elif key == "betas" and not _are_betas(value):
        what = f"betas is {shown(value)}: the optimizer fails at its first step"
        yield finding(document, path, "wrong-kind", what, "use two numbers from 0 up to, not with, 1")
    elif key == "warmup_type" and value not in _WARMUP_TYPES:
        what = f"warmup_type is {shown(value)}: DeepSpeed only warns, and warms up logarithmically"
        yield finding(document, path, "wrong-value", what, "use log or linear", severity="warning")


def _number(document: Document, path: tuple[str, str, str], value: object) -> Iterator[Finding]:
    key = path[-1]
    entry = {"kind": "integer" if key in _WHOLE else "number"}
    if key in _NUMBERS_OR_LISTS and isinstance(value, list):
        if not all(_is_number(item) for item in value):
            yield wrong(document, path, entry, value)
    elif isinstance(value, str):
        yield from number_as_text(document, path, entry, value, refused=False)
    elif value is None and path[0] == "scheduler":
        return  # as if absent
    elif not _is_number(value) or (key in _WHOLE and not isinstance(value, int)):
        # 100.0 steps are refused as well: isinstance(…, int)
        yield wrong(document, path, entry, value)
    elif isinstance(value, int | float) and value < 0 and key not in _WHOLE:
        what = (
            f"{key} is {shown(value)}: torch refuses it, DeepSpeed's own optimizers run away from the minimum"
        )
        yield finding(document, path, "out-of-range", what, "use 0 or more")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _are_betas(value: object) -> bool:
    return (
        isinstance(value, list)
        and len(value) == 2
        and all(isinstance(b, int | float) and not isinstance(b, bool) and 0 <= b < 1 for b in value)
    )
