"""transformers: weights whose files were never read.

Only the files are made up. A state dict of fake host tensors goes through transformers' own loader
(``PreTrainedModel._load_pretrained_model``), with its device map, dtypes, ties, quantisation and, under
ZeRO-3, DeepSpeed's gathering, and through its own finalizer.
"""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from zerokit.instrument.phases import in_place_of
from zerokit.rehearsal.process import factories
from zerokit.rehearsal.process.phases import Context

_CHECKPOINT = "/weights-that-are-not-read/model.safetensors"


def questions(context: Context, module: ModuleType) -> None:
    """ "Is this being traced?" — no: it is a run, whose masks are made as on a GPU."""
    for name in ("is_tracing", "is_fake_tensor"):
        if hasattr(module, name):
            setattr(module, name, lambda tensor=None: False)


def loading(context: Context, module: ModuleType) -> None:
    """``from_pretrained`` without weights."""
    _patch_files(module)
    _patch_dtype(module)
    _patch_loader(context, module)
    _patch_depth(context, module)


def _patch_files(module: ModuleType) -> None:
    @in_place_of(module, "_get_resolved_checkpoint_files")
    def resolved(*args: Any, **kwargs: Any) -> Any:
        """The folder's weights, found or not."""
        return [_CHECKPOINT], None


def _patch_depth(context: Context, module: ModuleType) -> None:
    """A model is built from its configuration, with as many layers as are rehearsed."""
    cls, depth = module.PreTrainedModel, context.phases.depth
    real = cls.__init__

    def probed(kind: Any, config: Any, *args: Any, **kwargs: Any) -> Any:
        """The model with all layers, and no memory."""
        from transformers.initialization import no_init_weights

        with depth.probing(), torch.device("meta"), no_init_weights():
            return kind(config, *args, **kwargs)

    @in_place_of(cls, "__init__")
    def init(self: Any, config: Any, *args: Any, **kwargs: Any) -> None:
        from transformers.integrations.deepspeed import deepspeed_config

        if depth.layers is not None and not depth.probes:
            is_fsdp2 = "ACCELERATE_USE_FSDP" in os.environ and os.environ.get("FSDP_VERSION") == "2"
            depth.is_replayed |= deepspeed_config() is not None or is_fsdp2
            depth.cut(config, lambda whole: probed(type(self), whole, *args, **kwargs))
        real(self, config, *args, **kwargs)


def _patch_dtype(module: ModuleType) -> None:
    real = module._get_dtype

    @in_place_of(module, "_get_dtype")
    def get_dtype(dtype: Any, files: Any, config: Any, *args: Any, **kwargs: Any) -> Any:
        """``dtype="auto"``: the configuration's; transformers would look into the file next."""
        if dtype == "auto" or (dtype is None and getattr(config, "dtype", None) is None):
            dtype = getattr(config, "dtype", None) or torch.float32
        elif dtype is None:
            dtype = config.dtype
        return real(dtype, None, config, *args, **kwargs)


def _patch_loader(context: Context, module: ModuleType) -> None:
    cls = module.PreTrainedModel
    real = cls._load_pretrained_model

    def load(
        model: Any, state_dict: Any, checkpoint_files: Any, load_config: Any, expected_keys: Any = None
    ) -> Any:
        is_read = state_dict is None
        if is_read:
            context.machine.stub("weights of from_pretrained")
            state_dict = _state_dict(context, model, load_config, expected_keys)
            of_adapter = expected_keys is not None  # ``load_adapter`` names an adapter's weights
            as_saved = None if of_adapter else _as_saved(context, model, state_dict, load_config)
            if as_saved is None:  # the keys are the model's own: nothing to rename or merge
                load_config = dataclasses.replace(load_config, weight_mapping=[])
            state_dict = as_saved or state_dict
        loaded = real(model, state_dict, checkpoint_files, load_config, expected_keys)
        for tensor in (*model.parameters(), *model.buffers()) if is_read else ():
            if tensor.device.type == "cpu" and isinstance(tensor, FakeTensor):
                context.machine.read_file(tensor)
        return loaded

    cls._load_pretrained_model = staticmethod(load)


def _as_saved(
    context: Context, model: Any, state_dict: dict[str, torch.Tensor], load_config: Any
) -> dict[str, torch.Tensor] | None:
    """What the file would hold where its tensors are not the model's: experts one by one, which the loader
    merges on the GPU, and splits there again for saving. None: as the model has them."""
    mapping = getattr(load_config, "weight_mapping", None)
    if not mapping or load_config.is_quantized:
        return None
    try:
        from transformers.core_model_loading import revert_weight_conversion

        return dict(revert_weight_conversion(model, state_dict))
    except Exception as error:
        context.machine.warn(f"weights are loaded without merging: {type(error).__name__}: {error}")
        return None


def _state_dict(
    context: Context, model: Any, load_config: Any, only: list[str] | None
) -> dict[str, torch.Tensor]:
    """What the files would hold; ``only``: an adapter's weights, which are not quantised."""
    tied = set(getattr(model, "all_tied_weights_keys", None) or {})
    quantized_dtype = load_config.dtype if load_config.is_quantized and only is None else None
    names = None if only is None else frozenset(only)
    machine = context.machine
    with machine.fake:
        return {
            name: machine.map_file(
                factories.empty(
                    tuple(getattr(value, "ds_shape", value.shape)), dtype=quantized_dtype or value.dtype
                )
            )
            for name, value in model.state_dict(keep_vars=True).items()
            if name not in tied and (names is None or name in names)
        }


_CONFIGURATION = "adapter_config.json"
_FILES = ("adapter_model.safetensors", "adapter_model.bin")


def _lacks_weights(path: Any) -> bool:
    """Whether a folder holds an adapter's configuration and no weights."""
    folder = Path(os.fspath(path))
    return (folder / _CONFIGURATION).is_file() and not any((folder / name).exists() for name in _FILES)


def adapter_loading(context: Context, module: ModuleType) -> None:
    """``PeftModel.from_pretrained`` and ``load_adapter`` (``peft.peft_model``).

    peft: adapters whose weights are not there, as a base model's need not be.

    Only the file is made up: what it would hold goes through peft's own loader. A file that is there is read.
    """
    cls = module.PeftModel
    load_adapter, read = cls.load_adapter, module.load_peft_weights
    under_way: list[tuple[Any, str]] = []

    @in_place_of(cls, "load_adapter")
    def load(self: Any, model_id: Any, adapter_name: str = "default", *args: Any, **kwargs: Any) -> Any:
        under_way.append((self, adapter_name))
        try:
            return load_adapter(self, model_id, adapter_name, *args, **kwargs)
        finally:
            under_way.pop()

    @in_place_of(module, "load_peft_weights")
    def weights(model_id: Any, device: Any = None, **options: Any) -> Any:
        folder = os.path.join(model_id, options.get("subfolder") or "")  # noqa: PTH118
        if not under_way or not _lacks_weights(folder):
            return read(model_id, device, **options)
        context.machine.stub("weights of an adapter")
        model, adapter_name = under_way[-1]
        saved = module.get_peft_model_state_dict(
            model, state_dict=_adapter_state_dict(context, model), adapter_name=adapter_name
        )
        place = device or module.infer_device()
        return {name: torch.empty_like(value, device=place) for name, value in saved.items()}


def _adapter_state_dict(context: Context, model: Any) -> dict[str, torch.Tensor]:
    """State of the whole model's adapters, on the host; what ZeRO-3 has divided as it would be saved."""
    with context.machine.fake:
        return {
            name: factories.empty(tuple(getattr(value, "ds_shape", value.shape)), dtype=value.dtype)
            for name, value in model.state_dict(keep_vars=True).items()
        }
