"""The linear modules of Transformers that a layer's products stand for, by the names that peft's
``target_modules`` match.

Since Transformers 5 experts are stacked tensors, and routers modules of their own (5.23 against 4.57,
``modeling_*.py``): bitsandbytes leaves both as they are. It replaces ``nn.Linear``, in Transformers 5.23 that
class alone (transformers/integrations/bitsandbytes.py, ``replace_with_bnb_linear``), and so nothing of
Falcon, whose ``FalconLinear`` is a class of its own. Of the families under ``adapted_experts`` peft 0.21 maps
the names of their modules to the stacked tensors (peft/utils/transformers_weight_conversion.py), and leaves
out the dense and shared feed-forward layers that have the same names; of others it cannot adapt experts at
all.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from zerokit.domain.model_shape import Gemm, Linear, Stack
from zerokit.values import frozen_dataclass, replace

_LATENT = ("kv_a_proj_with_mqa", "kv_b_proj", "o_proj")


@frozen_dataclass
class Names:
    """What a family calls the linear modules of a layer, as paths within it. The defaults are Llama's.

    Attributes:
        queries: of queries, keys and values, in this order; one name where one module makes them all.
        crossed: the path of the decoder's attention to the encoder, where there is one.
        up: of what reads the hidden state: gate and up, or one.
        shared: the path of the expert that all tokens pass through.
        is_packable: whether its linear modules are quantised.
        adapted_experts: whether peft puts adapters on stacked experts.
        experts: ``stacked``, ``stacked in 5`` (of Transformers; in 4 each is a module), or ``modules``.
        expert_up, expert_down: ``up`` and ``down`` of an expert, as its checkpoints name them.
    """

    attention: str = "self_attn"
    queries: tuple[str, ...] = ("q_proj", "k_proj", "v_proj")
    output: str = "o_proj"
    crossed: str = ""
    mlp: str = "mlp"
    up: tuple[str, ...] = ("gate_proj", "up_proj")
    down: str = "down_proj"
    shared: str = "mlp.shared_experts"
    is_packable: bool = True
    adapted_experts: bool = False
    experts: str = "stacked"
    expert_up: tuple[str, ...] = ("gate_proj", "up_proj")
    expert_down: str = "down_proj"


_T5 = Names(attention="SelfAttention", queries=("q", "k", "v"), output="o", crossed="EncDecAttention",
            mlp="DenseReluDense", up=("wi",), down="wo", experts="modules", expert_up=("wi",),
            expert_down="wo")  # fmt: skip
_OPT = Names(output="out_proj", crossed="encoder_attn", mlp="", up=("fc1",), down="fc2")
_NEOX = Names(attention="attention", queries=("query_key_value",), output="dense",
              up=("dense_h_to_4h",), down="dense_4h_to_h")  # fmt: skip
_BLOOM = replace(_NEOX, attention="self_attention")
_BERT = Names(attention="attention", queries=("self.query", "self.key", "self.value"), output="output.dense",
              mlp="", up=("intermediate.dense",), down="output.dense")  # fmt: skip
_EXPERTS = Names(adapted_experts=True, experts="stacked in 5")
_MIXTRAL = Names(adapted_experts=True, experts="stacked in 5", expert_up=("w1", "w3"), expert_down="w2")

MODULE_NAMES: dict[str, Names] = {
    "phi3": Names(queries=("qkv_proj",), up=("gate_up_proj",)),
    "glm4": Names(up=("gate_up_proj",)),
    "mixtral": _MIXTRAL,
    "minimax_m2": replace(_MIXTRAL, experts="stacked"),
    "qwen2_moe": Names(experts="stacked in 5", shared="mlp.shared_expert"),
    "glm4_moe": Names(experts="stacked in 5"),
    **dict.fromkeys(("qwen3_moe", "deepseek_v2", "deepseek_v3"), _EXPERTS),
    "gpt2": Names(attention="attn", queries=("c_attn",), output="c_proj", up=("c_fc",), down="c_proj"),
    **dict.fromkeys(("opt", "bart", "whisper"), _OPT),
    "gptj": Names(attention="attn", output="out_proj", up=("fc_in",), down="fc_out"),
    "gpt_neox": _NEOX,
    "bloom": _BLOOM,
    "falcon": replace(_BLOOM, is_packable=False),
    "phi": Names(output="dense", up=("fc1",), down="fc2"),
    "mpt": Names(attention="attn", queries=("Wqkv",), output="out_proj", mlp="ffn", up=("up_proj",)),
    "starcoder2": Names(up=("c_fc",), down="c_proj"),
    **dict.fromkeys(("bert", "roberta", "xlm-roberta"), _BERT),
    "distilbert": Names(
        attention="attention",
        queries=("q_lin", "k_lin", "v_lin"),
        output="out_lin",
        mlp="ffn",
        up=("lin1",),
        down="lin2",
    ),
    "modernbert": Names(attention="attn", queries=("Wqkv",), output="Wo", up=("Wi",), down="Wo"),
    "t5": _T5,
    "switch_transformers": replace(_T5, mlp="mlp"),
    "vit": Names(attention="attention", up=("fc1",), down="fc2"),
}
"""``model_type`` -> names; of all others Llama's. Compared with what peft 0.21 adapts (Transformers 5.23)."""


def can_be_separate(model_type: object) -> bool:
    """Whether Transformers 4 has the family with modules that bitsandbytes quantises, and 5 without."""
    names = MODULE_NAMES.get(str(model_type), Names())
    return names.experts == "stacked in 5" or not names.is_packable


def with_modules(stack: Stack, hf_config: Mapping[str, Any], separate: bool = False) -> Stack:
    """The stack of a model with this configuration, with the modules of each of its products.

    ``separate``: as in Transformers 4, where each expert is a module and every linear one is quantised.
    """
    names = MODULE_NAMES.get(str(hf_config.get("model_type")), Names())
    if separate:
        names = replace(names, experts="modules", adapted_experts=False)
    if names is _T5 and str(hf_config.get("feed_forward_proj", "relu")).startswith("gated"):
        names = replace(_T5, up=("wi_0", "wi_1"))
    attention = [gemm for gemm in stack.gemms if gemm.kind == "attention"]
    rest = [gemm for gemm in stack.gemms if gemm.kind != "attention"]
    is_latent = any(gemm.split == "none" for gemm in attention)
    named = _latent(attention, names) if is_latent else _attention(attention, stack, names)
    gemms = (*named, *_feed_forward(rest, names))
    is_packable = names.is_packable or separate
    packed = (replace(gemm, packable=is_packable and not gemm.stacked) for gemm in gemms)
    return replace(stack, gemms=tuple(packed))


def _attention(gemms: list[Gemm], stack: Stack, names: Names) -> Iterator[Gemm]:
    for number, gemm in enumerate(gemms):
        path = names.attention if number < 2 else names.crossed
        if gemm.split == "row":
            widths: tuple[tuple[str, int], ...] = ((names.output, gemm.n),)
        elif len(names.queries) == 1:
            widths = ((names.queries[0], gemm.n),)
        else:
            keys = stack.kv_width // 2
            widths = tuple(zip(names.queries, (gemm.n - 2 * keys, keys, keys), strict=True))
        yield _with(gemm, path, widths)


def _latent(gemms: list[Gemm], names: Names) -> Iterator[Gemm]:
    """Multi-head latent attention: each product is a module."""
    queries = ("q_proj",) if len(gemms) == 1 + len(_LATENT) else ("q_a_proj", "q_b_proj")
    for gemm, name in zip(gemms, (*queries, *_LATENT), strict=True):
        yield _with(gemm, names.attention, ((name, gemm.n),))


def _feed_forward(gemms: list[Gemm], names: Names) -> Iterator[Gemm]:
    has_experts = any(gemm.copies > 1 for gemm in gemms)
    is_stacked = names.experts != "modules"
    is_adapted = names.adapted_experts or not is_stacked
    for gemm in gemms:
        if gemm.copies > 1:
            up, down = names.expert_up, names.expert_down
            leaves = up if gemm.split == "column" else (down,)
            # of gate and up in one tensor peft doubles the rank: each reads and writes all of it
            width = gemm.n if is_stacked else gemm.n // len(leaves)
            widths = tuple((name, width) for name in leaves)
            yield replace(_with(gemm, f"{names.mlp}.experts", widths, is_adapted), stacked=is_stacked)
        elif gemm.split == "none":
            yield replace(_with(gemm, names.mlp, (("gate", gemm.n),), is_adapted), stacked=is_stacked)
        else:
            up, down = names.up, names.down
            leaves = up if gemm.split == "column" else (down,)
            path = names.shared if has_experts else names.mlp
            widths = tuple((name, gemm.n // len(leaves)) for name in leaves)
            yield _with(gemm, path, widths, not names.adapted_experts)


def _with(gemm: Gemm, path: str, widths: tuple[tuple[str, int], ...], adapted: bool = True) -> Gemm:
    modules = (Linear(path=f"{path}.{name}".lstrip("."), n=width) for name, width in widths)
    return replace(gemm, modules=tuple(modules), takes_adapters=adapted)
