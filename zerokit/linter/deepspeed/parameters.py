"""Parameters of the optimizer and scheduler: DeepSpeed passes them on as keyword arguments, unchecked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from zerokit.domain.settings import value_at
from zerokit.linter.deepspeed.tables import homes_in, key_list, version
from zerokit.linter.deepspeed.values import (
    can_stand,
    finding,
    fix_elsewhere,
    lint_value,
    number_as_text,
    quoted,
    wrong,
)
from zerokit.linter.finding import Finding
from zerokit.rules.known import TORCH_OPTIMIZERS
from zerokit.rules.types import Edit, Severity
from zerokit.strictload import Document
from zerokit.suggest import leaves_no_doubt, nearest, synonym

_NUMBERS = frozenset(
    {
        "lr", "eps", "weight_decay", "momentum", "dampening", "muon_lr", "adam_lr", "warmup_min_ratio",
        "cos_min_ratio", "lr_decay", "initial_accumulator_value", "max_coeff", "min_coeff",
        "lr_range_test_step_rate", "cycle_min_mom", "cycle_max_mom", "decay_mom_rate", "decay_lr_rate",
    }
)  # fmt: skip
_WHOLE = frozenset(
    {
        "warmup_num_steps", "total_num_steps", "cycle_first_step_size", "cycle_second_step_size",
        "lr_range_test_step_size", "decay_step_size", "cycle_first_stair_count", "cycle_second_stair_count",
        "last_batch_iteration",
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
_INTEGERS = frozenset({"warmup_num_steps", "lr_range_test_step_size"})
_AT_LEAST_ONE = frozenset({"cycle_first_step_size", "cycle_second_step_size", "lr_range_test_step_size"})
_WARMUP_TYPES = ("log", "linear")


def lint_parameters(
    document: Document, name: str, known_parameters: Mapping[str, Any], readers: frozenset[str]
) -> Iterator[Finding]:
    """Findings about the block ``name`` (optimizer or scheduler)."""
    block = document.value.get(name)
    if not isinstance(block, dict):
        return
    kind, parameters = block.get("type"), block.get("params")
    severity: Severity
    if not kind and (name == "optimizer" or kind is None):
        has_content = bool(block.get("params")) or bool(set(block) - {"type", "params"})
        at = (name,) if "type" not in block else (name, "type")
        problem = (
            f"{name} has no type: DeepSpeed ignores the whole block, and runs what the script brings or "
        )
        severity = "error" if has_content else "warning"
        yield finding(
            document, at, "block-without-type", f"{problem}nothing", 'add "type", or remove the block',
            severity=severity, missing="type",
        )  # fmt: skip
        return
    if parameters is not None and not isinstance(parameters, dict):
        problem = "params must be an object: the engine fails to start"
        yield finding(document, (name, "params"), "wrong-kind", problem, "write {…}")
        return
    if not isinstance(kind, str):
        return
    accepted = _accepted(document.value, kind, known_parameters, name)
    yield from _beside_params(document, name, block, accepted or ())
    for key, value in (parameters or {}).items():
        if accepted is not None and key not in accepted and key != "max_grad_norm":
            yield _unknown(document, name, key, kind, accepted, parameters or {})
        elif key == "amsgrad" and value is True and kind.lower() in ("adam", "adamw"):
            built = built_for(document.value)
            problem = f"the {_CLASSES[built]} {kind} of DeepSpeed has no amsgrad: the engine fails to start"
            fix = 'remove it, or add "torch_adam": true'
            if built != "torch":
                yield finding(document, ("optimizer", "params", key), "unknown-parameter", problem, fix)
        elif key in _INTEGERS and isinstance(value, float) and value == int(value):
            # `1e3` where an integer is asked for: hjson makes it one, `json.load` a float
            path, severity = (name, "params", key), "warning" if "raw" in readers else "error"
            problem = f"{key} is {quoted(value)}: a float to the Trainer and Accelerate; the engine fails to "
            edit = Edit(kind="set", key=".".join(path), value=int(value))
            yield finding(
                document, path, "wrong-kind", f"{problem}start", f"write {int(value)}", severity=severity,
                edits=(edit,),
            )  # fmt: skip
        elif value != "auto":
            yield from _value(document, (name, "params", key), value)


def entry_of(key: str) -> Mapping[str, Any]:
    """The kind of value that a parameter takes, as the tables of keys say it."""
    if key in _WHOLE:
        return {"kind": "integer", "minimum": 1} if key in _AT_LEAST_ONE else {"kind": "integer"}
    if key in _NUMBERS_OR_LISTS:
        return {"kind": "any"}
    if key in _NUMBERS:
        return (
            {"kind": "number", "minimum": 0} if key in ("lr", "eps", "weight_decay") else {"kind": "number"}
        )
    return {"kind": "boolean"} if key in _BOOLEANS else {"kind": "any"}


def is_parameter(block: Mapping[str, Any], name: str, key: str) -> bool:
    """Whether ``key``, written in the block itself, is a parameter of its type."""
    kind = block.get("type")
    if not isinstance(kind, str):
        return False
    accepted = key_list()["parameters"][name].get(kind.lower() if name == "optimizer" else kind, ())
    return (
        any(key in names for names in accepted.values()) if isinstance(accepted, Mapping) else key in accepted
    )


def _accepted(
    config: Mapping[str, Any], kind: str, known_parameters: Mapping[str, Any], name: str
) -> Sequence[str] | None:
    """Parameters of the class that DeepSpeed builds for this file; ``None`` where it is not known."""
    if name == "scheduler":
        accepted: Sequence[str] | None = known_parameters.get(kind)
        return accepted
    classes = known_parameters.get(kind.lower())
    if classes is None or (kind.lower() in TORCH_OPTIMIZERS and TORCH_OPTIMIZERS[kind.lower()] != kind):
        return None  # the rule unknown-optimizer speaks of the name
    chosen: Sequence[str] = classes.get(built_for(config), classes["gpu"])
    return chosen


def built_for(config: Mapping[str, Any]) -> str:
    """Which class of an optimizer DeepSpeed builds: ``gpu``, ``cpu`` (offloaded) or ``torch``.
    ``DeepSpeedEngine.get_optimizer_configuration``, runtime/engine.py."""
    parameters = value_at(config, "optimizer.params")
    if isinstance(parameters, Mapping) and parameters.get("torch_adam"):
        return "torch"
    device = value_at(config, "zero_optimization.offload_optimizer.device")
    return "cpu" if device in ("cpu", "nvme") else "gpu"


def _beside_params(
    document: Document, name: str, block: Mapping[str, Any], accepted: Sequence[str]
) -> Iterator[Finding]:
    """Parameters that were written beside ``params``, where nobody reads them."""
    params = block.get("params")
    for key in block:
        if key not in accepted or key in ("type", "params"):
            continue
        is_in_both = isinstance(params, Mapping) and key in params
        default = f"; {block['type']} runs with its default" if not is_in_both else ""
        decides = key == "lr" and not is_in_both
        problem = f"{key} stands beside params: DeepSpeed ignores it{default}"
        fix = "move it into params" if not is_in_both else "remove it; params has one"
        severity: Severity = "error" if decides else "warning"
        yield finding(document, (name, key), "parameter-beside-params", problem, fix, severity=severity)


def _unknown(
    document: Document,
    name: str,
    key: str,
    kind: str,
    accepted: Sequence[str],
    parameters: Mapping[str, object],
) -> Finding:
    path = (name, "params", key)
    guess = nearest(key, accepted) or synonym(key, dict.fromkeys(accepted))
    fix = f"did you mean {guess!r}?" if guess else f"use {', '.join(accepted)}"
    homes = () if guess else homes_in(version(), key)
    if homes and "params" not in homes[0]:
        fix = fix_elsewhere(document, homes[0], key)
    hint = _other_class(document, name, key, kind)
    if hint:
        fix = hint
    if kind.lower() == "muon":  # the engine picks those it knows (runtime/engine.py, _muon_param_groups)
        problem = f"{kind} takes no parameter {key!r}: DeepSpeed ignores it"
        return finding(
            document, path, "unknown-parameter", problem, fix, severity="warning", suggests=guess or ""
        )
    edits: tuple[Edit, ...] = ()
    if guess and guess not in parameters and _fits(document, name, guess, parameters[key]):
        safe = leaves_no_doubt(key, guess, accepted)
        edits = (Edit(kind="rename", key=".".join(path), value=guess, safe=safe),)
    problem = f"{kind} takes no parameter {key!r}: the engine fails to start"
    return finding(document, path, "unknown-parameter", problem, fix, edits=edits, suggests=guess or "")


_CLASSES = {"gpu": "fused", "cpu": "CPU", "torch": "torch's"}


def _other_class(document: Document, name: str, key: str, kind: str) -> str | None:
    """The fix for a parameter that another class of the same optimizer takes."""
    classes = key_list()["parameters"][name].get(kind.lower()) if name == "optimizer" else None
    if not isinstance(classes, Mapping):
        return None
    built = built_for(document.value)
    if built != "torch" and key in classes.get("torch", ()):
        return f"remove it, or add \"torch_adam\": true: torch's {kind} takes it, DeepSpeed's does not"
    if any(key in names for names in classes.values()):
        return f"remove it: {_CLASSES[built]} {kind} has no such parameter"
    return None


def _fits(document: Document, name: str, key: str, value: object) -> bool:
    """Whether a value would be accepted under ``key``."""
    if key in _BOOLEANS:
        return isinstance(value, bool)
    return value == "auto" or can_stand(_value(document, (name, "params", key), value))


def _value(document: Document, path: tuple[str, str, str], value: object) -> Iterator[Finding]:
    key = path[-1]
    if key in _NUMBERS or key in _WHOLE or key in _NUMBERS_OR_LISTS:
        yield from _number(document, path, value)
    elif key in _BOOLEANS:
        yield from lint_value(document, path, {"kind": "boolean"}, value, refused=False)
    elif key == "betas" and not (
        isinstance(value, list)
        and len(value) == 2
        and all(isinstance(b, int | float) and not isinstance(b, bool) and 0 <= b < 1 for b in value)
    ):
        problem = f"betas is {quoted(value)}: the optimizer fails at its first step"
        yield finding(document, path, "wrong-kind", problem, "use two numbers from 0 up to, not with, 1")
    elif key == "warmup_type" and value not in _WARMUP_TYPES:
        problem = f"warmup_type is {quoted(value)}: DeepSpeed only warns, and warms up logarithmically"
        yield finding(document, path, "wrong-value", problem, "use log or linear", severity="warning")


def _number(document: Document, path: tuple[str, str, str], value: object) -> Iterator[Finding]:
    key = path[-1]
    entry = {"kind": "integer" if key in _WHOLE else "number"}
    if key in _NUMBERS_OR_LISTS and isinstance(value, list):
        if not all(_is_number(item) for item in value):
            yield wrong(document, path, entry, value)
    elif isinstance(value, str):
        # what is built holds the text: a number there is another configuration
        yield from number_as_text(document, path, entry, value, refused=False, safe=False)
    elif value is None and path[0] == "scheduler":
        return  # as if absent
    elif not _is_number(value) or (key in _WHOLE and value != int(value)):  # type: ignore[call-overload]
        yield wrong(document, path, entry, value)
    elif key in _AT_LEAST_ONE and isinstance(value, int | float) and value < 1:
        problem = f"{key} is {quoted(value)}: the engine fails to start"
        yield finding(document, path, "out-of-range", problem, "use a whole number of at least 1")
    elif isinstance(value, int | float) and value < 0 and key not in _WHOLE:
        effect = "torch refuses it, DeepSpeed's own optimizers run away from the minimum"
        problem = f"{key} is {quoted(value)}: {effect}"
        yield finding(document, path, "out-of-range", problem, "use 0 or more")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
