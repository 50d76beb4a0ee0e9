"""A real Hugging Face model from a config, on no device, with its repeated layers cut short.

Remote code is never run: only model types that the installed Transformers knows.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch
from torch import nn

from zerokit.domain.hf_classes import CLASSIFIERS, HEADS, named_head
from zerokit.domain.profile import Parameter, Variant
from zerokit.domain.trainers import UNFUSED_TYPES
from zerokit.errors import InputError, of_import
from zerokit.trace.building import fused_adapters, vision_tower
from zerokit.trace.building.planned_parts import local

_KERNELS_LOGGER = "bitsandbytes.backends.cpu.ops"
"""Warns, while it is imported, of a kernel for the CPU that no trace runs."""


@contextmanager
def _quiet(name: str) -> Iterator[None]:
    """A logger that says nothing meanwhile."""
    logger = logging.getLogger(name)
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before


def add_lora(
    model: nn.Module,
    rank: int,
    targets: tuple[str, ...],
    dtype: torch.dtype | None,
    spared: str | None = None,
    dropout: float = 0.0,
) -> nn.Module:
    """Wrap the model with peft's ``LoraConfig(r=rank, target_modules=targets)``; base weights frozen.

    ``dtype``: what the adapters take, the training dtype where DeepSpeed casts the whole module (bf16 or
    fp16 below stage 3); ``None``: fp32, which peft gives them (``autocast_adapter_dtype``) and DeepSpeed
    leaves them when the model was made under ``zero.Init`` (``_cast_module_mixed_precision``,
    runtime/engine.py:1851, 0.19.8). ``spared``: a pattern of modules that get no adapters.

    Raises:
        InputError: peft is not installed, or finds no module of these names.
    """
    try:
        with _quiet(_KERNELS_LOGGER):
            import peft
    except ImportError as error:
        raise InputError("⟨method⟩ lora needs peft to trace the model: pip install peft") from error
    modules: Any = targets[0] if len(targets) == 1 and targets[0] == "all-linear" else list(targets)
    config = peft.LoraConfig(
        r=rank, target_modules=modules, task_type=None, exclude_modules=spared, lora_dropout=dropout
    )
    try:
        with torch.device("meta"), _quiet(_KERNELS_LOGGER):  # peft imports bitsandbytes here
            wrapped: nn.Module = peft.get_peft_model(model, config)
    except ValueError as error:
        raise InputError(f"⟨lora_targets⟩ {','.join(targets)}: {error}") from error
    # as the class of each task does (PeftModelForCausalLM.forward, peft_model.py:1903, 0.21), which every
    # trainer asks for; that of none goes past LoraModel, whose hooks ZeRO-3 counts
    wrapped.forward = lambda *args, **kwargs: wrapped.base_model(*args, **kwargs)
    return wrapped if dtype is None else wrapped.to(dtype)


_SOME_DROPOUT = 0.05
"""Any above 0 keeps as much."""

KEEP_PER_RUN = 4
"""Layers kept of a run of equal ones: what the first two and the last leave alive at their borders
differs (a loop variable still holds the embedding's output); from the third on it repeats."""

KEPT_ON_THE_WAY = 5
"""Tensors that stay on the GPU until their copies to the host are done (``max_fwd_stash_size`` of TRL's
``OffloadActivations``)."""

AUTO_CLASSES = {name: head.auto_class for name, head in HEADS.items()}


@dataclass(frozen=True, slots=True)
class LayerList:
    """A list of repeated layers: its module path, full length, and the index of each layer kept."""

    path: str
    length: int
    kept_layers: tuple[int, ...]
    stands_for: tuple[int, ...]  # full index -> position among the kept


@dataclass(slots=True)
class BuiltModel:
    """A model on the meta device, cut to a few layers, with the full model's parameters listed."""

    model: nn.Module
    config: Any
    head: str
    parameters: tuple[Parameter, ...]  # in ``model.parameters()`` order
    stacks: tuple[LayerList, ...]
    ties: dict[str, str]  # another name of a parameter -> the name it is listed under
    buffer_bytes: int  # of the full model: causal masks, position tables


def read_config(hf_config: Mapping[str, Any]) -> Any:
    """The Transformers configuration object of a parsed config.json, as data. Raises InputError:
    ``model_type`` missing or not known to the installed Transformers."""
    from transformers import AutoConfig, __version__
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    values = {k: v for k, v in hf_config.items() if k not in ("auto_map", "torch_dtype", "dtype")}
    model_type = values.pop("model_type", None)
    if not isinstance(model_type, str):
        raise InputError("the model's config has no model_type; it must be a Hugging Face config.json")
    if model_type not in CONFIG_MAPPING:
        raise InputError(
            f"model_type {model_type!r} is not known to the installed transformers {__version__}; "
            "update transformers, or give ⟨params⟩ and a family instead (remote code is never run)"
        )
    values.pop("quantization_config", None)
    try:
        return AutoConfig.for_model(model_type, **_with_infinities(values))
    except Exception as error:  # transformers checks values with classes of its own, one for each mistake
        message = " ".join(str(error).split())[:300]
        raise InputError(f"the model's config ({model_type}) is not usable: {message}") from error


def _with_infinities(value: Any) -> Any:
    """A copy with numbers that JSON has not as numbers: Transformers writes ``{"__float__": "Infinity"}``."""
    if isinstance(value, Mapping):
        if list(value) == ["__float__"]:
            return float(value["__float__"])
        return {key: _with_infinities(inner) for key, inner in value.items()}
    return [_with_infinities(inner) for inner in value] if isinstance(value, list) else value


def head_of(hf_config: Mapping[str, Any]) -> str:
    """Which head a config.json asks for: its ``architectures``, else what its type is used for."""
    named = named_head(hf_config)
    if named is not None:
        return named
    from transformers.models.auto import modeling_auto as auto

    model_type = hf_config.get("model_type")
    for mapping, head in (
        (auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, "causal"),
        (auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES, "seq2seq"),
        (auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES, "mlm"),
        (auto.MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES, "image-classification"),
    ):
        if model_type in mapping and model_type not in ("bert", "roberta", "electra"):
            return head
    return "mlm"


def prepared_config(hf_config: Mapping[str, Any], head: str) -> Any:
    """The configuration object with what training with this head sets. Raises InputError: it cannot be used
    with the installed Transformers, or the head is not known."""
    if head not in AUTO_CLASSES:
        raise InputError(f"head {head!r}: use one of {', '.join(AUTO_CLASSES)}")
    config = read_config(hf_config)
    text = config.get_text_config(decoder=True)
    config.use_cache = text.use_cache = False  # also of the text model inside one of images and text
    is_pair = head == "seq2seq" or (head in CLASSIFIERS and config.is_encoder_decoder)
    if is_pair and getattr(config, "decoder_start_token_id", None) is None:
        config.decoder_start_token_id = getattr(config, "pad_token_id", None) or 0
    if head in CLASSIFIERS and getattr(text, "pad_token_id", None) is None:
        # a decoder's classifier looks for the last token that is no padding (modeling_layers.py)
        config.pad_token_id = text.pad_token_id = 0
    return config


@contextmanager
def usable() -> Iterator[None]:
    """Turn whatever a model's constructor raises on values that do not go together into an InputError."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        message = " ".join(str(of_import(error)).split())[:300] or type(error).__name__
        raise InputError(f"transformers cannot build this model: {message}") from error


def _signature(layer: nn.Module) -> tuple[Any, ...]:
    """What makes two layers of a stack alike: class, parameters, and settings other than the index."""
    shapes = tuple((name, tuple(p.shape)) for name, p in layer.named_parameters())
    settings = []
    for name, module in layer.named_modules():
        for key, value in vars(module).items():
            if key in ("layer_idx", "layer_id", "training") or key.startswith("_"):
                continue
            if isinstance(value, bool | int | float | str | type(None)):
                settings.append((name, key, value))
    return (type(layer).__name__, shapes, tuple(settings))


def _find_stacks(model: nn.Module, keep: int) -> list[tuple[str, nn.ModuleList]]:
    """The outermost module lists of three layers or more."""
    stacks: list[tuple[str, nn.ModuleList]] = []
    for name, module in model.named_modules():
        is_list = isinstance(module, nn.ModuleList) and len(module) > keep
        if vision_tower.is_inside(name):  # whole: some of its layers hand their outputs to the text model
            continue
        if is_list and not any(name.startswith(stack_name + ".") for stack_name, _ in stacks):
            assert isinstance(module, nn.ModuleList)
            stacks.append((name, module))
    return stacks


def _cut(path: str, layers: nn.ModuleList, keep: int) -> LayerList:
    signatures = [_signature(layer) for layer in layers]
    runs: list[list[int]] = []
    for index, signature in enumerate(signatures):
        if runs and signatures[runs[-1][0]] == signature:
            runs[-1].append(index)
        else:
            runs.append([index])
    kept_layers: list[int] = []
    kinds: set[Any] = set()
    for position, run in enumerate(runs):
        # with the two runs before it: of layers that alternate, the second still has the first one's border
        around = tuple(signatures[runs[p][0]] if p >= 0 else None for p in range(position - 2, position + 1))
        if around in kinds and position != len(runs) - 1:
            continue
        kinds.add(around)
        kept_layers += run if len(run) <= keep else [*run[: keep - 1], run[-1]]
    first, last = 0, len(layers) - 1
    stands_for = []
    for index, signature in enumerate(signatures):
        alike = [position for position, k in enumerate(kept_layers) if signatures[k] == signature]
        if index in kept_layers:
            stands_for.append(kept_layers.index(index))
        elif index in (first, last):
            stands_for.append(alike[0 if index == first else -1])
        else:  # an inner one where there is one, so that the ends keep their own borders
            inner = [p for p in alike if kept_layers[p] not in (first, last)]
            stands_for.append((inner or alike)[-1])
    return LayerList(path, len(layers), tuple(kept_layers), tuple(stands_for))


def _shorten(model: nn.Module, config: Any, stack: LayerList) -> None:
    parent_path, _, attribute = stack.path.rpartition(".")
    parent = model.get_submodule(parent_path)
    layers: Any = getattr(parent, attribute)
    setattr(parent, attribute, nn.ModuleList([layers[i] for i in stack.kept_layers]))
    # forwards that loop by index look per-layer settings up in the config
    configs = [config, *(v for v in vars(config).values() if hasattr(v, "to_dict"))]
    for part in configs:
        for key, value in list(vars(part).items()):
            if isinstance(value, list) and len(value) == stack.length:
                setattr(part, key, [value[i] for i in stack.kept_layers])


def _quantise(model: torch.nn.Module, variant: Variant) -> dict[str, int]:
    """Quantise the layers that the variant asks for; the bytes of each weight that is packed now, by name."""
    from zerokit.trace.building import int8, nf4

    rooms = {"int4": nf4.quantise, "int8": int8.quantise}
    way = nf4.quantise if variant.quantized else rooms.get(variant.quantization)
    sizes = {} if way is None else way(model, variant.phase)
    nf4.quantise_adapted(model)
    return sizes


def _widen_ends(model: Any) -> None:
    """Have norms, gates of experts, embeddings and head in fp32, by the names of modules as axolotl finds
    them (loaders/model.py:1153, ``_convert_embedding_modules_dtype``, 0.19)."""
    ends = [model.get_input_embeddings(), model.get_output_embeddings()]
    for name, module in model.named_modules():
        if "norm" in name or name.endswith(".gate") or any(module is end for end in ends):
            module.to(torch.float32)


def build(hf_config: Mapping[str, Any], variant: Variant, *, head: str | None) -> BuiltModel:
    """Build the model on the meta device, with the variant's shards and adapters, and cut its layers.

    With ``variant.zero3_linear`` adapters are in fp32, unless they are narrow, as wide ones are; with
    ``variant.autocast`` parameters have the precision in which DeepSpeed's ``torch_autocast`` sends their
    gradients.

    Raises:
        InputError: the config, head or attention cannot be used with the installed Transformers.
    """
    import transformers

    dtype = torch.bfloat16 if variant.precision == "16" else torch.float32  # fp16 allocates as bf16 does
    head = head or head_of(hf_config)
    config = prepared_config(hf_config, head)
    auto = getattr(transformers, AUTO_CLASSES[head])
    with usable():
        with torch.device("meta"):
            model = auto.from_config(config, dtype=dtype, attn_implementation=variant.attention)
            model.tie_weights()  # Transformers 5.0 leaves them apart on the meta device
        config = model.config
    if variant.by_plan:
        from zerokit.trace.building.planned_parts import divide

        divide(model, variant.tensor_parallel)
    elif variant.tensor_parallel > 1:
        from zerokit.trace.building.tensor_parallel import shard

        shard(model, variant.tensor_parallel)
    if variant.images is not None:
        vision_tower.prepare(model, frozen=variant.images.tower == "frozen")
    if variant.lora_rank:
        from zerokit.trace.building.build import add_lora

        wide = variant.wide_adapters or (variant.zero3_linear and not variant.narrow_adapters)
        spared = vision_tower.INSIDE if variant.images and variant.images.tower == "frozen" else None
        model = add_lora(
            model, variant.lora_rank, variant.lora_targets, None if wide else dtype, spared,
            dropout=_SOME_DROPOUT if variant.dropout else 0.0,
        )  # fmt: skip
    if variant.wide_ends:
        _widen_ends(model)
    packed = _quantise(model, variant)
    if variant.fused_adapters and config.model_type not in UNFUSED_TYPES:
        fused_adapters.fuse(model)
    sent = communication_bytes(model) if variant.autocast else {}
    parameters = tuple(
        Parameter(
            name=n, shape=tuple(local(p).shape), trainable=p.requires_grad, stored_bytes=packed.get(n, 0),
            element_bytes=0 if n in packed or p.dtype == dtype else p.element_size(),
            communication_bytes=sent.get(id(p), 0),
        )
        for n, p in model.named_parameters()
    )  # fmt: skip
    listed = {id(p): n for n, p in model.named_parameters()}
    every = model.named_parameters(remove_duplicate=False)
    ties = {n: listed[id(p)] for n, p in every if listed[id(p)] != n}
    buffer_bytes = sum(b.numel() * b.element_size() for b in model.buffers())
    keep = KEEP_PER_RUN
    if variant.offloaded and variant.checkpointing != "none":
        keep += KEPT_ON_THE_WAY  # one tensor leaves each layer, and the latest are still on the GPU
    stacks = tuple(_cut(path, layers, keep) for path, layers in _find_stacks(model, keep))
    for stack in stacks:
        _shorten(model, config, stack)
    return BuiltModel(model, config, head, parameters, stacks, ties, buffer_bytes)


def communication_bytes(model: nn.Module) -> dict[int, int]:
    """Identity of each parameter -> bytes an element in which its gradient is reduced: two for those of
    ``LOWER_PRECISION_SAFE_MODULES``, by their exact class (``deepspeed/runtime/torch_autocast.py``)."""
    safe = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
    sizes = {id(p): 4 for p in model.parameters()}
    for module in model.modules():
        if type(module) in safe:
            sizes |= {id(p): 2 for p in module.parameters(recurse=False)}
    return sizes


@contextmanager
def transformers_on_gpu(padding: bool = False) -> Iterator[None]:
    """While active, Transformers takes the branches it takes with real tensors on a GPU.

    With fake tensors it would assume packed sequences (masking_utils.find_packed_sequence_indices)
    because it cannot read position ids, and padding because it cannot read a mask that a model makes of
    ones for itself; either would give the attention kernel a mask.
    """
    from transformers import masking_utils

    def unpadded(original: Any) -> Any:
        def ignore(padding_mask: Any, *args: Any, **kwargs: Any) -> Any:
            return original(padding_mask if padding else None, *args, **kwargs)

        return ignore

    replaced: dict[str, Any] = {"find_packed_sequence_indices": lambda *args, **kwargs: None}
    for name in ("_ignore_causal_mask_sdpa", "_ignore_bidirectional_mask_sdpa"):
        if hasattr(masking_utils, name):
            replaced[name] = unpadded(getattr(masking_utils, name))
    with mock.patch.multiple(masking_utils, **replaced):
        yield
