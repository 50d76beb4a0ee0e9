"""A Hugging Face cache with one small model in it."""

from __future__ import annotations

import json
from pathlib import Path

_CONFIG = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 512, "hidden_size": 64,
           "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
           "num_key_value_heads": 2}  # fmt: skip
_COMMIT = "0123456789abcdef0123456789abcdef01234567"


def put(hub: Path, name: str) -> Path:
    """Lay the model into a cache as ``hf download`` does; the path of its config.json."""
    folder = hub / f"models--{name.replace('/', '--')}"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text(_COMMIT)
    path = folder / "snapshots" / _COMMIT / "config.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(_CONFIG))
    return path
