"""A transformer's shape out of its Hugging Face configuration, family by family.

Counts leave out nothing larger than a bias where the configuration names it; the catalogue's exact
count replaces the sum where there is one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from zerokit.domain.model_shape import Gemm, ModelShape, Stack
from zerokit.errors import InputError

__all__ = ["KNOWN_FAMILIES", "from_config"]

_LATENT = frozenset({"deepseek_v2", "deepseek_v3"})
_GATED = frozenset(
    {
        "llama", "mistral", "mixtral", "qwen2", "qwen3", "qwen2_moe", "qwen3_moe", "gemma", "gemma2",
        "gemma3", "gemma3_text", "phi3", "glm4", "granite", "olmo2", "cohere", "deepseek_v2", "deepseek_v3",
        "modernbert", "gpt_oss",
    }
)  # fmt: skip
_NOT_CAUSAL = {
    "bert": "mlm", "roberta": "mlm", "xlm-roberta": "mlm", "distilbert": "mlm", "modernbert": "mlm",
    "vit": "image-classification", "t5": "seq2seq", "bart": "seq2seq", "switch_transformers": "seq2seq",
    "whisper": "speech-seq2seq",
}  # fmt: skip
# transformers 5.23 configuration defaults that catalogue files may leave out
_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "bloom": {"intermediate_size": 4},
    "whisper": {"vocab_size": 51865},
    "vit": {"vocab_size": 1000},
    "qwen3": {"head_dim": 128},
    "qwen3_moe": {"head_dim": 128},
    "gemma": {"head_dim": 256},
    "gemma2": {"head_dim": 256},
    "gemma3_text": {"head_dim": 256},
    "glm4": {"head_dim": 128},
}
_WHISPER_FRAMES = 1500
_MOST = 10**9  # far beyond any model
# Operators of a layer's forward pass that launch a kernel, counted by torch's dispatcher (torch 2.13,
# transformers 5.23; SDPA where the family has it, one for the attention; experts as grouped products): a norm
# is eight kernels where it is no LayerNorm, and some families have one on queries and keys too.
_LAYER_KERNELS: Mapping[str, float] = {
    "llama": 38, "mistral": 38, "qwen2": 38, "cohere": 38, "phi3": 38, "granite": 40, "gemma": 42,
    "qwen3": 54, "olmo2": 56, "glm4": 58, "gemma2": 73, "gemma3": 82, "gemma3_text": 82, "modernbert": 29,
    "mixtral": 56, "qwen2_moe": 62, "deepseek_v3": 63, "qwen3_moe": 72, "gpt_oss": 73, "deepseek_v2": 91,
    "vit": 12, "distilbert": 13, "bert": 14, "roberta": 14, "xlm-roberta": 14, "bart": 14, "opt": 15,
    "mpt": 16, "whisper": 17, "gpt2": 19, "starcoder2": 22, "bloom": 23, "gpt_neox": 23, "falcon": 27,
    "t5": 29, "phi": 31, "gptj": 45,
}  # fmt: skip
KNOWN_FAMILIES = frozenset(_LAYER_KERNELS) | {"switch_transformers"}
"""Families whose shapes are known here: the catalogue's, each compared with what transformers builds."""
_GATED_KERNELS, _PLAIN_KERNELS, _MOE_KERNELS = 38.0, 20.0, 18.0
"""Of a family that is not in the table; more of experts."""
_CROSS_ATTENTION_KERNELS = 1.6
"""Of a decoder's layer over an encoder's: BART 1.5, T5 1.7, Whisper 1.6."""


class _Config:
    """Look-ups in a configuration under the names that families use."""

    def __init__(self, values: Mapping[str, Any], name: str) -> None:
        self.values = {**_DEFAULTS.get(str(values.get("model_type")), {}), **values}
        self.name = name

    def whole(self, *keys: str, default: int | None = None) -> int:
        for key in keys:
            value = self.values.get(key)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise InputError(f"{self.name}: {key} is {value!r}; expected a whole number of at least 1")
            if value > _MOST:
                raise InputError(f"{self.name}: {key} is {value}; expected at most {_MOST:,}")
            return value
        if default is None:
            raise InputError(f"{self.name}: none of {', '.join(keys)} is in the configuration")
        return default

    def flag(self, key: str, default: bool) -> bool:
        return bool(self.values.get(key, default))


def from_config(
    hf_config: Mapping[str, Any], *, name: str = "config.json", parameters: int | None = None
) -> ModelShape:
    """The shape of the model that ``hf_config`` describes.

    Args:
        parameters: the exact count, where it is known; else the sum of the shapes.

    Raises:
        InputError: no transformer can be read out of it; names the missing key.
    """
    if not isinstance(hf_config, Mapping):
        raise InputError(f"{name}: expected a configuration with named values")
    if isinstance(hf_config.get("text_config"), Mapping):
        return _with_vision(hf_config, name, parameters)
    family = str(hf_config.get("model_type", ""))
    if not family:
        raise InputError(f"{name}: model_type is missing; is it a Hugging Face config.json?")
    config = _Config(hf_config, name)
    stacks = _stacks(config, family)
    hidden = config.whole("hidden_size", "n_embd", "d_model", "dim")
    vocab = config.whole("vocab_size")
    heads = _heads(config)
    tied = _tied(config, family)
    head = _NOT_CAUSAL.get(family, "causal")
    positions = _positions(config, family)
    embedding = 0 if head == "image-classification" else vocab * hidden
    extra = hidden * hidden if head == "mlm" else 0  # transform before the decoder
    if family == "vit":
        patch, channels = config.whole("patch_size", default=16), config.whole("num_channels", default=3)
        extra += patch * patch * channels * hidden
    shape = ModelShape(
        name=name,
        family=family,
        head=head,
        stacks=stacks,
        hidden=hidden,
        heads=heads,
        kv_heads=_kv_heads(config, family, heads),
        head_dim=_head_dim(config, hidden, heads),
        vocab=vocab,
        tied=tied,
        embedding_parameters=embedding + positions * hidden,
        parameters=0,
        experts=_experts(config),
        experts_per_token=config.whole("num_experts_per_tok", default=1),
        gated=family in _GATED,
        latent_attention=family in _LATENT,
    )
    separate_head = 0 if tied and head != "image-classification" else shape.head_parameters
    total = shape.block_parameters + shape.embedding_parameters + separate_head + extra
    return replace(shape, parameters=parameters if parameters is not None else total)


def _with_vision(hf_config: Mapping[str, Any], name: str, parameters: int | None) -> ModelShape:
    """A text model with an image tower: the tower's weights count, its rare work does not."""
    text = from_config(hf_config["text_config"], name=name)
    vision = hf_config.get("vision_config")
    tower = 0
    if isinstance(vision, Mapping) and "hidden_size" in vision:
        h, f = (
            int(vision["hidden_size"]),
            int(vision.get("intermediate_size", 4 * int(vision["hidden_size"]))),
        )
        tower = int(vision.get("num_hidden_layers", 0)) * (4 * h * h + 2 * h * f)
        tower += h * text.hidden
    return replace(text, parameters=parameters if parameters is not None else text.parameters + tower)


def _heads(config: _Config) -> int:
    return config.whole("num_attention_heads", "n_head", "n_heads", "num_heads", "encoder_attention_heads")


def _kv_heads(config: _Config, family: str, heads: int) -> int:
    if family == "falcon":
        if config.flag("new_decoder_architecture", False):
            return config.whole("num_kv_heads", default=heads)
        return 1 if config.flag("multi_query", True) else heads
    return config.whole("num_key_value_heads", "num_kv_heads", default=heads)


def _head_dim(config: _Config, hidden: int, heads: int) -> int:
    return config.whole("head_dim", "d_kv", default=max(1, hidden // heads))


def _experts(config: _Config) -> int:
    return config.whole("num_experts", "num_local_experts", "n_routed_experts", default=1)


def _kernels(config: _Config, family: str, cross_attention: bool = False) -> float:
    own = _LAYER_KERNELS.get(family)
    if own is None:
        own = _GATED_KERNELS if config.values.get("rms_norm_eps") or family in _GATED else _PLAIN_KERNELS
        own += _MOE_KERNELS if _experts(config) > 1 else 0.0
    return own * (_CROSS_ATTENTION_KERNELS if cross_attention else 1.0)


def _tied(config: _Config, family: str) -> bool:
    untied_by_default = family not in ("bert", "roberta", "xlm-roberta", "distilbert", "gpt2", "opt", "bloom",
                                       "t5", "bart", "whisper", "gemma", "gemma2", "gemma3_text", "cohere",
                                       "mpt", "falcon", "modernbert", "switch_transformers")  # fmt: skip
    return config.flag("tie_word_embeddings", not untied_by_default)


def _positions(config: _Config, family: str) -> int:
    """Rows of learned position (and token-type) tables."""
    if family in ("gpt2", "bert", "roberta", "xlm-roberta", "distilbert", "opt"):
        rows = config.whole("n_positions", "max_position_embeddings", default=1024)
        return rows + (config.whole("type_vocab_size", default=2) if "bert" in family else 0)
    if family == "bart":
        return 2 * (config.whole("max_position_embeddings", default=1024) + 2)
    if family == "whisper":
        return config.whole("max_source_positions", default=_WHISPER_FRAMES) + config.whole(
            "max_target_positions", default=448
        )
    if family == "vit":
        side = config.whole("image_size", default=224) // config.whole("patch_size", default=16)
        return side * side + 2
    return 0


def _stacks(config: _Config, family: str) -> tuple[Stack, ...]:
    if family in ("t5", "switch_transformers"):
        return _t5_stacks(config)
    if family in ("bart", "whisper"):
        return _bart_stacks(config, family)
    layers = config.whole("num_hidden_layers", "n_layer", "n_layers", "num_layers")
    attention, width, kv_width = _attention(config, family)
    hidden = config.whole("hidden_size", "n_embd", "d_model", "dim")
    causal = family not in _NOT_CAUSAL
    fixed = None
    if family == "vit":
        side = config.whole("image_size", default=224) // config.whole("patch_size", default=16)
        fixed = side * side + 1

    def stack(count: int, mlp: tuple[Gemm, ...], ffn: int) -> Stack:
        biased = 0 if family in _GATED else sum(gemm.n * gemm.copies for gemm in (*attention, *mlp))
        return Stack(
            layers=count, gemms=(*attention, *mlp), hidden=hidden, ffn=ffn, attention_width=width,
            kv_width=kv_width, causal=causal, other=2 * hidden + biased, fixed_tokens=fixed,
            kernels=_kernels(config, family),
        )  # fmt: skip

    ffn = _ffn(config, family, hidden)
    if _experts(config) == 1:
        return (stack(layers, _mlp(hidden, ffn, family in _GATED), ffn),)
    sparse_mlp, sparse_ffn = _moe(config, family, hidden, ffn)
    dense_layers = (
        config.whole("first_k_dense_replace", default=1) if "first_k_dense_replace" in config.values else 0
    )
    sparse = stack(layers - dense_layers, sparse_mlp, sparse_ffn)
    if not dense_layers:
        return (sparse,)
    return (stack(dense_layers, _mlp(hidden, ffn, gated=True), ffn), sparse)


def _ffn(config: _Config, family: str, hidden: int) -> int:
    if family == "bloom":
        return 4 * hidden
    if family == "mpt":
        return config.whole("expansion_ratio", default=4) * hidden
    if family == "falcon":
        return config.whole("ffn_hidden_size", default=4 * hidden)
    return config.whole("intermediate_size", "ffn_dim", "n_inner", "hidden_dim", default=4 * hidden)


def _mlp(hidden: int, ffn: int, gated: bool, copies: int = 1, active: float = 1.0) -> tuple[Gemm, ...]:
    up = ffn * (2 if gated else 1)  # gate and up read the same input: one product as far as speed goes
    return (
        Gemm(n=up, k=hidden, split="column", copies=copies, active=active),
        Gemm(n=hidden, k=ffn, split="row", copies=copies, active=active),
    )


def _moe(config: _Config, family: str, hidden: int, ffn: int) -> tuple[tuple[Gemm, ...], int]:
    experts, active = _experts(config), config.whole("num_experts_per_tok", default=2)
    width = config.whole("moe_intermediate_size", default=ffn)
    mlp = _mlp(hidden, width, gated=True, copies=experts, active=active)
    shared = config.whole("shared_expert_intermediate_size", default=1) if family == "qwen2_moe" else 0
    if config.values.get("n_shared_experts"):
        shared = config.whole("n_shared_experts") * width
    if shared:
        mlp += _mlp(hidden, shared, gated=True)
    return (*mlp, Gemm(n=experts, k=hidden, split="none")), width


def _attention(config: _Config, family: str) -> tuple[tuple[Gemm, ...], int, int]:
    """Projections, score width and width of keys and values together."""
    hidden = config.whole("hidden_size", "n_embd", "d_model", "dim")
    heads = _heads(config)
    if family in _LATENT:
        return _latent_attention(config, hidden, heads)
    dim = _head_dim(config, hidden, heads)
    kv = _kv_heads(config, family, heads)
    qkv = (heads + 2 * kv) * dim
    gemms = (
        Gemm(n=qkv, k=hidden, split="column", kind="attention"),
        Gemm(n=hidden, k=heads * dim, split="row", kind="attention"),
    )
    return gemms, heads * dim, 2 * kv * dim


def _latent_attention(config: _Config, hidden: int, heads: int) -> tuple[tuple[Gemm, ...], int, int]:
    """Multi-head latent attention: DeepSeek-V2, arXiv 2405.04434, section 2.1."""
    rank, rope = config.whole("kv_lora_rank"), config.whole("qk_rope_head_dim")
    nope, value = config.whole("qk_nope_head_dim"), config.whole("v_head_dim")
    gemms = []
    if config.values.get("q_lora_rank"):
        q_rank = config.whole("q_lora_rank")
        gemms.append(Gemm(n=q_rank, k=hidden, split="none", kind="attention"))
        gemms.append(Gemm(n=heads * (nope + rope), k=q_rank, split="column", kind="attention"))
    else:
        gemms.append(Gemm(n=heads * (nope + rope), k=hidden, split="column", kind="attention"))
    gemms.append(Gemm(n=rank + rope, k=hidden, split="none", kind="attention"))
    gemms.append(Gemm(n=heads * (nope + value), k=rank, split="column", kind="attention"))
    gemms.append(Gemm(n=hidden, k=heads * value, split="row", kind="attention"))
    return tuple(gemms), heads * (nope + rope + value) // 2, heads * (nope + rope + value)


def _cross(hidden: int, inner: int) -> tuple[Gemm, ...]:
    return (
        Gemm(n=3 * inner, k=hidden, split="column", kind="attention"),
        Gemm(n=hidden, k=inner, split="row", kind="attention"),
    )


def _t5_stacks(config: _Config) -> tuple[Stack, ...]:
    hidden, ffn = config.whole("d_model"), config.whole("d_ff")
    inner = config.whole("num_heads") * config.whole("d_kv", default=64)
    gated = str(config.values.get("feed_forward_proj", "relu")).startswith("gated")
    experts = _experts(config)
    encoder_layers = config.whole("num_layers")
    decoder_layers = config.whole("num_decoder_layers", default=encoder_layers)
    own = _cross(hidden, inner)
    dense = _mlp(hidden, ffn, gated)
    sparse = (*_mlp(hidden, ffn, gated, copies=experts), Gemm(n=experts, k=hidden, split="none"))
    found = []
    for layers, key, is_decoder in (
        (encoder_layers, "num_sparse_encoder_layers", False),
        (decoder_layers, "num_sparse_decoder_layers", True),
    ):
        sparse_layers = min(layers, config.whole(key, default=3)) if experts > 1 else 0
        attention = own + own if is_decoder else own
        for count, mlp in ((layers - sparse_layers, dense), (sparse_layers, sparse)):
            if count:
                found.append(Stack(
                    layers=count, gemms=(*attention, *mlp), hidden=hidden, ffn=ffn, attention_width=inner,
                    kv_width=2 * inner, causal=is_decoder, cross_attention=is_decoder, other=3 * hidden,
                    kernels=_kernels(config, "t5", is_decoder),
                ))  # fmt: skip
    return tuple(found)


def _bart_stacks(config: _Config, family: str) -> tuple[Stack, ...]:
    hidden = config.whole("d_model")
    own = _cross(hidden, hidden)
    found = []
    for side, is_decoder in (("encoder", False), ("decoder", True)):
        ffn = config.whole(f"{side}_ffn_dim", default=4 * hidden)
        gemms = (*(own + own if is_decoder else own), *_mlp(hidden, ffn, gated=False))
        frames = (
            config.whole("max_source_positions", default=_WHISPER_FRAMES) if family == "whisper" else None
        )
        found.append(Stack(
            layers=config.whole(f"{side}_layers", default=12), gemms=gemms, hidden=hidden, ffn=ffn,
            attention_width=hidden, kv_width=2 * hidden, causal=is_decoder, cross_attention=is_decoder,
            other=6 * hidden + sum(gemm.n for gemm in gemms), fixed_tokens=None if is_decoder else frames,
            kernels=_kernels(config, family, is_decoder),
        ))  # fmt: skip
    return tuple(found)
