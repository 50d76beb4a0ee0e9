"""The source of a model's classes, as the installed Transformers has it; nothing is imported."""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any


def model_code(config: Mapping[str, Any]) -> str | None:
    """The files that define the model of a Hugging Face configuration, and the models inside of it. ``None``
    where Transformers is not installed, or has not this model: its code may be its repository's."""
    found = importlib.util.find_spec("transformers")
    if found is None or not found.submodule_search_locations or config.get("auto_map"):
        return None
    folder = Path(found.submodule_search_locations[0]) / "models"
    texts = []
    for model_type in _types(config):
        name = model_type.replace("-", "_")
        with contextlib.suppress(OSError):
            # a part of a model has its type's name with a suffix: qwen2_5_vl_text
            path = folder / name if (folder / name).is_dir() else folder / name.rpartition("_")[0]
            texts += [file.read_text(encoding="utf-8") for file in path.glob("modeling_*.py")]
    return "\n".join(texts) or None


def _types(config: Mapping[str, Any]) -> Iterator[str]:
    if str(config.get("model_type", "")).replace("-", "_").isidentifier():
        yield config["model_type"]
    for value in config.values():
        if isinstance(value, Mapping):
            yield from _types(value)
