"""The ``fsdp_config`` block of an accelerate YAML."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from zerokit.domain.fsdp2_config import fsdp_version, is_true
from zerokit.linter.accelerate.keys import (
    IGNORED_KEY,
    LAUNCH,
    POLICIES,
    PREFETCHES,
    STATE_DICTS,
    STRATEGIES,
    TRUTH_WORDS,
    key_list,
)
from zerokit.linter.finding import Finding, Row, meant
from zerokit.rules.types import ACCELERATE_VERSION, Edit
from zerokit.strictload import Document
from zerokit.suggest import nearest
from zerokit.values import frozen_dataclass

_PLUGIN = f"Accelerate {ACCELERATE_VERSION}, utils/dataclasses.py, FullyShardedDataParallelPlugin"
_PREFIX = "fsdp_"
_TRUTH = ("TRUE", "FALSE")
_BOOLEAN = tuple(map(str.upper, TRUTH_WORDS))
_CHOICES: Mapping[str, tuple[str, ...]] = {
    "fsdp_auto_wrap_policy": POLICIES,
    "fsdp_backward_prefetch": (*PREFETCHES, "1", "2"),
    "fsdp_version": ("1", "2"),
    **dict.fromkeys((
        "fsdp_activation_checkpointing", "fsdp_activation_checkpointing_offload", "fsdp_offload_params",
    ), _BOOLEAN),
}  # fmt: skip
_OF_VERSION: Mapping[int, Mapping[str, tuple[str, ...]]] = {
    1: {
        "fsdp_sharding_strategy": (*STRATEGIES, "_HYBRID_SHARD_ZERO2", *"12345"),
        "fsdp_state_dict_type": (*STATE_DICTS, *"123"),
        "fsdp_use_orig_params": _BOOLEAN, "fsdp_forward_prefetch": _BOOLEAN,
        "fsdp_sync_module_states": _BOOLEAN,
    },
    2: {
        "fsdp_reshard_after_forward": _BOOLEAN,
        "fsdp_state_dict_type": ("FULL_STATE_DICT", "SHARDED_STATE_DICT", "1", "3"),
    },
}  # fmt: skip
_MAY_BE_NULL = ("fsdp_auto_wrap_policy", "fsdp_backward_prefetch", "fsdp_state_dict_type")
"""Not passed on where they are null; of the others the launcher passes on the word None (launch.py:309)."""


_PATH = ("fsdp_config",)


_FSDP_BLOCK = Row(
    "accelerate-fsdp-block", "", "fsdp_config is {block!r}: it must be a mapping",
    "write fsdp_… keys below it", LAUNCH,
)  # fmt: skip
_FSDP_LOADING = Row(
    "accelerate-fsdp-loading", "",
    "fsdp_cpu_ram_efficient_loading needs fsdp_sync_module_states: accelerate launch refuses it",
    "set fsdp_sync_module_states: true, or fsdp_cpu_ram_efficient_loading: false", LAUNCH,
)  # fmt: skip
_FSDP_NO_WRAP_CHECKPOINTING = Row(
    "accelerate-fsdp-no-wrap-checkpointing", "fsdp_config.fsdp_auto_wrap_policy",
    "no layer is wrapped, and fsdp_activation_checkpointing asks which: Accelerate fails with "
    "'NoneType' object is not callable",
    "set fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP",
    f"Accelerate {ACCELERATE_VERSION}, utils/fsdp_utils.py:718",
)  # fmt: skip
_FSDP_NO_WRAP = Row(
    "accelerate-fsdp-no-wrap", "fsdp_config.fsdp_auto_wrap_policy",
    "no layer is wrapped: FSDP version {version} gathers all layers as one, so that every GPU "
    "holds all weights and gradients from forward to the end of backward",
    "set fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP",
    f"Accelerate {ACCELERATE_VERSION}, utils/fsdp_utils.py:852", "warning",
)  # fmt: skip
_FSDP_OFFLOAD_ALONE = Row(
    "accelerate-fsdp-offload-alone", "",
    "fsdp_activation_checkpointing_offload needs fsdp_activation_checkpointing and fsdp_version 2: "
    "Accelerate refuses it", "turn both on, or remove it", _PLUGIN,
)  # fmt: skip
_FSDP_CLASS = Row(
    "accelerate-fsdp-class", "", "the model has no class {name!r}: Accelerate does not find it, and stops",
    "{fix}", f"{_PLUGIN}.set_auto_wrap_policy",
)  # fmt: skip
_FSDP_VERSION_KEY = Row(
    "accelerate-fsdp-version-key", "",
    "{key} is {value!r}, and FSDP version {version} does not read it: {runs}", "{fix}", _PLUGIN,
)  # fmt: skip
_FSDP_VALUE = Row(
    "accelerate-fsdp-value", "", "{key} is {value!r}: Accelerate fails on it", "use {choices}", _PLUGIN,
)  # fmt: skip


@frozen_dataclass
class _ReadBy:
    """A key that one version of FSDP reads.

    Attributes:
        same: values with which the other version does no other thing.
        runs: what the other version does.
        fix: what to write for it, where there is something.
    """

    version: int
    same: tuple[str, ...]
    runs: str
    fix: str = "remove it"


_ONLY_IN: Mapping[str, _ReadBy] = {
    "sharding_strategy": _ReadBy(
        version=1, same=("FULL_SHARD", "1"),
        runs="fsdp_reshard_after_forward and the parallelism_config decide",
        fix="for SHARD_GRAD_OP set fsdp_reshard_after_forward: false, for HYBRID_SHARD "
        "parallelism_config_dp_replicate_size and dp_shard_size, and remove it",
    ),
    "backward_prefetch": _ReadBy(version=1, same=("BACKWARD_PRE", "NO_PREFETCH", "1"), runs="it prefetches"),
    "forward_prefetch": _ReadBy(version=1, same=("FALSE",), runs="nothing more is prefetched in forward"),
    "use_orig_params": _ReadBy(version=1, same=("TRUE",), runs="parameters stay as they are"),
    "sync_module_states": _ReadBy(version=1, same=("TRUE", "FALSE"), runs="nothing is broadcast"),
    "reshard_after_forward": _ReadBy(
        version=2, same=("FULL_SHARD", "TRUE", "1"),
        runs="fsdp_sharding_strategy decides, by default FULL_SHARD",
        fix="set fsdp_sharding_strategy to it, or fsdp_version: 2",
    ),
}  # fmt: skip
"""By FullyShardedDataParallelPlugin.__post_init__ and what the launcher exports (utils/launch.py:305)."""


def lint_fsdp(document: Document, model_code: str | None = None) -> Iterator[Finding]:
    """Findings about the block; ``model_code``: the source that defines the model's classes."""
    block = document.value.get("fsdp_config")
    runs = document.value.get("distributed_type") == "FSDP"
    if block in (None, {}) and not runs:
        return
    block = {} if block is None else block
    if not isinstance(block, dict):
        yield _FSDP_BLOCK.at(document, _PATH, block=block)
        return
    known_keys = key_list()["fsdp_config"]
    version, said = fsdp_version(block), {str(key).removeprefix(_PREFIX): one for key, one in block.items()}
    by_size = str(said.get("auto_wrap_policy")).upper() == "SIZE_BASED_WRAP"
    for key, value in block.items():
        # the launcher puts fsdp_ before a key that lacks it
        name = str(key)
        full = name if name.startswith("fsdp") else f"{_PREFIX}{name}"
        read_by = _ONLY_IN.get(full.removeprefix(_PREFIX))
        choices = _OF_VERSION[version].get(full) or _CHOICES.get(full)
        if full not in known_keys:
            longer = [known for known in known_keys if known.startswith(f"{full}_")]
            guess = nearest(full, known_keys) or (longer[0] if len(longer) == 1 else None)
            edit = Edit(kind="rename", key=f"fsdp_config.{name}", value=guess, safe=False)
            fix = meant(guess, block) if guess else "remove it"
            yield IGNORED_KEY.at(
                document, (*_PATH, name), edits=(edit,) if guess else (), key=name, block=_PATH[0], fix=fix
            )
        elif choices and not (_is_choice(value, choices) or (value is None and full in _MAY_BE_NULL)):
            yield _value(document, name, value, choices)
        elif read_by is not None and read_by.version != version:
            harmless = value is None or str(value).upper() in read_by.same
            yield _FSDP_VERSION_KEY.at(
                document, (*_PATH, name), severity="note" if harmless else "warning", key=name,
                value=value, version=version, runs=read_by.runs,
                fix="remove it" if harmless else read_by.fix,
            )  # fmt: skip
        elif full == "fsdp_min_num_params" and by_size and not str(value).strip().isdecimal():
            yield _value(document, name, value, ("a whole number",))
    if not runs:
        return
    # both are on unless the file turns them off, and the launcher asks for Python's truth of the first
    if said.get("cpu_ram_efficient_loading", True) and not said.get("sync_module_states", True):
        yield _FSDP_LOADING.at(document, (*_PATH, "fsdp_sync_module_states"))
    yield from _wrapping(document, said, version, model_code)


def _wrapping(
    document: Document, said: Mapping[str, Any], version: int, model_code: str | None
) -> Iterator[Finding]:
    """What becomes of the model's layers: a unit is gathered whole, so that nothing is saved with one."""
    checkpointing = is_true(said.get("activation_checkpointing"))
    if is_true(said.get("activation_checkpointing_offload")) and not (checkpointing and version == 2):
        yield _FSDP_OFFLOAD_ALONE.at(document, (*_PATH, "fsdp_activation_checkpointing_offload"))
    if str(said.get("auto_wrap_policy") or "NO_WRAP").upper() == "NO_WRAP":
        row = _FSDP_NO_WRAP_CHECKPOINTING if checkpointing and version == 2 else _FSDP_NO_WRAP
        yield row.at(document, version=version, missing="fsdp_auto_wrap_policy")
    named = said.get("transformer_layer_cls_to_wrap")
    known = set(re.findall(r"\w+", model_code or ""))
    for name in str(named).split(",") if named and model_code else ():
        if name not in known:  # a name beside its comma keeps the space: Accelerate finds none such
            split = own_layers(model_code or "")
            own = f"use {split.strip()}" if split else "remove it: Accelerate then takes the model's own"
            path = (*_PATH, "fsdp_transformer_layer_cls_to_wrap")
            yield _FSDP_CLASS.at(document, path, name=name, fix=own)


def own_layers(model_code: str) -> str | None:
    """The classes that a model's code says are gathered whole, as they stand there."""
    found = re.search(r"_no_split_modules = \[([^\]]+)\]", model_code)
    return found[1] if found else None


def _is_choice(value: object, choices: tuple[str, ...]) -> bool:
    return str(value).upper() in choices and (not isinstance(value, bool) or "TRUE" in choices)


def _value(document: Document, key: str, value: object, choices: tuple[str, ...]) -> Finding:
    shown = _TRUTH if choices is _BOOLEAN else [choice for choice in choices if choice[0] != "_"]
    words = " or ".join(map(str.lower, shown)) if shown is _TRUTH else ", ".join(shown)
    return _FSDP_VALUE.at(document, (*_PATH, key), key=key, value=value, choices=words)
