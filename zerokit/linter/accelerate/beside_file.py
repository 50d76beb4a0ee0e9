"""Keys of an accelerate YAML that Accelerate refuses beside the DeepSpeed JSON that the YAML names."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from zerokit.linter.accelerate.keys import PLUGIN
from zerokit.linter.finding import Finding, finding_at
from zerokit.strictload import Document, Path

REFUSED_BESIDE_CONFIG_FILE: Mapping[str, Path] = {
    "gradient_accumulation_steps": ("gradient_accumulation_steps",),
    "gradient_clipping": ("gradient_clipping",),
    "zero_stage": ("zero_optimization", "stage"),
    "offload_optimizer_device": ("zero_optimization", "offload_optimizer", "device"),
    "offload_param_device": ("zero_optimization", "offload_param", "device"),
    "offload_param_nvme_path": ("zero_optimization", "offload_param", "nvme_path"),
    "offload_optimizer_nvme_path": ("zero_optimization", "offload_optimizer", "nvme_path"),
    "zero3_save_16bit_model": ("zero_optimization", "stage3_gather_16bit_weights_on_model_save"),
}
"""Key of the block -> that of the DeepSpeed JSON. ``DeepSpeedPlugin._deepspeed_config_checks``;
``mixed_precision`` too, at the top level."""
_LONGEST = 40
_PRECISIONS = ("bf16", "fp16")
_NONE = ("no", "false")  # without quotes, no is a boolean in YAML
_GENERAL_PRECISION_FIX = "remove it here, and enable bf16 or fp16 in the DeepSpeed JSON"


def lint_beside_file(
    document: Document, block: Mapping[str, Any], config: Document | None
) -> Iterator[Finding]:
    """A finding for each such key; its fix follows what the JSON has, where ``config`` was read."""
    for key in REFUSED_BESIDE_CONFIG_FILE:
        if key in block:
            yield _refused(document, ("deepspeed_config", key), _fix_of(key, block[key], config))
    precision = document.value.get("mixed_precision")
    if precision is not None:
        yield _refused(document, ("mixed_precision",), _fix_of("mixed_precision", precision, config))


def fix_beside_file(
    document: Document, key: str | None, value: object, config: Document | None
) -> str | None:
    """The fix of what was probably meant as ``key``, where that is refused beside the JSON that is named.

    None: Accelerate would take ``key``.
    """
    block = document.value.get("deepspeed_config")
    is_named = isinstance(block, dict) and block.get("deepspeed_config_file") is not None
    if document.value.get("distributed_type") != "DEEPSPEED" or not is_named:
        return None
    if key is None or key not in (*REFUSED_BESIDE_CONFIG_FILE, "mixed_precision"):
        return None
    return f"{_fix_of(key, value, config)} (Accelerate refuses {key}, too, beside deepspeed_config_file)"


def _fix_of(key: str, value: object, config: Document | None) -> str:
    """What to do with a key that is refused; it follows what the JSON has, where that was read."""
    file = config.value if config is not None and isinstance(config.value, dict) else None
    is_precision = key == "mixed_precision"
    if file is None or config is None:
        return _GENERAL_PRECISION_FIX if is_precision else "remove it here, and set it in the DeepSpeed JSON"
    if is_precision:
        return _precision_fix(str(value).lower(), file, config.path)
    path = REFUSED_BESIDE_CONFIG_FILE[key]
    return _fix(value, _value_at(file, path), path, config.path)


def _refused(document: Document, path: Path, fix: str) -> Finding:
    return finding_at(
        document,
        path,
        "accelerate-key-beside-config-file",
        f"Accelerate refuses {path[-1]} beside deepspeed_config_file",
        fix,
        source=PLUGIN,
    )


def _fix(here: object, there: object, path: Path, file: str) -> str:
    key = ".".join(str(part) for part in path)
    if there is None and here in ("none", False):
        return f"remove it here; {file} has no {key}, which means the same"
    if there in (None, "auto"):
        return f"remove it here, and set {key} to {_json(here)} in {file}"
    if here == there:
        return f"remove it here; {file} already has {key} {_json(there)}"
    return f"remove it here; {file} has {key} {_json(there)}: write the value that you mean there"


def _precision_fix(here: str, config: Mapping[str, Any], file: str) -> str:
    enabled = {name: _value_at(config, (name, "enabled")) for name in _PRECISIONS}
    there = next((name for name, value in enabled.items() if value is True), None)
    if here == there:
        return f"remove it here; {file} already has {there}"
    if there is not None:
        return f"remove it here; {file} has {there}: enable the one that you mean there"
    if here in _NONE:
        return f"remove it here; {file} enables neither bf16 nor fp16, which means the same"
    if here not in _PRECISIONS:
        return _GENERAL_PRECISION_FIX
    return f"remove it here, and set {here}.enabled to true in {file}"


def _value_at(config: object, path: Path) -> object:
    for key in path:
        config = config.get(key) if isinstance(config, Mapping) else None
    return config


def _json(value: object) -> str:
    text = json.dumps(value, default=str, ensure_ascii=False)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"
