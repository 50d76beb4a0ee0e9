"""The matrices of the model that Transformers builds from a config.json, on no device.

What :mod:`zerokit.domain.families` reads out of the configuration of a family that it knows, this reads out
of the modules of any: their exact count, and for the time model the products of each layer.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from zerokit.domain.families import attends_fully
from zerokit.domain.images import SequenceImages
from zerokit.domain.model_shape import Gemm, Linear, ModelShape, Stack
from zerokit.errors import InputError
from zerokit.trace.building import vision_tower
from zerokit.trace.building.build import AUTO_CLASSES, head_of, prepared_config, read_config, usable

_EXPERTS_PER_TOKEN = (
    "num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_k", "top_k_experts", "experts_per_token",
    "moe_top_k", "num_selected_experts",
)  # fmt: skip
_NUMBERED = re.compile(r"\.\d+(?=\.)")
_ATTENTION = re.compile(r"attn|attention", re.IGNORECASE)


def complete_config(hf_config: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration with Transformers' defaults for what it leaves out. Raises InputError: the installed
    Transformers does not take it."""
    values: dict[str, Any] = read_config(hf_config).to_dict()
    return values


def shape_of(
    hf_config: Mapping[str, Any], name: str, head: str | None = None, images: SequenceImages | None = None
) -> ModelShape:
    """The shape of the model, ``parameters`` counted exactly: all of them, tied ones once.

    ``images``: of each sequence, for a model with a vision tower.

    Raises:
        InputError: the installed Transformers cannot build a model of this configuration.
    """
    import transformers

    head = head or head_of(hf_config)
    config = prepared_config(hf_config, head)
    auto = getattr(transformers, AUTO_CLASSES[head])
    with usable(), torch.device("meta"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model: nn.Module = auto.from_config(config)
    shape = _read(model, config, name, head)
    return shape if images is None else _with_tower(shape, model, images)


def _read(model: nn.Module, config: Any, name: str, head: str) -> ModelShape:
    text = config.get_text_config().to_dict()  # attributes that differ by layer cannot be asked for
    hidden = _whole(text, "hidden_size", "d_model", "n_embd", "dim") or _widest(model)
    heads = _whole(text, "num_attention_heads", "n_head", "n_heads", "num_heads") or 1
    kv_heads = _whole(text, "num_key_value_heads", "num_kv_heads") or heads
    head_dim = _whole(text, "head_dim", "d_kv") or max(1, hidden // heads)
    experts = _whole(text, "num_experts", "num_local_experts", "n_routed_experts") or 1
    active = min(experts, _whole(text, *_EXPERTS_PER_TOKEN) or experts)
    widths = (heads * head_dim, 2 * kv_heads * head_dim)
    causal = head in ("causal", "sequence-classification")
    stacks = tuple(_stacks(model, hidden, widths, float(active), causal))
    if not stacks:
        raise InputError(f"model_type {config.model_type!r}: the model has no list of layers")
    outputs, inputs = _call(model, "get_output_embeddings"), _call(model, "get_input_embeddings")
    return ModelShape(
        name=name,
        family=str(config.model_type),
        head=head,
        stacks=stacks,
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        vocab=_outputs(outputs, config, text, head),
        tied=outputs is not None and getattr(inputs, "weight", None) is getattr(outputs, "weight", 0),
        embedding_parameters=sum(m.weight.numel() for m in model.modules() if isinstance(m, nn.Embedding)),
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        experts=experts,
        experts_per_token=active,
        attends_fully=attends_fully(text),
        gated=any("gate" in gate for gate, _ in model.named_modules()),
    )


def _with_tower(shape: ModelShape, model: nn.Module, images: SequenceImages) -> ModelShape:
    """The shape with the tower's layers over the patches of a sequence's images; each image or tile attends
    to itself."""
    widths = (shape.heads * shape.head_dim, 2 * shape.kv_heads * shape.head_dim)
    text = tuple(_stacks(model, shape.hidden, widths, float(shape.experts_per_token), True, tower=False))
    tower = [module for path, module in model.named_modules() if vision_tower.is_inside(f"{path}.0")]
    width = _widest_input(tower)
    pictures = images.count * images.tiles
    layers = _stacks(model, width, (width, 2 * width), 1.0, False, tower=True)
    tower_modules = (
        replace(s, attention_width=s.attention_width // pictures, fixed_tokens=images.patches) for s in layers
    )
    return replace(shape, stacks=(*tower_modules, *text))


def _widest_input(tower: list[nn.Module]) -> int:
    """Width of a vision tower: what most of its linear layers read."""
    parts = (module for part in tower for module in part.modules())
    widths = [module.in_features for module in parts if isinstance(module, nn.Linear)]
    return int(max(set(widths), key=widths.count))


def _whole(values: Mapping[str, Any], *keys: str) -> int | None:
    for key in keys:
        value = values.get(key)
        value = max(value) if isinstance(value, list | tuple) and value else value
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
    return None


def _call(model: Any, name: str) -> Any:
    try:
        return getattr(model, name)()
    except (AttributeError, NotImplementedError, TypeError):
        return None


def _widest(model: nn.Module) -> int:
    embedding = next((m.embedding_dim for m in model.modules() if isinstance(m, nn.Embedding)), None)
    return int(embedding) if embedding else max(parameter.shape[-1] for parameter in model.parameters())


def _outputs(head_module: Any, config: Any, text: Mapping[str, Any], head: str) -> int:
    if head == "embedding":
        return 1
    if head == "question-answering":
        return 2
    if head in ("sequence-classification", "token-classification", "image-classification"):
        return int(config.num_labels)
    width = getattr(head_module, "out_features", None)
    return int(width or _whole(text, "vocab_size") or 1)


def _stacks(
    model: nn.Module,
    hidden: int,
    widths: tuple[int, int],
    active: float,
    causal: bool,
    tower: bool | None = None,
) -> Iterator[Stack]:
    """One for each kind of layer in the outermost lists of layers; ``tower``: the vision tower's or the
    others'."""
    paths: list[str] = []
    for path, layers in model.named_modules():
        if tower is not None and vision_tower.is_inside(f"{path}.0") is not tower:
            continue
        if not isinstance(layers, nn.ModuleList) or any(path.startswith(f"{parent}.") for parent in paths):
            continue
        if not any(True for _ in layers.parameters()):
            continue
        paths.append(path)
        counts: dict[tuple[Any, ...], int] = {}
        kinds: dict[tuple[Any, ...], Stack] = {}
        for layer in layers:
            kind = tuple((key, tuple(p.shape)) for key, p in layer.named_parameters())
            counts[kind] = counts.get(kind, 0) + 1
            if kind not in kinds:
                gemms = tuple(_gemms(layer, hidden, active))
                attends = any(_ATTENTION.search(type(module).__name__) for module in layer.modules())
                parameters = sum(parameter.numel() for parameter in layer.parameters())
                ffn = max((g.k for g in gemms if g.kind == "mlp" and g.split == "row"), default=hidden)
                kinds[kind] = Stack(
                    layers=1, gemms=gemms, hidden=hidden, ffn=ffn, causal=causal,
                    attention_width=widths[0] if attends else 0, kv_width=widths[1] if attends else 0,
                    other_parameters=max(0, parameters - sum(gemm.parameters for gemm in gemms)),
                )  # fmt: skip
        for kind, stack in kinds.items():
            yield replace(stack, layers=counts[kind])


def _gemms(layer: nn.Module, hidden: int, active: float) -> Iterator[Gemm]:
    """The products of a layer: of linear modules, and of experts, stacked or in a list."""
    from transformers.pytorch_utils import Conv1D

    counts: dict[tuple[str, int, int], int] = {}
    for path, module in layer.named_modules():
        if isinstance(module, nn.Linear | Conv1D):
            rows, columns = module.weight.shape
            n, k = (columns, rows) if isinstance(module, Conv1D) else (rows, columns)
            pattern = _NUMBERED.sub(".*", f".{path}")
            counts[pattern, n, k] = counts.get((pattern, n, k), 0) + 1
            continue
        for name, parameter in module.named_parameters(recurse=False):
            if parameter.dim() == 3 and parameter.shape[0] > 1 and "conv" not in path:
                copies, n, k = parameter.shape
                counts[f".{path}.{name}.*", n, k] = copies
    for (pattern, n, k), copies in counts.items():
        is_per_expert = copies > 1 and "*" in pattern
        is_stacked = pattern.endswith(".*")  # which names peft takes for such a tensor is not known
        yield Gemm(
            n=n, k=k, split="row" if n == hidden else "column", copies=copies,
            active=min(active, copies) if is_per_expert else float(copies),
            kind="attention" if _ATTENTION.search(pattern) else "mlp",
            modules=() if is_stacked else (Linear(path=pattern.lstrip("."), n=n),), stacked=is_stacked,
            packable=not is_stacked,
        )  # fmt: skip
