"""JSON Schema of a DeepSpeed JSON and of an accelerate YAML, from the tables that ``check`` reads.

For editors: completion, and the mistakes that need no second look at the file (a wrong type, an unknown
key, a value outside its list, a number out of range). What depends on more than one key, on who reads the
file or on the number of ranks is left to ``zerokit check``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from zerokit.linter.accelerate.keys import TOP_LEVEL
from zerokit.linter.accelerate.keys import key_list as accelerate_list
from zerokit.linter.deepspeed.parameters import entry_of
from zerokit.linter.deepspeed.tables import key_list
from zerokit.rules.types import ACCELERATE_VERSION

Schema = dict[str, Any]
_DIALECT = "http://json-schema.org/draft-07/schema#"
_LIMITS = {
    "minimum": "minimum", "maximum": "maximum", "above": "exclusiveMinimum", "below": "exclusiveMaximum",
}  # fmt: skip
_TYPES = {"integer": "integer", "number": "number", "boolean": "boolean", "text": "string", "block": "object"}
_BATCH = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
_NOTES: Schema = {"^(_?comment|//|\\$schema)": {}}


def deepspeed_schema() -> Schema:
    """The schema of a DeepSpeed JSON."""
    table = key_list()
    schema = _block("", table["blocks"])
    for name in _BATCH:
        schema["properties"][name] = _with_auto({"type": "integer", "minimum": 1}, null=True)
    for name in ("optimizer", "scheduler"):
        schema["properties"][name] = _chosen(name, table["parameters"][name])
    return {
        "$schema": _DIALECT,
        "title": f"DeepSpeed {table['deepspeed']} configuration",
        **schema,
        "patternProperties": _NOTES,
    }


def _block(path: str, blocks: Mapping[str, Any]) -> Schema:
    block = blocks[path]
    refused = block["unknown"] == "refused"
    properties: Schema = {}
    for key, entry in block["keys"].items():
        inner = f"{path}.{key}" if path else key
        if inner in blocks:
            nullable = inner in ("bf16", "aio") or inner.startswith("zero_optimization.")
            nested = _block(inner, blocks)
            properties[key] = {"anyOf": [nested, {"type": "null"}]} if nullable else nested
        else:
            properties[key] = _value(entry, refused=refused)
    schema: Schema = {"type": "object", "properties": properties}
    if block["unknown"] != "any":
        schema["additionalProperties"] = False
        if not refused:
            schema["patternProperties"] = _NOTES
    return schema


def _value(entry: Mapping[str, Any], *, refused: bool) -> Schema:
    kind = entry["kind"]
    if kind == "any":
        return {}
    if kind == "choice":
        schema: Schema = {
            "enum": _variants(entry["choices"]) if entry.get("fold") else list(entry["choices"])
        }
    else:
        schema = {"type": _TYPES[kind]}
    for limit, word in _LIMITS.items():
        if limit in entry:
            schema[word] = entry[limit]
    if "not" in entry:
        schema["not"] = {"const": entry["not"]}
    if kind == "boolean" and not refused:
        schema = {"anyOf": [schema, {"enum": [0, 1]}]}  # they do what they say
    if kind == "block":
        return schema
    return _with_auto(schema, null=entry.get("null", not refused))


def _with_auto(schema: Schema, *, null: bool) -> Schema:
    also: list[Schema] = [{"const": "auto"}]
    if null:
        also.append({"type": "null"})
    return {"anyOf": [schema, *also]}


def _variants(words: list[str]) -> list[str]:
    return sorted({form for word in words for form in (word, word.lower(), word.upper(), word.capitalize())})


def _chosen(name: str, parameters: Mapping[str, Any]) -> Schema:
    cases: list[Schema] = []
    for kind, accepted in sorted(parameters.items()):
        names = sorted(
            {key for names in accepted.values() for key in names} if isinstance(accepted, dict) else accepted
        )
        types = _spellings(kind) if name == "optimizer" else [kind]
        params = {key: _value(entry_of(key), refused=False) for key in names}
        allowed = {"type": ["object", "null"], "properties": params, "additionalProperties": False}
        condition = {"properties": {"type": {"enum": types}}, "required": ["type"]}
        cases.append({"if": condition, "then": {"properties": {"params": allowed}}})
    properties: Schema = {"type": {"type": "string", "minLength": 1}, "params": {"type": ["object", "null"]}}
    if name == "optimizer":
        properties["legacy_fusion"] = {"type": "boolean"}
    return {
        "type": "object",
        "properties": properties,
        "additionalProperties": False,
        "patternProperties": _NOTES,
        "allOf": cases,
    }


def _spellings(kind: str) -> list[str]:
    spelling = {"adamw": "AdamW", "sgd": "SGD", "onebitadam": "OneBitAdam"}.get(kind, kind.capitalize())
    return sorted({kind, spelling, kind.upper()})


def accelerate_schema() -> Schema:
    """The schema of an accelerate YAML."""
    lists = accelerate_list()
    keys = {*lists["cluster"], *lists["legacy"], *lists["sagemaker"]}
    properties: Schema = {key: _top_level(key) for key in sorted(keys)}
    properties["distributed_type"] = {"enum": [*lists["distributed_types"], False]}
    properties["compute_environment"] = {"enum": ["LOCAL_MACHINE", "AMAZON_SAGEMAKER"]}
    properties["mixed_precision"] = {"enum": [*_variants(lists["mixed_precisions"]), None]}
    properties["rdzv_backend"] = {"enum": ["static", "c10d", "etcd", "etcd-v2", None]}
    properties["deepspeed_config"] = _open_block(_plugin(lists))
    properties["fsdp_config"] = _open_block(
        {key: {} for name in lists["fsdp_config"] for key in (name, name.removeprefix("fsdp_"))}
    )
    properties["parallelism_config"] = _open_block({key: {} for key in lists["parallelism_config"]})
    return {
        "$schema": _DIALECT,
        "title": f"Accelerate {ACCELERATE_VERSION} configuration",
        "type": "object",
        "properties": properties,
        "required": ["distributed_type"],
        "additionalProperties": False,
    }


def _open_block(properties: Schema) -> Schema:
    return {"type": ["object", "null"], "properties": properties, "additionalProperties": False}


def _top_level(key: str) -> Schema:
    entry = TOP_LEVEL.get(key)
    if entry is None or key == "downcast_bf16":
        return {}
    if entry["kind"] == "block":
        return {"type": ["object", "null"]}
    if entry["kind"] == "list":
        return {"type": ["array", "null"]}
    limits = {word: entry[limit] for limit, word in _LIMITS.items() if limit in entry}
    return {"anyOf": [{"type": _TYPES[entry["kind"]], **limits}, {"type": "null"}]}


def _plugin(lists: Mapping[str, Any]) -> Schema:
    device: Schema = {"enum": [*_variants(["none", "cpu", "nvme"]), None]}
    number: Schema = {"type": "string", "pattern": "^[-+0-9.eE]+$"}
    properties: Schema = {key: {} for key in lists["deepspeed_config"]}
    properties |= {
        "zero_stage": {"enum": [0, 1, 2, 3, None]},
        "zero3_init_flag": {"type": ["boolean", "null"]},
        "zero3_save_16bit_model": {"type": ["boolean", "null"]},
        "gradient_accumulation_steps": _with_auto({"type": "integer", "minimum": 1}, null=True),
        "gradient_clipping": {"anyOf": [{"type": ["number", "null"]}, number, {"const": "auto"}]},
        "offload_optimizer_device": device,
        "offload_param_device": device,
        "deepspeed_multinode_launcher": {"enum": [*lists["multinode_launchers"], None]},
    }
    for key in ("deepspeed_config_file", "deepspeed_hostfile"):
        properties[key] = {"type": ["string", "null"]}
    return properties


SCHEMAS = {"deepspeed": deepspeed_schema, "accelerate": accelerate_schema}
"""By the word that ``--schema`` takes."""
