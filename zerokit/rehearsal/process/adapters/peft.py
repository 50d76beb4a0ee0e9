"""peft: adapters whose weights are not there, as a base model's need not be.

Only the file is made up: what it would hold goes through peft's own loader. A file that is there is read.
"""

from __future__ import annotations

import functools
import os
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from zerokit.rehearsal.process import factories
from zerokit.rehearsal.process.context import Context

_CONFIGURATION = "adapter_config.json"
_FILES = ("adapter_model.safetensors", "adapter_model.bin")


def _lacks_weights(path: Any) -> bool:
    """Whether a folder holds an adapter's configuration and no weights."""
    folder = Path(os.fspath(path))
    return (folder / _CONFIGURATION).is_file() and not any((folder / name).exists() for name in _FILES)


def loading(context: Context, module: ModuleType) -> None:
    """``PeftModel.from_pretrained`` and ``load_adapter`` (``peft.peft_model``)."""
    cls = module.PeftModel
    load_adapter, read = cls.load_adapter, module.load_peft_weights
    under_way: list[tuple[Any, str]] = []

    @functools.wraps(load_adapter)
    def load(self: Any, model_id: Any, adapter_name: str = "default", *args: Any, **kwargs: Any) -> Any:
        under_way.append((self, adapter_name))
        try:
            return load_adapter(self, model_id, adapter_name, *args, **kwargs)
        finally:
            under_way.pop()

    @functools.wraps(read)
    def weights(model_id: Any, device: Any = None, **options: Any) -> Any:
        folder = os.path.join(model_id, options.get("subfolder") or "")  # noqa: PTH118
        if not under_way or not _lacks_weights(folder):
            return read(model_id, device, **options)
        context.machine.stub("weights of an adapter")
        model, adapter_name = under_way[-1]
        saved = module.get_peft_model_state_dict(
            model, state_dict=_state_dict(context, model), adapter_name=adapter_name
        )
        place = device or module.infer_device()
        return {name: torch.empty_like(value, device=place) for name, value in saved.items()}

    cls.load_adapter = load
    vars(module)["load_peft_weights"] = weights


def _state_dict(context: Context, model: Any) -> dict[str, torch.Tensor]:
    """Of the whole model, on the host; what ZeRO-3 has divided as it would be saved."""
    with context.machine.fake:
        return {
            name: factories.empty(tuple(getattr(value, "ds_shape", value.shape)), dtype=value.dtype)
            for name, value in model.state_dict(keep_vars=True).items()
        }
