"""The ``fsdp_config`` block of an accelerate YAML."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from zerokit.linter.accelerate.keys import LAUNCH, key_list, short
from zerokit.linter.finding import Finding, finding_at
from zerokit.rules.types import ACCELERATE_VERSION, Edit
from zerokit.strictload import Document
from zerokit.suggest import nearest

_PLUGIN = f"Accelerate {ACCELERATE_VERSION}, utils/dataclasses.py, FullyShardedDataParallelPlugin"
_PREFIX = "fsdp_"
_CHOICES: Mapping[str, tuple[str, ...]] = {
    "fsdp_sharding_strategy": (
        "FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD", "HYBRID_SHARD_ZERO2",
        "_HYBRID_SHARD_ZERO2", "1", "2", "3", "4", "5",
    ),
    "fsdp_auto_wrap_policy": ("TRANSFORMER_BASED_WRAP", "SIZE_BASED_WRAP", "NO_WRAP"),
    "fsdp_backward_prefetch": ("BACKWARD_PRE", "BACKWARD_POST", "NO_PREFETCH", "1", "2"),
    "fsdp_state_dict_type": ("FULL_STATE_DICT", "LOCAL_STATE_DICT", "SHARDED_STATE_DICT", "1", "2", "3"),
    "fsdp_version": ("1", "2"),
}  # fmt: skip


def lint_fsdp(document: Document) -> Iterator[Finding]:
    """Findings about the block."""
    block = document.value.get("fsdp_config")
    if block in (None, {}):
        return
    path = ("fsdp_config",)
    if not isinstance(block, dict):
        yield finding_at(
            document, path, "accelerate-fsdp-block", f"fsdp_config is {short(block)}: it must be a mapping",
            "write fsdp_… keys below it", source=LAUNCH,
        )  # fmt: skip
        return
    known_keys = key_list()["fsdp_config"]
    for key, value in block.items():
        # the launcher puts fsdp_ before a key that lacks it
        full = str(key) if str(key).startswith("fsdp") else f"{_PREFIX}{key}"
        if full not in known_keys:
            yield _unknown(document, str(key), full, known_keys)
        elif full in _CHOICES and value is not None:
            yield from _value(document, str(key), full, value)
    loading = _get(block, "cpu_ram_efficient_loading") is True
    if loading and _get(block, "sync_module_states") is False:
        yield finding_at(
            document, ("fsdp_config", "fsdp_cpu_ram_efficient_loading"), "accelerate-fsdp-loading",
            "fsdp_cpu_ram_efficient_loading needs fsdp_sync_module_states: accelerate launch refuses it",
            "set fsdp_sync_module_states: true", source=LAUNCH,
        )  # fmt: skip


def _get(block: Mapping[str, Any], name: str) -> Any:
    return block.get(f"{_PREFIX}{name}", block.get(name))


def _unknown(document: Document, key: str, full: str, known_keys: list[str]) -> Finding:
    longer = [name for name in known_keys if name.startswith(f"{full}_")]
    guess = nearest(full, known_keys) or (longer[0] if len(longer) == 1 else None)
    edits = (Edit(kind="rename", key=f"fsdp_config.{key}", value=guess, safe=False),) if guess else ()
    return finding_at(
        document, ("fsdp_config", key), "accelerate-ignored-key",
        f"Accelerate ignores {short(key)} in fsdp_config",
        f"did you mean {guess!r}?" if guess else "remove it", severity="warning", source=LAUNCH, edits=edits,
    )  # fmt: skip


def _value(document: Document, key: str, full: str, value: object) -> Iterator[Finding]:
    choices = _CHOICES[full]
    if str(value).upper() in choices and not isinstance(value, bool):
        return
    yield finding_at(
        document, ("fsdp_config", key), "accelerate-fsdp-value",
        f"{key} is {short(value)}: Accelerate fails on it",
        f"use {', '.join(choice for choice in choices if not choice.startswith('_'))}", source=_PLUGIN,
    )  # fmt: skip
