"""A transformer's shape out of its Hugging Face configuration, family by family.

Counts leave out nothing larger than a bias where the configuration names it; the catalogue's exact
count replaces the sum where there is one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import field
from typing import Any

from zerokit.domain.hf_classes import has_other_layers, outputs_of
from zerokit.domain.hf_config import HfConfig
from zerokit.domain.model_shape import Gemm, Linear, ModelShape, Stack, kept_of
from zerokit.errors import InputError
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


_QV = ("q_proj", "v_proj")
_JOINED = ("query_key_value",)
PEFT_TARGETS: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(
        ("bart", "gemma", "gemma2", "gemma3_text", "gpt_neo", "gptj", "llama", "llama4", "mistral",
         "mixtral", "opt", "qwen2", "qwen3", "stablelm"), _QV,
    ),
    **dict.fromkeys(("bloom", "falcon", "gpt_neox"), _JOINED),
    **dict.fromkeys(("t5", "mt5"), ("q", "v")),
    **dict.fromkeys(("bert", "roberta", "xlm-roberta"), ("query", "value")),
    "gpt2": ("c_attn",), "mpt": ("Wqkv",), "phi": (*_QV, "fc1", "fc2"),
    "nemotron_h": ("q_proj", "k_proj", "v_proj", "o_proj"),
}  # fmt: skip
"""Model type -> the modules that get adapters where nobody names any (peft 0.21, utils/constants.py:67)."""


def can_be_separate(model_type: object) -> bool:
    """Whether Transformers 4 has the family with modules that bitsandbytes quantises, and 5 without."""
    names = MODULE_NAMES.get(str(model_type), Names())
    return names.experts == "stacked in 5" or not names.is_packable


def with_modules(stack: Stack, hf_config: Mapping[str, Any], separate: bool = False) -> Stack:
    """The stack of a model with this configuration, with the modules of each of its products. ``separate``:
    as in Transformers 4, where each expert is a module and every linear one is quantised."""
    names = MODULE_NAMES.get(str(hf_config.get("model_type")), Names())
    if separate:
        names = replace(names, experts="modules", adapted_experts=False)
    if names is _T5 and str(hf_config.get("feed_forward_proj", "relu")).startswith("gated"):
        names = replace(_T5, up=("wi_0", "wi_1"))
    attention = [gemm for gemm in stack.gemms if gemm.kind == "attention"]
    rest = [gemm for gemm in stack.gemms if gemm.kind != "attention"]
    is_latent = any(gemm.split == "none" for gemm in attention)
    named = _latent(attention, names) if is_latent else _attention_names(attention, stack, names)
    gemms = (*named, *_feed_forward(rest, names))
    is_packable = names.is_packable or separate
    packed = (replace(gemm, packable=is_packable and not gemm.stacked) for gemm in gemms)
    return replace(stack, gemms=tuple(packed))


def _attention_names(gemms: list[Gemm], stack: Stack, names: Names) -> Iterator[Gemm]:
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


_WHISPER_FRAMES = 1500
_GATED_KERNELS, _PLAIN_KERNELS, _MOE_KERNELS = 38.0, 20.0, 18.0
"""Of a family that is not in the table; more of experts."""
_CROSS_ATTENTION_KERNELS = 1.6
"""Of a decoder's layer over an encoder's: BART 1.5, T5 1.7, Whisper 1.6."""


_NORMS = 2
"""Of a layer as a rule: before attention and before the feed-forward layer."""


@frozen_dataclass
class Family:
    """What a configuration does not say of a model, because its family's code does. One row a family.

    Attributes:
        head: which ``AutoModelFor…`` it is trained with: causal, mlm, seq2seq, speech-seq2seq or
            image-classification.
        kernels: operators of a layer's forward pass that launch a kernel, as torch's dispatcher counts (torch
            2.13, transformers 5.23; SDPA where the family has it, one for the attention; experts as grouped
            products): a norm is eight kernels where it is no LayerNorm, and some families have one on queries
            and keys too. ``None``: not counted.
        norms: of a layer, as wide as the model; ``norms_heads``: queries and keys have norms too.
        gated: the feed-forward layer has a gate beside its first product.
        latent_attention: heads of values are not as wide as those of queries (arXiv 2405.04434).
        tied: the output head is the embedding, unless ``tie_word_embeddings`` says otherwise.
        positions: rows of learned position and token-type tables.
        kv_heads: key-value heads, given the attention heads, where the usual keys do not say them.
        ffn: width of the feed-forward layer, given the hidden width, where the usual keys do not say it.
        stacks: of encoders and decoders; ``None``: one stack of like layers.
        shared_expert: of the width ``shared_expert_intermediate_size``.
        images: tokens are patches of an image.
        fixed_frames: the encoder's tokens are frames of audio, however long the text.
        defaults: of transformers 5.23's configuration, which catalogue files may leave out.
    """

    head: str = "causal"
    kernels: float | None = None
    norms: int = _NORMS
    norms_heads: bool = False
    gated: bool = False
    latent_attention: bool = False
    tied: bool = False
    positions: Callable[[_Config], int] | None = None
    kv_heads: Callable[[_Config, int], int] | None = None
    ffn: Callable[[_Config, int], int] | None = None
    stacks: Callable[[_Config], tuple[Stack, ...]] | None = None
    shared_expert: bool = False
    images: bool = False
    fixed_frames: bool = False
    defaults: Mapping[str, Any] = field(default_factory=dict)


class _Config(HfConfig):
    """A configuration with what its family leaves out."""

    def __init__(self, values: Mapping[str, Any], name: str) -> None:
        self.family = FAMILIES.get(str(values.get("model_type")), _UNKNOWN)
        super().__init__({**self.family.defaults, **values}, name)


def from_config(
    hf_config: Mapping[str, Any],
    *,
    name: str = "config.json",
    parameters: int | None = None,
    head: str | None = None,
    separate: bool = False,
) -> ModelShape:
    """The shape of the model that ``hf_config`` describes.

    Args:
        parameters: the exact count, where it is known; else the sum of the shapes.
        head: one of :data:`zerokit.domain.hf_classes.HEADS`; ``None``: its family's.
        separate: see ``with_modules``.

    Raises:
        InputError: no transformer can be read out of it; names the missing key.
    """
    if not isinstance(hf_config, Mapping):
        raise InputError(f"{name}: expected a configuration with named values")
    if isinstance(hf_config.get("text_config"), Mapping):
        return _with_vision(hf_config, name, parameters, head)
    model_type = str(hf_config.get("model_type", ""))
    if not model_type:
        raise InputError(f"{name}: model_type is missing; is it a Hugging Face config.json?")
    config = _Config(hf_config, name)
    family = config.family
    stacks = tuple(with_modules(stack, hf_config, separate) for stack in _stacks(config))
    hidden, vocab = config.count("hidden_size", "n_embd", "d_model", "dim"), config.count("vocab_size")
    heads, head = _heads(config), head or family.head
    tied = config.flag("tie_word_embeddings", family.tied)
    outputs = outputs_of(config, head, vocab)
    embedding = 0 if head == "image-classification" else vocab * hidden
    extra = hidden * hidden if head == "mlm" else 0  # transform before the decoder
    if family.images:
        patch, channels = config.count("patch_size", default=16), config.count("num_channels", default=3)
        extra += patch * patch * channels * hidden
    shape = ModelShape(
        name=name,
        family=model_type,
        head=head,
        stacks=stacks,
        hidden=hidden,
        heads=heads,
        kv_heads=_kv_heads(config, heads),
        head_dim=_head_dim(config, hidden, heads),
        vocab=outputs,
        tied=tied and outputs == vocab,
        embedding_parameters=embedding + (family.positions(config) if family.positions else 0) * hidden,
        parameters=0,
        experts=_experts(config),
        experts_per_token=config.count("num_experts_per_tok", default=1),
        gated=family.gated,
        latent_attention=family.latent_attention,
        attends_fully=attends_fully(hf_config),
        kept=kept_of(hf_config, _kv_heads(config, heads)),
    )
    own_head = 0 if head == "embedding" or (shape.tied and not family.images) else shape.head_parameters
    total = shape.block_parameters + shape.embedding_parameters + own_head + extra
    return replace(shape, parameters=parameters if parameters is not None else total)


def _with_vision(config: Mapping[str, Any], name: str, count: int | None, head: str | None) -> ModelShape:
    """A text model with an image tower: the tower's weights count, its rare work does not."""
    text = from_config(config["text_config"], name=name, head=head)
    vision = config.get("vision_config")
    tower = 0
    if isinstance(vision, Mapping) and "hidden_size" in vision:
        h = int(vision["hidden_size"])
        f = int(vision.get("intermediate_size", 4 * h))
        tower = int(vision.get("num_hidden_layers", 0)) * (4 * h * h + 2 * h * f)
        tower += h * text.hidden
    return replace(text, parameters=count if count is not None else text.parameters + tower)


_MASKS: Mapping[str, Mapping[str, Any]] = {
    **{kind: {"sliding_window": 4096} for kind in ("gemma2", "gemma3_text", "mistral")},
    **{kind: {"use_sliding_window": False} for kind in ("qwen2", "qwen2_moe", "qwen3", "qwen3_moe")},
    "gpt_oss": {"sliding_window": 128},
    "llama4_text": {"attention_chunk_size": 8192},
}
"""Of transformers 5.23's configurations, where they are not said."""


def attends_fully(config: Mapping[str, Any]) -> bool:
    """Whether all layers do, by what configurations say of each, or of all."""
    config = {**_MASKS.get(str(config.get("model_type")), {}), **config}
    if isinstance(types := config.get("layer_types"), list):
        return {*types} <= {"full_attention"}
    has_window = config.get("sliding_window") and config.get("use_sliding_window") is not False
    return not (has_window or config.get("attention_chunk_size") or has_other_layers(config))


def _heads(config: _Config) -> int:
    return config.count("num_attention_heads", "n_head", "n_heads", "num_heads", "encoder_attention_heads")


def _kv_heads(config: _Config, heads: int) -> int:
    if config.family.kv_heads is not None:
        return config.family.kv_heads(config, heads)
    return config.count("num_key_value_heads", "num_kv_heads", default=heads)


def _falcon_kv_heads(config: _Config, heads: int) -> int:
    if config.flag("new_decoder_architecture", False):
        return config.count("num_kv_heads", default=heads)
    return 1 if config.flag("multi_query", True) else heads


def _head_dim(config: _Config, hidden: int, heads: int) -> int:
    return config.count("head_dim", "d_kv", default=max(1, hidden // heads))


def _experts(config: _Config) -> int:
    return config.count("num_experts", "num_local_experts", "n_routed_experts", default=1)


def _kernels(config: _Config, cross_attention: bool = False) -> float:
    kernels, family = config.family.kernels, config.family
    if kernels is None:
        kernels = _GATED_KERNELS if config.values.get("rms_norm_eps") or family.gated else _PLAIN_KERNELS
        kernels += _MOE_KERNELS if _experts(config) > 1 else 0.0
    return kernels * (_CROSS_ATTENTION_KERNELS if cross_attention else 1.0)


def _learned_positions(config: _Config) -> int:
    return config.count("n_positions", "max_position_embeddings", default=1024)


def _typed_positions(config: _Config) -> int:
    return _learned_positions(config) + config.count("type_vocab_size", default=2)


def _bart_positions(config: _Config) -> int:
    return 2 * (config.count("max_position_embeddings", default=1024) + 2)


def _whisper_positions(config: _Config) -> int:
    return config.count("max_source_positions", default=_WHISPER_FRAMES) + config.count(
        "max_target_positions", default=448
    )


def _patches(config: _Config) -> int:
    side = config.count("image_size", default=224) // config.count("patch_size", default=16)
    return side * side


def _image_positions(config: _Config) -> int:
    return _patches(config) + 2


def _stacks(config: _Config) -> tuple[Stack, ...]:
    family = config.family
    if family.stacks is not None:
        return family.stacks(config)
    layers = config.count("num_hidden_layers", "n_layer", "n_layers", "num_layers")
    attention, width, kv_width = _attention(config)
    hidden = config.count("hidden_size", "n_embd", "d_model", "dim")
    causal = family.head == "causal"
    fixed = _patches(config) + 1 if family.images else None
    more_normed = (family.norms - _NORMS) * hidden + family.norms_heads * (width + kv_width // 2)

    def stack(count: int, mlp: tuple[Gemm, ...], ffn: int) -> Stack:
        biased = 0 if family.gated else sum(gemm.n * gemm.copies for gemm in (*attention, *mlp))
        return Stack(
            layers=count, gemms=(*attention, *mlp), hidden=hidden, ffn=ffn, attention_width=width,
            kv_width=kv_width, causal=causal, other_parameters=2 * hidden + biased, fixed_tokens=fixed,
            kernels=_kernels(config), more_normed=more_normed,
        )  # fmt: skip

    ffn = _ffn(config, hidden)
    if _experts(config) == 1:
        return (stack(layers, _mlp(hidden, ffn, family.gated), ffn),)
    sparse_mlp, sparse_ffn = _moe(config, hidden, ffn)
    dense_layers = config.count("first_k_dense_replace") if config.values.get("first_k_dense_replace") else 0
    sparse = stack(layers - dense_layers, sparse_mlp, sparse_ffn)
    if not dense_layers:
        return (sparse,)
    return (stack(dense_layers, _mlp(hidden, ffn, gated=True), ffn), sparse)


def _ffn(config: _Config, hidden: int) -> int:
    if config.family.ffn is not None:
        return config.family.ffn(config, hidden)
    return config.count("intermediate_size", "ffn_dim", "n_inner", "hidden_dim", default=4 * hidden)


def _mlp(hidden: int, ffn: int, gated: bool, copies: int = 1, active: float = 1.0) -> tuple[Gemm, ...]:
    up = ffn * (2 if gated else 1)  # gate and up read the same input: one product as far as speed goes
    return (
        Gemm(n=up, k=hidden, split="column", copies=copies, active=active),
        Gemm(n=hidden, k=ffn, split="row", copies=copies, active=active),
    )


def _moe(config: _Config, hidden: int, ffn: int) -> tuple[tuple[Gemm, ...], int]:
    experts, active = _experts(config), config.count("num_experts_per_tok", default=2)
    width = config.count("moe_intermediate_size", default=ffn)
    mlp = _mlp(hidden, width, gated=True, copies=experts, active=active)
    shared = config.count("shared_expert_intermediate_size", default=1) if config.family.shared_expert else 0
    if config.values.get("n_shared_experts"):
        shared = config.count("n_shared_experts") * width
    if shared:
        mlp += _mlp(hidden, shared, gated=True)
    return (*mlp, Gemm(n=experts, k=hidden, split="none")), width


def _attention(config: _Config) -> tuple[tuple[Gemm, ...], int, int]:
    """Projections, score width and width of keys and values together."""
    hidden = config.count("hidden_size", "n_embd", "d_model", "dim")
    heads = _heads(config)
    if config.family.latent_attention:
        return _latent_attention(config, hidden, heads)
    dim = _head_dim(config, hidden, heads)
    kv = _kv_heads(config, heads)
    qkv = (heads + 2 * kv) * dim
    gemms = (
        Gemm(n=qkv, k=hidden, split="column", kind="attention"),
        Gemm(n=hidden, k=heads * dim, split="row", kind="attention"),
    )
    return gemms, heads * dim, 2 * kv * dim


def _latent_attention(config: _Config, hidden: int, heads: int) -> tuple[tuple[Gemm, ...], int, int]:
    """Multi-head latent attention: DeepSeek-V2, arXiv 2405.04434, section 2.1."""
    rank, rope = config.count("kv_lora_rank"), config.count("qk_rope_head_dim")
    nope, value = config.count("qk_nope_head_dim"), config.count("v_head_dim")
    gemms = []
    if config.values.get("q_lora_rank"):
        q_rank = config.count("q_lora_rank")
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
    hidden, ffn = config.count("d_model"), config.count("d_ff")
    inner = config.count("num_heads") * config.count("d_kv", default=64)
    gated = str(config.values.get("feed_forward_proj", "relu")).startswith("gated")
    experts = _experts(config)
    encoder_layers = config.count("num_layers")
    decoder_layers = config.count("num_decoder_layers", default=encoder_layers)
    cross = _cross(hidden, inner)
    dense = _mlp(hidden, ffn, gated)
    sparse = (*_mlp(hidden, ffn, gated, copies=experts), Gemm(n=experts, k=hidden, split="none"))
    stacks = []
    for layers, key, is_decoder in (
        (encoder_layers, "num_sparse_encoder_layers", False),
        (decoder_layers, "num_sparse_decoder_layers", True),
    ):
        sparse_layers = min(layers, config.count(key, default=3)) if experts > 1 else 0
        attention = cross + cross if is_decoder else cross
        for count, mlp in ((layers - sparse_layers, dense), (sparse_layers, sparse)):
            if count:
                stacks.append(Stack(
                    layers=count, gemms=(*attention, *mlp), hidden=hidden, ffn=ffn, attention_width=inner,
                    kv_width=2 * inner, causal=is_decoder, cross_attention=is_decoder,
                    other_parameters=3 * hidden, kernels=_kernels(config, is_decoder),
                ))  # fmt: skip
    return tuple(stacks)


def _bart_stacks(config: _Config) -> tuple[Stack, ...]:
    hidden = config.count("d_model")
    cross = _cross(hidden, hidden)
    stacks = []
    for side, is_decoder in (("encoder", False), ("decoder", True)):
        ffn = config.count(f"{side}_ffn_dim", default=4 * hidden)
        gemms = (*(cross + cross if is_decoder else cross), *_mlp(hidden, ffn, gated=False))
        frames = (
            config.count("max_source_positions", default=_WHISPER_FRAMES)
            if config.family.fixed_frames
            else None
        )
        stacks.append(Stack(
            layers=config.count(f"{side}_layers", default=12), gemms=gemms, hidden=hidden, ffn=ffn,
            attention_width=hidden, kv_width=2 * hidden, causal=is_decoder, cross_attention=is_decoder,
            other_parameters=6 * hidden + sum(gemm.n for gemm in gemms),
            fixed_tokens=None if is_decoder else frames, kernels=_kernels(config, is_decoder),
        ))  # fmt: skip
    return tuple(stacks)


# fmt: off
FAMILIES: Mapping[str, Family] = {
    "llama": Family(kernels=38, gated=True),
    **dict.fromkeys(("mistral", "ministral3", "qwen2", "phi3"), Family(kernels=38, gated=True)),
    "cohere": Family(kernels=38, gated=True, tied=True),
    "granite": Family(kernels=40, gated=True),
    "qwen3": Family(kernels=54, gated=True, norms_heads=True, defaults={"head_dim": 128}),
    **dict.fromkeys(("olmo2", "olmo3", "exaone4"), Family(kernels=56, gated=True, norms_heads=True)),
    "seed_oss": Family(gated=True, defaults={"head_dim": 128}),
    "minimax_m2": Family(gated=True, norms_heads=True, defaults={"head_dim": 128}),
    "smollm3": Family(gated=True, tied=True),
    "ernie4_5": Family(gated=True, tied=True, defaults={"head_dim": 128}),
    "glm4": Family(kernels=58, gated=True, norms=4, defaults={"head_dim": 128}),
    "gemma": Family(kernels=42, gated=True, tied=True, defaults={"head_dim": 256}),
    "gemma2": Family(kernels=73, gated=True, norms=4, tied=True, defaults={"head_dim": 256}),
    "gemma3": Family(kernels=82, gated=True, norms=4, norms_heads=True),
    "gemma3_text": Family(kernels=82, gated=True, norms=4, norms_heads=True, tied=True,
        defaults={"head_dim": 256}),
    "mixtral": Family(kernels=56, gated=True),
    "qwen2_moe": Family(kernels=62, gated=True, shared_expert=True),
    "qwen3_moe": Family(kernels=72, gated=True, norms_heads=True, defaults={"head_dim": 128}),
    "gpt_oss": Family(kernels=73, gated=True),
    "deepseek_v2": Family(kernels=91, gated=True, latent_attention=True),
    "deepseek_v3": Family(kernels=63, gated=True, latent_attention=True),
    "gpt2": Family(kernels=19, tied=True, positions=_learned_positions),
    "opt": Family(kernels=15, tied=True, positions=_learned_positions),
    "gptj": Family(kernels=45),
    "gpt_neox": Family(kernels=23),
    "phi": Family(kernels=31),
    "falcon": Family(kernels=27, tied=True, kv_heads=_falcon_kv_heads,
        ffn=lambda c, hidden: c.count("ffn_hidden_size", default=4 * hidden)),
    "mpt": Family(kernels=16, tied=True,
        ffn=lambda c, hidden: c.count("expansion_ratio", default=4) * hidden),
    "bloom": Family(kernels=23, tied=True, ffn=lambda _, hidden: 4 * hidden,
        defaults={"intermediate_size": 4}),
    "starcoder2": Family(kernels=22),
    "bert": Family(head="mlm", kernels=14, tied=True, positions=_typed_positions),
    "roberta": Family(head="mlm", kernels=14, tied=True, positions=_typed_positions),
    "xlm-roberta": Family(head="mlm", kernels=14, tied=True, positions=_typed_positions),
    "distilbert": Family(head="mlm", kernels=13, tied=True, positions=_typed_positions),
    "modernbert": Family(head="mlm", kernels=29, gated=True, tied=True),
    "t5": Family(head="seq2seq", kernels=29, tied=True, stacks=_t5_stacks),
    "switch_transformers": Family(head="seq2seq", kernels=29, tied=True, stacks=_t5_stacks),
    "bart": Family(head="seq2seq", kernels=14, tied=True, positions=_bart_positions, stacks=_bart_stacks),
    "whisper": Family(head="speech-seq2seq", kernels=17, tied=True, positions=_whisper_positions,
        stacks=_bart_stacks, fixed_frames=True, defaults={"vocab_size": 51865}),
    "vit": Family(head="image-classification", kernels=12, positions=_image_positions, images=True,
        defaults={"vocab_size": 1000}),
}
# fmt: on
"""``model_type`` of a configuration -> its family; each was compared with what transformers builds."""
_UNKNOWN = Family()
