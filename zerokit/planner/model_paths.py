"""A model that is named by its folder or its config.json."""

from __future__ import annotations

from pathlib import Path

from zerokit.errors import InputError

MODEL_CONFIG = "config.json"
_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".gguf")


def config_file(model: str) -> Path | None:
    """The configuration that ``model`` is, or holds; None: it is no path that exists, nor looks like one.

    Raises:
        InputError: there is something else, or a JSON file is named that does not exist.
    """
    path = Path(model)
    if path.is_dir() and not (path := path / MODEL_CONFIG).is_file():
        raise InputError(f"⟨model⟩ {model}: the folder has no {MODEL_CONFIG}")
    if not path.is_file():
        if model.endswith(".json"):
            raise InputError(f"⟨model⟩ {model}: no such file")
        return None
    if path.suffix == ".py":
        raise InputError(f"⟨model⟩ {model}: a script is no model: zerokit plan … -- {model}")
    if path.suffix in _WEIGHTS:
        raise InputError(f"⟨model⟩ {model}: a file of weights; name its folder, {path.parent}")
    return path
