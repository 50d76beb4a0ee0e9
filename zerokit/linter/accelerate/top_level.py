"""Lint an accelerate YAML.

Accelerate refuses unknown keys at the top level and checks neither nested keys nor values
(accelerate/commands/config/config_args.py); most of what is found here fails late, or never.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from zerokit.linter.accelerate.deepspeed_block import fix_beside_file, lint_deepspeed_block
from zerokit.linter.accelerate.fsdp import lint_fsdp
from zerokit.linter.accelerate.keys import (
    CONFIG,
    LAUNCH,
    fits,
    key_list,
)
from zerokit.linter.accelerate.parallelism import lint_parallelism
from zerokit.linter.accelerate.processes import lint_processes, number_of_processes
from zerokit.linter.finding import Finding, Row, broken, meant, one_for_each_cause, one_of, read_past
from zerokit.rules.types import ACCELERATE_VERSION, Edit, Severity
from zerokit.strictload import Document, Location, Path
from zerokit.suggest import leaves_no_doubt, nearest, synonym

_NOT_A_MAPPING = Row(
    "accelerate-not-a-mapping", "", "is not a mapping of keys", "write key: value",
)  # fmt: skip
_UNKNOWN_KEY = Row(
    "accelerate-unknown-key", "", "Accelerate refuses the file: it has no key {key!r}", "{fix}", CONFIG,
)  # fmt: skip
_OF_TYPES = (
    Row(
        "accelerate-distributed-type", "distributed_type",
        "distributed_type is {kind!r}: accelerate launch takes it for none, and starts one process",
        "write one of the names, such as DEEPSPEED", LAUNCH,
        # NO without quotes is a boolean that launches as NO does
        broken=lambda of: "distributed_type" in of and of["distributed_type"] is not False
        and not isinstance(of["distributed_type"], str),
    ),
    Row(
        "accelerate-distributed-type", "distributed_type",
        "distributed_type is missing: Accelerate refuses the file", "add distributed_type: DEEPSPEED", CONFIG,
        broken=lambda of: "distributed_type" not in of, missing="distributed_type",
    ),
    Row(
        "accelerate-distributed-type", "distributed_type",
        "{kind!r} is no distributed type: Accelerate refuses the file", "{fix}", CONFIG,
        broken=lambda of: isinstance(of.get("distributed_type"), str) and not _is_known(of)
        and {"fix": one_of(of["distributed_type"], key_list()["distributed_types"])},
    ),
    Row(
        "accelerate-deepspeed-unused", "deepspeed_config",
        "distributed_type is {kind}: the deepspeed_config block is ignored and DeepSpeed does not run",
        "set distributed_type: DEEPSPEED", LAUNCH, "warning",
        lambda of: isinstance(of.get("distributed_type"), str) and _is_known(of)
        and of["distributed_type"] != "DEEPSPEED" and of.get("deepspeed_config"),
    ),
    Row(
        "accelerate-fsdp-unused", "fsdp_config",
        "distributed_type is DEEPSPEED: the fsdp_config block is ignored", "remove one of the two", LAUNCH,
        "warning", lambda of: of.get("distributed_type") == "DEEPSPEED" and of.get("fsdp_config"),
    ),
)  # fmt: skip
_FLAG_AS_TEXT = Row(
    "accelerate-flag-as-text", "{key}", "{key} is {value!r}: accelerate launch {effect}",
    "write true or false without quotes", LAUNCH,
)  # fmt: skip
_ENVIRONMENT = Row(
    "accelerate-environment", "compute_environment",
    "compute_environment is {environment!r}: Accelerate takes the file for SageMaker's, and refuses it",
    "write LOCAL_MACHINE", CONFIG,
    broken=lambda of: of.get("compute_environment", "LOCAL_MACHINE") not in ("LOCAL_MACHINE", _SAGEMAKER),
)  # fmt: skip
_OF_PRECISION = (
    Row(
        "accelerate-precision-unquoted", "mixed_precision",
        "mixed_precision: no without quotes is a boolean in YAML: accelerate launch fails on it",
        "write 'no' in quotes", LAUNCH,
        broken=lambda of: of.get("mixed_precision") is False
        and {"edits": (Edit(kind="set", key="mixed_precision", value="no"),)},
    ),
    Row(
        "accelerate-precision", "mixed_precision",
        "mixed_precision is {precision!r}: accelerate launch refuses it",
        "use 'no', fp16, bf16 or fp8", f"Accelerate {ACCELERATE_VERSION}, utils/launch.py",
        broken=lambda of: of.get("mixed_precision") is not None and of["mixed_precision"] is not False
        and str(of["mixed_precision"]).lower() not in key_list()["mixed_precisions"],
    ),
)  # fmt: skip


def _is_known(of: Mapping[str, Any]) -> bool:
    is_sagemakers = of.get("compute_environment") == _SAGEMAKER
    return is_sagemakers or of["distributed_type"] in key_list()["distributed_types"]


def named_config(document: Document) -> str | None:
    """The DeepSpeed JSON that an accelerate YAML names."""
    block = document.value.get("deepspeed_config") if isinstance(document.value, dict) else None
    name = block.get("deepspeed_config_file") if isinstance(block, dict) else None
    return name if isinstance(name, str) and name else None


def lint_accelerate(
    document: Document,
    world_size: int | None = None,
    config: Document | None = None,
    model_code: str | None = None,
) -> list[Finding]:
    """Every finding about an accelerate YAML.

    Args:
        config: the DeepSpeed JSON that it names, where that was read.
        model_code: the source that defines the model's classes.
    """
    if not isinstance(document.value, dict):
        return [_NOT_A_MAPPING.at(document)]
    findings = [
        read_past(document, problem, "warning" if problem.rule == "duplicate-key" else "error")
        for problem in document.problems
        if problem.rule != "yaml-number-as-text" or _is_read(document, problem.location)
    ]
    findings += _top_level(document, config)
    findings += lint_processes(document, world_size)
    precision = document.value.get("mixed_precision")
    findings += broken(_OF_PRECISION, document, document.value, precision=precision)
    if document.value.get("distributed_type") == "DEEPSPEED":
        findings += lint_deepspeed_block(document, config)
    else:
        findings += lint_fsdp(document, model_code)
    findings += lint_parallelism(document, number_of_processes(document))
    return one_for_each_cause(findings)


def _is_read(document: Document, location: Location) -> bool:
    """Whether a key stands there that takes a number, which Accelerate does not read out of text itself."""
    lists = key_list()
    read: list[Path] = [(key,) for key in lists["cluster"]]
    read += [("deepspeed_config", key) for key in lists["deepspeed_config"] if key != "gradient_clipping"]
    return any(document.values.get(path) == location for path in read)


def _top_level(document: Document, config: Document | None) -> Iterator[Finding]:
    environment = document.value.get("compute_environment")
    yield from _unknown_keys(document, environment == _SAGEMAKER, config)
    yield from broken([_ENVIRONMENT], document, document.value, environment=environment)
    # accelerate asks whether they are true, as Python does; a mapping it takes apart
    for key in _FLAGS:
        value = document.value.get(key)
        if value is None or isinstance(value, bool):
            continue
        fails = key == "use_cpu" and isinstance(value, dict)
        effect = "fails on it" if fails else f"takes it for {str(bool(value)).lower()}"
        severity: Severity = "error" if fails else "warning"
        yield _FLAG_AS_TEXT.at(document, severity=severity, key=key, value=value, effect=effect)
    kind = document.value.get("distributed_type")
    yield from broken(_OF_TYPES, document, document.value, kind=kind)


def _unknown_keys(document: Document, sagemaker: bool, config: Document | None) -> Iterator[Finding]:
    value, lists = document.value, key_list()
    known_keys = {*lists["sagemaker" if sagemaker else "cluster"], *lists["legacy"]}
    for key in value:
        if key in known_keys:
            continue
        guess = nearest(str(key), known_keys) or synonym(str(key), dict.fromkeys(known_keys))
        plugin_key = str(key) if key in lists["deepspeed_config"] else guess
        beside_file = fix_beside_file(document, plugin_key, value[key], config)
        block = next((one for one in ("deepspeed_config", "parallelism_config") if key in lists[one]), None)
        edits: tuple[Edit, ...] = ()
        if beside_file is not None:
            fix = beside_file
        elif block is not None:
            fix = _moved(value, key, block)
        else:
            fix = meant(guess, value) if guess else "remove it"
            if guess and guess not in value and fits(guess, value[key]):
                safe = leaves_no_doubt(str(key), guess, known_keys)
                edits = (Edit(kind="rename", key=str(key), value=guess, safe=safe),)
        yield _UNKNOWN_KEY.at(document, (key,), edits=edits, suggests=guess or str(key), key=key, fix=fix)


def _moved(value: Mapping[str, Any], key: str, block: str) -> str:
    below = value.get(block)
    is_there = isinstance(below, dict) and key in below
    return f"remove it; {block} has it" if is_there else f"move it below {block}"


_FLAGS = ("use_cpu", "debug", "same_network", "enable_cpu_affinity")
_SAGEMAKER = "AMAZON_SAGEMAKER"
