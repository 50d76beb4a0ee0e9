"""The matrices of a transformer: what the time model multiplies and the closed form of memory counts.

``zerokit.domain.families`` reads them out of a Hugging Face configuration.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from zerokit.errors import InputError
from zerokit.values import frozen_dataclass, replace


@frozen_dataclass
class Kept:
    """What layers of some families keep for backward beside what all do (``closed_form``).

    Figures are of the catalogue's traces (Transformers 5.23), whose activations at several lengths separate
    what grows with the pairs of tokens; benchmarks/closed_form.py holds them against every trace.

    Attributes:
        score_bytes: of attention that keeps its scores whatever kernel is asked for, bytes for each pair of
            tokens and each head: kept for backward, and alive while a layer is worked on.
        gelu_tensors: of the feed-forward width, beside input and output of its activation.
        norms_keys: queries and keys are normalised.
        views_weights: linear modules keep views of their weights, as stacked experts do.
        caps_logits: of each logit also the one before it was capped.
    """

    score_bytes: tuple[float, float] = (0.0, 0.0)
    gelu_tensors: int = 0
    norms_keys: bool = False
    views_weights: bool = False
    caps_logits: bool = False


EAGER_SCORE_BYTES = (8.0, 20.0)
"""Of eager attention: scores, their softmax in fp32 and a 16-bit copy of it; then gradients of them too."""
MATH_SCORE_BYTES = (4.0, 12.0)
"""Of ``sdpa`` in fp32 where heads share keys, for which PyTorch has no fused kernel: the softmax, then that
and two gradients (torch 2.13, aten/src/ATen/native/transformers/attention.cpp,
``_scaled_dot_product_attention_math``)."""
_SINGLE_KEY_HEAD = (4.4, 16.0)
"""Of one key head that is broadcast over Falcon's queries, for which PyTorch has no fused kernel."""
_GELU_TENSORS = 3
"""Of an activation that Transformers writes out in operators (GPT-2's traces)."""
_PYTHON_GELUS = ("gelu_new", "gelu_fast", "quick_gelu")

_NORMS_KEYS = Kept(norms_keys=True)
_EAGER = Kept(score_bytes=EAGER_SCORE_BYTES)
_KEPT: Mapping[str, Kept] = {
    **dict.fromkeys(
        ("qwen3", "qwen3_moe", "olmo2", "olmo3", "exaone4", "gemma3", "gemma3_text", "minimax_m2"),
        _NORMS_KEYS,
    ),
    **dict.fromkeys(("gemma2", "gptj", "mpt", "switch_transformers"), _EAGER),  # the last three not traced
    "gpt_oss": Kept(score_bytes=(2.0, 9.0)),
    "bloom": Kept(score_bytes=(6.0, 16.0)),
    "falcon": Kept(views_weights=True),  # FalconLinear: input times ``weight.T`` (modeling_falcon.py)
}


def kept_of(hf_config: Mapping[str, Any], kv_heads: int) -> Kept:
    """What a model with this configuration keeps more."""
    model_type = hf_config.get("model_type")
    kept = _KEPT.get(str(model_type), Kept())
    if model_type == "falcon" and kv_heads == 1:
        kept = replace(kept, score_bytes=_SINGLE_KEY_HEAD)
    activation = hf_config.get("activation_function") or hf_config.get("hidden_act")
    return replace(
        kept,
        gelu_tensors=_GELU_TENSORS if activation in _PYTHON_GELUS else 0,
        caps_logits=bool(hf_config.get("final_logit_softcapping")),
    )


__all__ = ["ALL_LINEAR", "Gemm", "Linear", "ModelShape", "Stack", "is_pattern", "scaled"]


ALL_LINEAR = "all-linear"
"""Of adapters' targets: every linear module but the output head."""
_OF_PATTERNS = frozenset("\\()[]{}|*+?^$")
_LAYER_LISTS = ("model.layers", "model.language_model.layers", "language_model.model.layers", "transformer.h",
                "gpt_neox.layers", "model.decoder.layers")  # fmt: skip
"""Where models of Transformers have their decoder's layers."""


def is_pattern(targets: str) -> bool:
    """Whether adapters' targets are no names but a pattern for whole paths, as peft takes a text
    (peft/tuners/tuners_utils.py, ``check_target_module_exists``, 0.21)."""
    return not _OF_PATTERNS.isdisjoint(targets)


@frozen_dataclass
class Linear:
    """A linear module: its path within a layer, such as ``self_attn.q_proj``, and its outputs."""

    path: str
    n: int

    def is_one_of(self, targets: tuple[str, ...]) -> bool:
        """Whether peft's ``target_modules`` mean it: all linear modules, or by the end of its path."""
        return ALL_LINEAR in targets or any(f".{self.path}".endswith(f".{name}") for name in targets)


@frozen_dataclass
class Gemm:
    """A weight matrix of one layer: ``[rows × n] = [rows × k] · [k × n]`` in the forward pass.

    Attributes:
        split: how tensor parallelism cuts it: ``column`` (n), ``row`` (k) or ``none``.
        copies: matrices alike (the experts of a layer, for example).
        active: of the copies, how many each token passes through.
        kind: ``attention`` or ``mlp``.
        modules: of Transformers that it stands for: q, k and v; gate and up. Empty: not known.
        takes_adapters: whether peft can put adapters on them.
        stacked: whether they are no linear modules, but a tensor of all experts, or a router's own.
        packable: whether bitsandbytes quantises them.
    """

    n: int
    k: int
    split: str
    copies: int = 1
    active: float = 1.0
    kind: str = "mlp"
    modules: tuple[Linear, ...] = ()
    takes_adapters: bool = True
    stacked: bool = False
    packable: bool = True

    @property
    def parameters(self) -> int:
        """Elements in all copies."""
        return self.n * self.k * self.copies

    @property
    def active_parameters(self) -> float:
        """Elements that one token meets."""
        return self.n * self.k * self.active

    @property
    def fused(self) -> int:
        """Modules in transformers of one product here: q, k, v; gate, up."""
        return max(1, len(self.modules))

    def adapted(self, targets: tuple[str, ...]) -> tuple[Linear, ...]:
        """Modules that get adapters; of those not known, one that only all-linear means."""
        if not self.takes_adapters:
            return ()
        modules = self.modules or (Linear(path="", n=self.n),)
        return tuple(module for module in modules if module.is_one_of(targets))

    def adapter_parameters(self, rank: int, targets: tuple[str, ...]) -> int:
        """Elements of the two LoRA matrices of each adapted module (arXiv 2106.09685), in all copies."""
        return self.copies * rank * sum(module.n + self.k for module in self.adapted(targets))

    def scaled(self, ratio: float) -> Gemm:
        """The same with both widths times ``ratio``."""
        modules = (replace(module, n=max(1, round(module.n * ratio))) for module in self.modules)
        return replace(
            self, n=max(1, round(self.n * ratio)), k=max(1, round(self.k * ratio)), modules=tuple(modules)
        )


@frozen_dataclass
class Stack:
    """``layers`` alike. ``other`` counts biases, norms and the like of one layer, in elements.

    Attributes:
        attention_width: heads × (query-key width + value width) / 2: what a score costs per pair.
        fixed_tokens: tokens per sequence whatever the job says (audio frames, image patches).
        kernels: that a layer launches in the forward pass.
        more_normed: elements of a token that norms read beside those of a layer's two: of norms behind
            attention and feed-forward layer, or on queries and keys.
    """

    layers: int
    gemms: tuple[Gemm, ...]
    hidden: int
    ffn: int
    attention_width: int
    kv_width: int
    causal: bool
    cross_attention: bool = False
    other_parameters: int = 0
    fixed_tokens: int | None = None
    kernels: float = 38.0
    more_normed: int = 0

    @property
    def rotated(self) -> float:
        """Width of queries and keys together."""
        return self.attention_width + self.kv_width / 2

    @property
    def layer_parameters(self) -> int:
        """Elements of one layer."""
        return sum(gemm.parameters for gemm in self.gemms) + self.other_parameters

    @property
    def layer_active(self) -> float:
        """Matrix elements that one token meets in one layer."""
        return sum(gemm.active_parameters for gemm in self.gemms)


@frozen_dataclass
class ModelShape:
    """A model as the time model sees it.

    Attributes:
        embedding_parameters: tables that are looked up, not multiplied.
        parameters: the model's count, tied weights once.
        head: which ``AutoModelFor…``: causal, mlm, seq2seq, speech-seq2seq, image-classification.
        latent_attention: heads of values are not as wide as those of queries (arXiv 2405.04434).
        attends_fully: every layer, to all tokens before; not in windows or chunks, or by recurrence.
        kept: for backward, beside what all models keep.
    """

    name: str
    family: str
    head: str
    stacks: tuple[Stack, ...]
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    tied: bool
    embedding_parameters: int
    parameters: int
    experts: int = 1
    experts_per_token: int = 1
    gated: bool = False
    latent_attention: bool = False
    attends_fully: bool = True
    kept: Kept = Kept()

    @property
    def layers(self) -> int:
        """Layers of all stacks."""
        return sum(stack.layers for stack in self.stacks)

    @property
    def linear_modules(self) -> tuple[Linear, ...]:
        """Linear modules of all layers that are known by name; of each stack once."""
        return tuple(module for stack in self.stacks for gemm in stack.gemms for module in gemm.modules)

    def fitting(self, pattern: str) -> tuple[str, ...] | None:
        """Names of the linear modules that a pattern takes in every layer; None: in some layers alone. Raises
        re.error: the pattern is none."""
        fits = re.compile(pattern).fullmatch
        taken: dict[str, bool] = {}
        for stack in self.stacks:
            for path in (module.path for gemm in stack.gemms for module in gemm.modules):
                of_layers = {
                    any(fits(f"{start}.{layer}.{path}") for start in _LAYER_LISTS)
                    for layer in range(stack.layers)
                }
                if len(of_layers) > 1:
                    return None
                taken[path] = taken.get(path, False) or of_layers == {True}
        names = {path: path.rpartition(".")[2] for path in taken}
        missed = {names[path] for path, is_taken in taken.items() if not is_taken}
        found = [path if names[path] in missed else names[path] for path, one in taken.items() if one]
        return tuple(dict.fromkeys(found))

    @property
    def layer_kernels(self) -> float:
        """Kernels that a layer launches in the forward pass, on average over all layers."""
        return sum(stack.layers * stack.kernels for stack in self.stacks) / self.layers

    @property
    def ffn(self) -> int:
        """Width of the widest feed-forward layer."""
        return max(stack.ffn for stack in self.stacks)

    @property
    def head_parameters(self) -> int:
        """Elements of the output head's matrix (tied or not)."""
        return self.vocab * self.hidden

    @property
    def matmul_parameters(self) -> float:
        """Matrix elements that one token is multiplied with in the forward pass, head included."""
        return sum(stack.layers * stack.layer_active for stack in self.stacks) + self.head_parameters

    @property
    def block_parameters(self) -> int:
        """Elements of all layers."""
        return sum(stack.layers * stack.layer_parameters for stack in self.stacks)

    @property
    def linear_parameters(self) -> int:
        """Elements of all layers that bitsandbytes quantises."""
        return sum(s.layers * g.parameters for s in self.stacks for g in s.gemms if g.packable)

    @property
    def packable_modules(self) -> float:
        """Linear modules of a layer that 4 bits can hold, on average over all layers."""
        counts = (
            stack.layers * sum(len(gemm.modules) for gemm in stack.gemms if gemm.packable)
            for stack in self.stacks
        )
        return sum(counts) / self.layers

    def adapted_share(self, targets: tuple[str, ...]) -> float:
        """Share of the linear modules of all layers that get adapters."""
        every = adapted = 0
        for stack in self.stacks:
            for gemm in stack.gemms:
                copies = stack.layers * (1 if gemm.stacked else gemm.copies)
                every += copies * gemm.fused
                adapted += copies * len(gemm.adapted(targets))
        return adapted / max(1, every)

    def adapts_stacked_experts(self, targets: tuple[str, ...]) -> bool:
        """Whether adapters on these modules sit on experts that are one tensor."""
        gemms = (gemm for stack in self.stacks for gemm in stack.gemms)
        return any(gemm.stacked and gemm.copies > 1 and gemm.adapted(targets) for gemm in gemms)

    @property
    def stacked_parameters(self) -> int:
        """Elements of the experts that are no linear modules, in all layers."""
        return sum(
            s.layers * g.parameters for s in self.stacks for g in s.gemms if g.stacked and g.copies > 1
        )

    def weight_bytes(self, element_bytes: float, packed_bytes: float | None) -> float:
        """Bytes of all weights; ``packed_bytes``: of one in a linear module of the layers, None where none is
        quantised."""
        packed = 0 if packed_bytes is None else self.linear_parameters
        return (packed_bytes or 0.0) * packed + element_bytes * (self.parameters - packed)

    @property
    def largest_parameter(self) -> int:
        """Elements of the largest single tensor."""
        sizes = (g.parameters if g.stacked else g.n * g.k for stack in self.stacks for g in stack.gemms)
        return max(*sizes, self.head_parameters)


def scaled(shape: ModelShape, parameters: int) -> ModelShape:
    """A model built like ``shape`` with exactly ``parameters``: depth and widths grow alike.

    Head width, vocabulary and the proportions stay; the width is kept a multiple of 128 and the last
    fraction of a layer is spread over the layers.

    Raises:
        InputError: the vocabulary alone is larger than ``parameters``.
    """
    if len(shape.stacks) != 1:
        raise InputError(f"{shape.name} cannot be scaled: it has several stacks of layers")
    stack = shape.stacks[0]
    tables = shape.embedding_parameters + (0 if shape.tied else shape.head_parameters)
    vocab = shape.vocab
    if tables > parameters // 2:  # a small model with a large model's vocabulary would be all vocabulary
        vocab = max(256, vocab * parameters // (4 * tables))
    factor = (parameters / shape.parameters) ** (1 / 3)
    step = 128 if shape.hidden * factor >= 256 else 8
    hidden = max(step, round(shape.hidden * factor / step) * step)
    ratio = hidden / shape.hidden
    dim = min(shape.head_dim, hidden)
    heads = max(1, round(shape.heads * ratio))
    gemms = tuple(gemm.scaled(ratio) for gemm in stack.gemms)
    layer = replace(
        stack,
        gemms=gemms,
        hidden=hidden,
        ffn=round(stack.ffn * ratio),
        attention_width=round(stack.attention_width * ratio),
        kv_width=round(stack.kv_width * ratio),
        other_parameters=round(stack.other_parameters * ratio),
    )
    tables = round(vocab * hidden * (1 if shape.tied else 2))
    layers = max(1, round((parameters - tables) / layer.layer_parameters))
    return replace(
        shape,
        name=f"{shape.name} scaled",
        stacks=(replace(layer, layers=layers),),
        hidden=hidden,
        heads=heads,
        kv_heads=min(shape.kv_heads, heads),
        head_dim=dim,
        vocab=vocab,
        embedding_parameters=vocab * hidden,
        parameters=parameters,
    )


def shape_from_json(data: Mapping[str, Any]) -> ModelShape:
    """Read a shape that was stored as its ``asdict``: of a model whose family has no row in ``FAMILIES``."""
    kept: dict[str, Any] = {
        name: tuple(of) if isinstance(of, list) else of for name, of in data.get("kept", {}).items()
    }
    return ModelShape(**{**data, "stacks": tuple(map(_stack, data["stacks"])), "kept": Kept(**kept)})


def _stack(data: Mapping[str, Any]) -> Stack:
    return Stack(**{**data, "gemms": tuple(map(_gemm, data["gemms"]))})


def _gemm(data: Mapping[str, Any]) -> Gemm:
    modules = tuple(Linear(**module) for module in data.get("modules", ()))
    stacked = data["copies"] > 1 and not modules  # of shapes that were stored before this was kept
    return Gemm(**{"stacked": stacked, "packable": not stacked, **data, "modules": modules})
